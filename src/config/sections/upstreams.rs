//! `[[upstream]]` in the file, or `SLOTFRONT_UPSTREAMS=name=url,…` in the environment. The variable replaces all
//! upstreams of the file.

use std::collections::{BTreeMap, BTreeSet};

use hyper::header::{HeaderName, HeaderValue};

use crate::config::bounds::{ca_file, is_name, url_fault};
use crate::config::problem::ValueOrigin;
use crate::config::reader::TableReader;
use crate::config::{Secret, Upstream, defaults};

/// The environment variable with the upstreams, separated by commas. Each is `name=url` or a plain URL. Names
/// and URLs have no comma.
const VARIABLE: &str = "SLOTFRONT_UPSTREAMS";
const KEY: &str = "upstream";

/// Reads all upstreams. At least one is needed, and names must differ.
pub(super) fn read(root: &TableReader<'_>) -> Vec<Upstream> {
    let upstreams = if let Some(list) = root.layers().env.get(VARIABLE) {
        // The variable replaces the upstreams of the file, so the upstreams of the file are not checked.
        root.written(KEY);
        from_variable(root, list)
    } else {
        let file = root.tables(KEY);
        file.iter().flatten().enumerate().map(|(i, r)| read_one(r, i)).collect()
    };
    if upstreams.is_empty() && !root.is_wrong(KEY) {
        let fix = format!("add [[upstream]] with a line url = \"http://…\", or set {VARIABLE}=name=url");
        root.problem(KEY, None, "is missing: slotfront needs at least one node", fix);
    }
    let mut names = BTreeSet::new();
    for (i, upstream) in upstreams.iter().enumerate() {
        if !names.insert(&upstream.name) {
            let (key, shown) = (format!("{KEY}[{i}].name"), format!("{:?}", upstream.name));
            root.problem(&key, Some(shown), "is also the name of another upstream", "choose different names");
        }
    }
    upstreams
}

fn read_one(r: &TableReader<'_>, i: usize) -> Upstream {
    if r.written("url").is_none() {
        r.problem("url", None, "is missing", "add url = \"http://host:port\"");
    }
    let url = r.secret("url").unwrap_or_else(|| Secret::new(""));
    if let Some(rule) = url_fault(&url) {
        r.problem("url", Some("***".to_owned()), rule, "write it like \"http://127.0.0.1:8899\"");
    }
    let name = r.get("name", default_name(i));
    if !is_name(&name) {
        // The name is not shown, because it may be a misplaced URL.
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

fn headers(r: &TableReader<'_>) -> BTreeMap<String, Secret> {
    let mut headers = BTreeMap::new();
    for name in r.keys() {
        let Some(value) = r.secret(name) else { continue };
        if name.parse::<HeaderName>().is_err() {
            r.problem(name, None, "is not a valid HTTP header name", "write it like authorization");
        } else if HeaderValue::from_str(value.expose()).is_err() {
            r.problem(
                name,
                Some("***".to_owned()),
                "is not a valid HTTP header value",
                "use printable ASCII only",
            );
        }
        headers.insert(name.to_lowercase(), value);
    }
    headers
}

fn from_variable(root: &TableReader<'_>, list: &str) -> Vec<Upstream> {
    let mut upstreams = Vec::new();
    for (i, entry) in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).enumerate() {
        // A `=` may belong to the URL's query.
        let (name, url) = match entry.split_once('=') {
            Some((name, url)) if is_name(name.trim()) => (name.trim().to_owned(), url.trim()),
            _ => (default_name(i), entry),
        };
        let layers = root.layers();
        let resolved = Secret::resolve(url, layers.env, layers.base);
        let fault = match &resolved {
            Ok(url) => url_fault(url).map(str::to_owned),
            Err(rule) => Some(rule.clone()),
        };
        root.set_origin(&format!("{KEY}[{i}].url"), ValueOrigin::Variable(VARIABLE.to_owned()));
        if let Some(rule) = fault {
            let fix = format!("write {VARIABLE}=name=http://host:port,…");
            root.problem(&format!("{KEY}[{i}].url"), Some("***".to_owned()), rule, fix);
        }
        upstreams.push(Upstream::plain(name, resolved.unwrap_or_else(|_| Secret::new(""))));
    }
    if upstreams.is_empty() {
        root.set_origin(KEY, ValueOrigin::Variable(VARIABLE.to_owned()));
    }
    upstreams
}

/// Returns the name of the upstream at position `i` if it has none of its own: `upstream-1` for 0.
fn default_name(i: usize) -> String {
    format!("upstream-{}", i + 1)
}
