//! `[[upstream]]` in the file, or `SLOTFRONT_UPSTREAMS=name=url,…` in the environment. The variable replaces all
//! upstreams of the file.

use std::collections::{BTreeMap, BTreeSet};

use hyper::header::{HeaderName, HeaderValue};
use serde_json::json;

use super::{NAME_RULE, is_name, url_fault};
use crate::config::Secret;
use crate::config::problem::ValueOrigin;
use crate::config::reader::{Declared, Section, TableReader};
use crate::config::setting::{CaFile, Field, section};
use crate::methods::AnyMethod;

/// The environment variable with the upstreams, separated by commas. Each is `name=url` or a plain URL. Names
/// and URLs have no comma.
const VARIABLE: &str = "SLOTFRONT_UPSTREAMS";
const KEY: &str = "upstream";

section! {
    /// A node; repeat for each. A reload adds, removes and changes nodes without dropping requests. A node with the same
    /// name and url remains the same node, even if other settings change.
    pub struct Upstream {
        /// Name in logs, metrics and errors. Default: upstream-1, upstream-2 and so on.
        name: String = live.with(name),
        /// URL. It is never shown, because it may hold a provider's key. `env:NAME` and `file:PATH` are possible.
        url: Secret = live.with(url),
        /// URL of the node's WebSocket. Needed only for logsSubscribe, programSubscribe, slotsUpdatesSubscribe,
        /// blockSubscribe and voteSubscribe: the other subscriptions need no WebSocket of a node. It is never shown.
        /// `env:NAME` and `file:PATH` are possible.
        ws_url: Option<Secret> = live.with(ws_url),
        /// Tier. Lower tiers are asked first; a higher tier is a reserve.
        tier: u8 = live.get(0),
        /// Methods or groups of methods ("core", "tip", "history", "owners", "scans", "subscriptions", "simulation",
        /// "provider") that the node gets, such as "scans" for a node with indexes. Of the subscriptions that need its
        /// WebSocket, it gets those that are named here, alone or as the group. Default: all.
        methods: Option<Vec<AnyMethod>> = live.with(|f| f.methods(&["core", "history"])),
        /// Headers sent with every request.
        headers: BTreeMap<String, Secret> = live.with(headers),
        /// Maximum calls a second to this node. Further calls go to another node, or wait about half a second at most;
        /// the keys take turns. Default: no limit.
        rps: Option<u32> = live.optional_within(500, 1..=1_000_000),
        /// Maximum calls in flight to this node. One key may hold up to eight times as many as are free.
        // Well below the queue length of a validator's RPC threads.
        max_in_flight: usize = live.within(512, 1..=1_000_000),
        /// An additional certificate authority, in PEM.
        ca_file: Option<CaFile> = live.ca_file(),
        /// True for HTTP/2, false for HTTP/1.1.
        // Several HTTP/1.1 connections avoid two limits of a single HTTP/2 connection: the one TCP window and the
        // number of streams.
        http2: bool = live.get(false),
        /// "checked": the node gets calls only after it has reported the pool's genesis hash, if that is configured or
        /// known. "unchecked": the node is assumed to belong to the cluster, for providers that do not answer
        /// getGenesisHash.
        genesis: GenesisCheck = live.get("checked"),
        /// True to drain the node: it gets no calls, also after a restart. A reload drains or restores it.
        drained: bool = live.get(false),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenesisCheck {
    Checked,
    Unchecked,
}

impl Upstream {
    /// Creates an upstream with a name and a URL, and defaults for the rest.
    pub fn plain(name: impl Into<String>, url: Secret) -> Self {
        Self { name: name.into(), url, ..Self::defaults() }
    }
}

/// Reads all upstreams. At least one is needed, and names must differ.
pub(super) fn upstreams(f: &Field<'_, '_>) -> Vec<Upstream> {
    let root = &f.r;
    let mut upstreams = if let Some(list) = root.layers().env.get(VARIABLE) {
        // The variable replaces the upstreams of the file, so the upstreams of the file are not checked.
        root.written(KEY);
        from_variable(root, list)
    } else {
        root.tables(KEY).iter().flatten().map(read_one).collect()
    };
    if upstreams.is_empty() && !root.is_wrong(KEY) {
        let fix = format!("add [[upstream]] with a line url = \"http://…\", or set {VARIABLE}=name=url");
        root.problem(KEY, None, "is missing: slotfront needs at least one node", fix);
    }
    let mut names = BTreeSet::new();
    for (i, upstream) in upstreams.iter_mut().enumerate() {
        if upstream.name.is_empty() {
            upstream.name = format!("upstream-{}", i + 1);
        }
        if !names.insert(&upstream.name) {
            let (key, shown) = (format!("{KEY}[{i}].name"), format!("{:?}", upstream.name));
            root.problem(&key, Some(shown), "is also the name of another upstream", "choose different names");
        }
    }
    upstreams
}

fn read_one(r: &TableReader<'_>) -> Upstream {
    r.declare(Declared::table(r.path(""), Upstream::HELP));
    Upstream::read(r)
}

/// Reads a name, which is empty if it is not set. It is not shown, because it may be a misplaced URL.
fn name(f: &Field<'_, '_>) -> String {
    let name: String = f.optional("validator-1").unwrap_or_default();
    if !name.is_empty() && !is_name(&name) {
        f.problem(None, NAME_RULE, "write it like \"validator-1\"");
    }
    name
}

fn url(f: &Field<'_, '_>) -> Secret {
    if f.r.written(f.key).is_none() {
        f.problem(None, "is missing", "add url = \"http://host:port\"");
    }
    let url = f.secret("http://127.0.0.1:8899").unwrap_or_else(|| Secret::new(""));
    if let Some(rule) = url_fault(&url) {
        f.secret_problem(rule, "write it like \"http://127.0.0.1:8899\"");
    }
    url
}

fn ws_url(f: &Field<'_, '_>) -> Option<Secret> {
    let url = f.secret("ws://127.0.0.1:8900")?;
    let parsed = url::Url::parse(url.expose()).ok();
    if !parsed
        .is_some_and(|url| matches!(url.scheme(), "ws" | "wss") && url.has_host() && url.fragment().is_none())
    {
        f.secret_problem("expected a URL with ws or wss and a host", "write it like \"ws://127.0.0.1:8900\"");
    }
    Some(url)
}

fn headers(f: &Field<'_, '_>) -> BTreeMap<String, Secret> {
    let schema = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    f.declare(schema, None, Some(&json!({ "authorization": "env:UPSTREAM_AUTHORIZATION" })));
    let r = f.r.table(f.key);
    let mut headers = BTreeMap::new();
    for name in r.keys() {
        let header = Field { r: r.clone(), key: name, help: "" };
        let Some(value) = header.parsed_secret() else { continue };
        if name.parse::<HeaderName>().is_err() {
            header.problem(None, "is not a valid HTTP header name", "write it like authorization");
        } else if HeaderValue::from_str(value.expose()).is_err() {
            header.secret_problem("is not a valid HTTP header value", "use printable ASCII only");
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
            _ => (String::new(), entry),
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
