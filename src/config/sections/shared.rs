//! `[shared]`: the store that several gateways share. Without a `url` no store is used.

use std::time::Duration;

use super::{NAME_RULE, TIMEOUT, is_name};
use crate::config::Secret;
use crate::config::setting::{CaFile, Field, section};

const FIX: &str =
    "write \"redis://user:password@10.0.0.5:6379\" (rediss:// with TLS), \"env:NAME\" or \"file:PATH\"";

section! {
    /// A Redis or Valkey store that several gateways share: a second level of the cache, and common limits and quotas.
    /// Without a `url` there is none. See docs/several-replicas.md.
    #[derive(Eq)]
    pub struct SharedSettings {
        /// The URL, with user and password if needed, and rediss:// for TLS; or `env:NAME`, `file:PATH`. Several URLs are
        /// separated by commas: servers of which the one that accepts writes is used, or some nodes of a cluster.
        urls["url"]: Vec<Secret> = restart.with(urls),
        /// True for a Redis cluster.
        cluster: bool = restart.get(false),
        /// The prefix of all keys in the store. Deployments that count separately need different ones.
        namespace: String = restart.with(namespace),
        /// Maximum time for an operation of the store.
        // Many times the latency of a store nearby, and less than the latency of most nodes.
        timeout: Duration = restart.within("20ms", TIMEOUT),
        /// An additional certificate authority, in PEM.
        ca_file: Option<CaFile> = restart.ca_file(),
        /// The secret that authenticates cached answers in the store. Others who can write to the store cannot forge
        /// answers. All gateways need the same secret; or `env:NAME`, `file:PATH`. Without a secret, only accidental damage
        /// is detected.
        secret: Option<Secret> = restart.secret("env:SLOTFRONT_SHARED_SECRET"),
    }
}

/// Reads the section. `None` without a `url`; the other settings are checked nevertheless.
pub(super) fn shared(f: &Field<'_, '_>) -> Option<SharedSettings> {
    Some(f.section()).filter(|shared: &SharedSettings| !shared.urls.is_empty())
}

fn namespace(f: &Field<'_, '_>) -> String {
    let namespace: String = f.get("slotfront");
    if !is_name(&namespace) {
        f.problem(Some(format!("{namespace:?}")), NAME_RULE, "write it like \"slotfront\"");
    }
    namespace
}

/// Reads URLs separated by commas. Each is a secret, because it may hold a password.
fn urls(f: &Field<'_, '_>) -> Vec<Secret> {
    let Some(list) = f.secret("redis://127.0.0.1:6379") else { return Vec::new() };
    let urls: Vec<_> = list.expose().split(',').map(|url| Secret::new(url.trim())).collect();
    if let Some(rule) = urls.iter().find_map(fault) {
        f.secret_problem(rule, FIX);
    } else if urls.iter().any(|url| scheme(url) != scheme(&urls[0])) {
        f.secret_problem("mixes URLs with and without TLS", "use either redis:// or rediss:// for all");
    }
    urls
}

fn scheme(url: &Secret) -> Option<String> {
    url::Url::parse(url.expose()).ok().map(|url| url.scheme().to_owned())
}

/// Returns the fault of a store's URL, without showing the URL. `None` if the URL is valid.
fn fault(url: &Secret) -> Option<&'static str> {
    match url::Url::parse(url.expose()) {
        Ok(url) if matches!(url.scheme(), "redis" | "rediss") && url.has_host() => {
            let database = url.path().trim_start_matches('/');
            if url.fragment().is_some() || url.query().is_some() {
                Some("has a query or a fragment, which are not supported")
            } else if !database.is_empty() && database.parse::<u16>().is_err() {
                Some("has a path that is not a database number")
            } else {
                None
            }
        }
        _ => Some("expected URLs with redis:// or rediss:// and a host, separated by commas"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_urls_are_checked() {
        for (url, fine) in [
            ("redis://127.0.0.1:6379", true),
            ("redis://user:p%40ss@store.example", true),
            ("rediss://[::1]:6380/3", true),
            ("http://127.0.0.1:6379", false),
            ("redis://", false),
            ("127.0.0.1:6379", false),
            ("rediss://a/x", false),
            ("rediss://a/#insecure", false),
            ("unix:/run/redis.sock", false),
        ] {
            assert_eq!(fault(&Secret::new(url)).is_none(), fine, "{url}");
        }
    }
}
