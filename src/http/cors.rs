//! The CORS headers of responses. `server.cors_origins` lists the origins whose scripts may call from a browser.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HeaderMap, HeaderValue, VARY,
};

const METHODS: HeaderValue = HeaderValue::from_static("OPTIONS, POST");
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("86400");
/// The response headers that a script may read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Cache-Status, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, X-Slotfront-Error, X-Slotfront-Upstream",
);

/// Returns true if scripts of `origin` may call.
pub(super) fn is_allowed(allowed: &[String], origin: &[u8]) -> bool {
    allowed.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin)
}

/// Returns true if the answers to two origins differ, so that each answer, also one without CORS headers, needs
/// `Vary: Origin`.
pub(super) fn by_origin(allowed: &[String]) -> bool {
    !allowed.iter().any(|allowed| allowed == "*")
}

/// Adds the CORS headers to `headers`, the header fields of a response. For a request without `Origin`, or with one
/// outside `allowed`, adds `Vary` only. An allowed origin may send any request header, as on a node.
pub(super) fn apply(
    allowed: &[String],
    origin: Option<&HeaderValue>,
    asked_headers: Option<HeaderValue>,
    headers: &mut HeaderMap,
) {
    let by_origin = by_origin(allowed);
    if by_origin {
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
    let Some(origin) = origin.filter(|origin| is_allowed(allowed, origin.as_bytes())) else { return };
    let allow = if by_origin { origin.clone() } else { HeaderValue::from_static("*") };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allow);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    if let Some(asked) = asked_headers {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_answered_by_the_settings() {
        for (allowed, origin, expected) in [
            (&["*"][..], Some("https://a.example"), Some("*")),
            (&["https://a.example"][..], Some("https://a.example"), Some("https://a.example")),
            (&["https://a.example"][..], Some("https://b.example"), None),
            (&["https://a.example"][..], Some("null"), None),
            (&["*"][..], None, None),
            (&[][..], Some("https://a.example"), None),
        ] {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            let origin = origin.map(HeaderValue::from_static);
            let mut headers = HeaderMap::new();
            apply(&allowed, origin.as_ref(), None, &mut headers);
            let got = headers.get(ACCESS_CONTROL_ALLOW_ORIGIN).map(|v| v.to_str().unwrap());
            assert_eq!(got, expected, "{allowed:?} {origin:?}");
        }
    }
}
