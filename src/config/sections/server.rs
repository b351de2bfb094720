//! `[server]`: the listeners and their limits.

use std::ops::RangeInclusive;

use crate::config::bounds::{TIMEOUT, size};
use crate::config::reader::TableReader;
use crate::config::{Server, TlsFiles, defaults};

/// The bounds of the limits on connections and on requests in flight. Zero would serve nobody, and a million
/// is beyond one machine.
const COUNT: RangeInclusive<usize> = 1..=1_000_000;

/// Reads the section `[server]`.
pub(super) fn read(r: &TableReader<'_>) -> Server {
    let trusted_proxies = r.list("trusted_proxies").unwrap_or_default();
    let proxy_protocol = r.get("proxy_protocol", defaults::PROXY_PROTOCOL);
    if proxy_protocol && trusted_proxies.is_empty() {
        let rule = "needs server.trusted_proxies: only these peers may send PROXY protocol headers";
        r.problem(
            "proxy_protocol",
            Some("true".to_owned()),
            rule,
            "list the balancer's addresses in server.trusted_proxies",
        );
    }
    Server {
        listen: r.get("listen", defaults::LISTEN),
        admin_listen: r.get("admin_listen", defaults::ADMIN_LISTEN),
        max_body: size(r, "max_body", defaults::MAX_BODY, 256..=64 << 20),
        max_batch: r.within("max_batch", defaults::MAX_BATCH, 1..=10_000),
        max_connections: r.within("max_connections", defaults::MAX_CONNECTIONS, COUNT),
        max_in_flight: r.within("max_in_flight", defaults::MAX_IN_FLIGHT, COUNT),
        max_outgoing: size(r, "max_outgoing", defaults::MAX_OUTGOING, 1 << 20..=1 << 40),
        header_timeout: r.within("header_timeout", defaults::HEADER_TIMEOUT, TIMEOUT),
        body_timeout: r.within("body_timeout", defaults::BODY_TIMEOUT, TIMEOUT),
        write_timeout: r.within("write_timeout", defaults::WRITE_TIMEOUT, TIMEOUT),
        request_timeout: r.within("request_timeout", defaults::REQUEST_TIMEOUT, TIMEOUT),
        drain_timeout: r.within("drain_timeout", defaults::DRAIN_TIMEOUT, TIMEOUT),
        cors_origins: cors_origins(r),
        trusted_proxies,
        client_ip_header: r.get("client_ip_header", defaults::CLIENT_IP_HEADER),
        proxy_protocol,
        tls: tls(&r.table("tls")),
    }
}

/// Reads the paths of the certificate and its key. `None` if neither is set. If only one is set, records a
/// problem. The listener checks the contents of the two files.
fn tls(r: &TableReader<'_>) -> Option<TlsFiles> {
    let (cert, key) = (r.file("cert"), r.file("key"));
    let missing = match (&cert, &key) {
        (Some(_), None) => "key",
        (None, Some(_)) => "cert",
        _ => return cert.zip(key).map(|(cert, key)| TlsFiles { cert, key }),
    };
    let rule = "expected a certificate and its key, or neither";
    r.problem(missing, None, rule, "set both files, in PEM");
    None
}

/// Reads `*`, or origins as browsers write them: scheme, host, and a port that is not the scheme's default.
fn cors_origins(r: &TableReader<'_>) -> Vec<String> {
    const KEY: &str = "cors_origins";
    let origins: Vec<String> = r.list(KEY).unwrap_or_else(|| vec![defaults::CORS_ORIGIN.to_owned()]);
    for origin in &origins {
        let as_browser = |url: &url::Url| url.origin().ascii_serialization() == *origin;
        let fine = origin == "*" || url::Url::parse(origin).is_ok_and(|url| as_browser(&url));
        if !fine {
            let rule = "expected \"*\" or an origin as a browser sends it: scheme and host, no path";
            r.problem(KEY, Some(format!("{origin:?}")), rule, "write it like \"https://app.example\"");
        }
    }
    origins
}
