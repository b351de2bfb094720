//! The check of the `Host` header, which prevents DNS rebinding.
//!
//! The owner of a web page can point its DNS name at 127.0.0.1, and then read this listener from a visitor's browser.
//! Such a name must be in public DNS, so names that public DNS can have are refused. Addresses and private names are
//! accepted, but no names in `.local`, which any device of the visitor's network can give itself (RFC 6762).

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::http::has_one_host;

/// The suffixes that public DNS does not have, by RFC 6761, ICANN, Kubernetes and RFC 8375.
const PRIVATE: [&str; 4] = [".localhost", ".internal", ".svc", ".home.arpa"];

/// Refuses a request with 403 if its host may be a name in public DNS, and with 400 if it does not say its host. A request
/// by HTTP/1.0 without a host is served, because it does not come from a browser.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    if !has_one_host(request.version(), request.headers()) {
        return (StatusCode::BAD_REQUEST, "400: expected one Host header\n").into_response();
    }
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    match host.or_else(|| request.uri().host()) {
        Some(host) if !is_private(host) => {
            let text = "403: the admin listener accepts addresses and private host names only; a proxy in front of it \
                        should send `Host: localhost`\n";
            (StatusCode::FORBIDDEN, text).into_response()
        }
        _ => next.run(request).await,
    }
}

/// Returns true if `host`, with or without a port, is an address or a name that public DNS cannot have.
fn is_private(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if address.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.to_ascii_lowercase();
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let single = !name.is_empty() && name.bytes().all(word);
    single || PRIVATE.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_host_names_are_refused() {
        for host in
            ["127.0.0.1:9899", "10.0.0.7", "[::1]:9899", "[::1]", "localhost:9899", "slotfront", "a.SVC:80"]
        {
            assert!(is_private(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9899",
            "127.0.0.1.evil.example",
            "a.local",
            "",
            ":80",
            "a b",
            "x.com.",
        ] {
            assert!(!is_private(host), "{host}");
        }
    }
}
