//! `[shared]`: the store that several gateways share. Without a `url` no store is used.

use crate::config::bounds::{TIMEOUT, ca_file, is_name};
use crate::config::reader::TableReader;
use crate::config::{Secret, SharedSettings, defaults};

const FIX: &str =
    "write \"redis://user:password@10.0.0.5:6379\" (rediss:// with TLS), \"env:NAME\" or \"file:PATH\"";

/// Reads the section `[shared]`. `None` without a `url`; the other settings are checked nevertheless.
pub(super) fn read(r: &TableReader<'_>) -> Option<SharedSettings> {
    let url = r.secret("url");
    let urls = url.as_ref().map(|url| addresses(r, url)).unwrap_or_default();
    let namespace = r.get("namespace", defaults::SHARED_NAMESPACE.to_owned());
    if !is_name(&namespace) {
        let rule = "expected letters, digits, '-', '_' and '.', at most 64 of them";
        r.problem("namespace", Some(format!("{namespace:?}")), rule, "write it like \"slotfront\"");
    }
    let shared = SharedSettings {
        urls,
        cluster: r.get("cluster", defaults::SHARED_CLUSTER),
        namespace,
        timeout: r.within("timeout", defaults::SHARED_TIMEOUT, TIMEOUT),
        ca_file: ca_file(r),
        secret: r.secret("secret"),
    };
    url.is_some().then_some(shared)
}

/// Reads a list of URLs separated by commas. Each is a secret, because it may hold a password.
fn addresses(r: &TableReader<'_>, list: &Secret) -> Vec<Secret> {
    let urls: Vec<_> = list.expose().split(',').map(|url| Secret::new(url.trim())).collect();
    if let Some(rule) = urls.iter().find_map(fault) {
        r.problem("url", Some("***".to_owned()), rule, FIX);
    } else if urls.iter().any(|url| scheme(url) != scheme(&urls[0])) {
        let rule = "mixes URLs with and without TLS";
        r.problem("url", Some("***".to_owned()), rule, "use either redis:// or rediss:// for all");
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
