//! `[[upstream]]` in the file, or `SLOTFRONT_UPSTREAMS=name=url,…` in the environment, which replaces the file's.

use std::collections::{BTreeMap, BTreeSet};

use hyper::header::{HeaderName, HeaderValue};

use crate::config::bounds::{ca_file, is_name, url_fault};
use crate::config::problem::Origin;
use crate::config::reader::Reader;
use crate::config::{Secret, Upstream, defaults};

/// A list of `name=url` or plain urls; names and urls hold no comma.
const VARIABLE: &str = "SLOTFRONT_UPSTREAMS";
const KEY: &str = "upstream";

/// Reads all upstreams; at least one is needed, and names differ.
pub(super) fn read(root: &Reader<'_>) -> Vec<Upstream> {
    let upstreams = if let Some(list) = root.sheet().env.get(VARIABLE) {
        // The variable replaces the upstreams of the file, which are not judged.
        root.written(KEY);
        from_variable(root, list)
    } else {
        let file = root.tables(KEY);
        file.iter().flatten().enumerate().map(|(i, r)| one(r, i)).collect()
    };
    if upstreams.is_empty() && !root.is_wrong(KEY) {
        let fix = format!("add [[upstream]] with a line url = \"http://…\", or set {VARIABLE}=name=url");
        root.problem(KEY, None, "is missing: there is no node to ask", fix);
    }
    let mut names = BTreeSet::new();
    for (i, upstream) in upstreams.iter().enumerate() {
        if !names.insert(&upstream.name) {
            let (key, shown) = (format!("{KEY}[{i}].name"), format!("{:?}", upstream.name));
            root.problem(&key, Some(shown), "is the name of another upstream, too", "give each its own name");
        }
    }
    upstreams
}

fn one(r: &Reader<'_>, i: usize) -> Upstream {
    if r.written("url").is_none() {
        r.problem("url", None, "is missing", "add url = \"http://host:port\"");
    }
    let url = r.secret("url").unwrap_or_else(|| Secret::new(""));
    if let Some(rule) = url_fault(&url) {
        r.problem("url", Some("***".to_owned()), rule, "write it like \"http://127.0.0.1:8899\"");
    }
    let name = r.get("name", default_name(i));
    if !is_name(&name) {
        // Not shown, because it may be a url.
        let rule = "expected letters, digits, '-', '_' and '.', at most 64 of them";
        r.problem("name", None, rule, "write it like \"validator-1\"");
    }
    Upstream {
        name,
        url,
        tier: r.get("tier", defaults::TIER),
        headers: headers(&r.table("headers")),
        rps: r.optional_within("rps", 1..=1_000_000),
        max_in_flight: r.within("max_in_flight", defaults::UPSTREAM_MAX_IN_FLIGHT, 1..=1_000_000),
        ca_file: ca_file(r),
        http2: r.get("http2", defaults::HTTP2),
        genesis: r.get("genesis", defaults::GENESIS),
    }
}

fn headers(r: &Reader<'_>) -> BTreeMap<String, Secret> {
    let mut headers = BTreeMap::new();
    for name in r.keys() {
        let Some(value) = r.secret(name) else { continue };
        if name.parse::<HeaderName>().is_err() {
            r.problem(name, None, "is no name of an HTTP header", "write it like authorization");
        } else if HeaderValue::from_str(value.expose()).is_err() {
            r.problem(
                name,
                Some("***".to_owned()),
                "is no value of an HTTP header",
                "use printable ASCII only",
            );
        }
        headers.insert(name.to_lowercase(), value);
    }
    headers
}

fn from_variable(root: &Reader<'_>, list: &str) -> Vec<Upstream> {
    let mut upstreams = Vec::new();
    for (i, entry) in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).enumerate() {
        // A `=` may belong to the url's query.
        let (name, url) = match entry.split_once('=') {
            Some((name, url)) if is_name(name.trim()) => (name.trim().to_owned(), url.trim()),
            _ => (default_name(i), entry),
        };
        let sheet = root.sheet();
        let resolved = Secret::resolve(url, sheet.env, sheet.base);
        let fault = match &resolved {
            Ok(url) => url_fault(url).map(str::to_owned),
            Err(rule) => Some(rule.clone()),
        };
        root.place(&format!("{KEY}[{i}].url"), Origin::Variable(VARIABLE.to_owned()));
        if let Some(rule) = fault {
            let fix = format!("write {VARIABLE}=name=http://host:port,…");
            root.problem(&format!("{KEY}[{i}].url"), Some("***".to_owned()), rule, fix);
        }
        upstreams.push(Upstream::plain(name, resolved.unwrap_or_else(|_| Secret::new(""))));
    }
    if upstreams.is_empty() {
        root.place(KEY, Origin::Variable(VARIABLE.to_owned()));
    }
    upstreams
}

/// Returns the name of an upstream that has none: `upstream-1` and so on.
fn default_name(i: usize) -> String {
    format!("upstream-{}", i + 1)
}
