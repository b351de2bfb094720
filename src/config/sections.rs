//! The sections of the configuration: their settings, each said once, and the bounds that several use.

mod auth;
mod cache;
mod follow;
mod methods;
pub(super) mod pool;
mod send;
mod server;
mod shared;
mod telemetry;
mod upstreams;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::setting::section;
use super::{Problem, Secret};
use crate::methods::{AnyMethod, Profile};

pub use auth::{Auth, AuthMode, CallRate, KEYS_FILE, Plan, STANDARD_PLAN, Units};
pub use cache::{Assemble, CacheSettings, StaleIfError, Ttl};
pub use follow::{FollowMode, FollowSettings, Verify};
pub use methods::{EXAMPLE_METHOD, ListedSettings};
pub use pool::{AnswerLimit, BreakerSettings, PoolSettings};
pub use send::SendSettings;
pub use server::{Server, TlsFiles, WsListen, next_address};
pub use shared::SharedSettings;
pub use telemetry::{LogFormat, Telemetry};
pub use upstreams::{GenesisCheck, Upstream};

section! {
    /// All settings. Every value is valid.
    pub struct Config {
        /// Behaviour where nodes differ from the written interface: "node" answers like a node, "spec" like the
        /// interface. Client libraries need "node": with "spec", web3.js and kit throw for a missing account.
        profile["compat.profile"]: Profile = restart.get("node"),
        server: Server = each.section(),
        /// Further read methods, which only some nodes have, by name.
        // Plans, prices and upstreams name them, so they are read first.
        methods: BTreeMap<AnyMethod, ListedSettings> = each.with(methods::methods),
        auth: Auth = each.section(),
        /// Addresses and networks from which no key is accepted, with or without an address list of its own, and which get
        /// neither `/health` nor `/openrpc.json`: for a client that you want to be rid of. Behind a proxy,
        /// `server.trusted_proxies` must name it.
        deny["gateway.deny"]: Vec<IpNet> = live.list(&[]),
        plans: BTreeMap<String, Plan> = live.with(auth::plans),
        units: Units = each.section(),
        /// At least one.
        upstreams["upstream"]: Vec<Upstream> = live.with(upstreams::upstreams),
        pool: PoolSettings = each.section(),
        cache: CacheSettings = each.section(),
        follow: FollowSettings = each.section(),
        shared: Option<SharedSettings> = restart.with(shared::shared),
        send: SendSettings = each.section(),
        verify: Verify = each.section(),
        telemetry: Telemetry = each.section(),
        /// The settings that are valid but probably unintended. Reported at the start.
        warnings: Vec<Problem> = note.fixed(Vec::new()),
    }
}

/// The bounds of timeouts. Timers have a resolution of a millisecond, and an hour is as good as unlimited.
const TIMEOUT: RangeInclusive<&str> = "1ms"..="1h";
/// The bounds of a share, such as the share of calls that may be retried.
const SHARE: RangeInclusive<f64> = 0.0..=1.0;
/// The maximum length of a name. Names become metric labels.
const MAX_NAME: usize = 64;
const NAME_RULE: &str = "expected letters, digits, '-', '_' and '.', at most 64 of them";

/// Returns true for a valid name of a plan, upstream or namespace, and for the id of a key: letters, digits, `-`, `_` and `.`.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// Returns true for a web origin in the form in which browsers send it: scheme, host, and a port that is not the scheme's
/// default. The origins of requests are compared byte by byte.
pub fn is_origin(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| {
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        url.host_str().is_some_and(|host| format!("{}://{host}{port}", url.scheme()) == text)
    })
}

/// Parses a network of addresses, or a single address.
pub fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// Returns the fault of an HTTP URL, without showing the URL. `None` for a valid URL. Also `None` for an
/// empty one, which is reported elsewhere.
pub fn url_fault(url: &Secret) -> Option<&'static str> {
    const SCHEME: &str = "expected a URL with http or https and a host";
    if url.expose().is_empty() {
        return None;
    }
    match url::Url::parse(url.expose()) {
        Err(_) => Some(SCHEME),
        Ok(url) if !matches!(url.scheme(), "http" | "https") || !url.has_host() => Some(SCHEME),
        Ok(url) if url.fragment().is_some() => Some("has a fragment (#…), which HTTP does not send"),
        Ok(_) => None,
    }
}
