//! Which `Host` the admin listener answers to.
//!
//! A web page of a stranger can point its own name at 127.0.0.1 and have a browser read what answers there (DNS
//! rebinding). Only a name in public DNS can do that, so those are refused, and addresses and private names are not.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Ends of names that public DNS never has: RFC 6761, RFC 6762, ICANN's `internal`, Kubernetes services, RFC 8375.
const PRIVATE: [&str; 5] = [".localhost", ".local", ".internal", ".svc", ".home.arpa"];

/// Refuses requests whose `Host` may be a public name with 403; one without `Host` is from no browser, and passes.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    match host.or_else(|| request.uri().host()) {
        Some(host) if !is_private(host) => {
            let text = "403: this listener answers to addresses and private names only; a proxy in front of it \
                        should send `Host: localhost`\n";
            (StatusCode::FORBIDDEN, text).into_response()
        }
        _ => next.run(request).await,
    }
}

/// Whether `host`, with or without a port, is an address or a name that public DNS cannot have.
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
    fn addresses_and_private_names_pass_and_public_names_do_not() {
        for host in
            ["127.0.0.1:9899", "10.0.0.7", "[::1]:9899", "[::1]", "localhost:9899", "slotfront", "a.LOCAL:80"]
        {
            assert!(is_private(host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:9899", "127.0.0.1.evil.example", "", ":80", "a b", "x.com."]
        {
            assert!(!is_private(host), "{host}");
        }
    }
}
