//! The status page: an HTML document that contains its style and scripts, and asks `/api/status` for its numbers.
//!
//! The document is put together from `page.html`, `page.css` and the scripts. It loads nothing from other hosts.

use std::sync::LazyLock;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::config::sha256;

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(
    include_str!("page/format.js"),
    include_str!("page/history.js"),
    include_str!("page/charts.js"),
    include_str!("page/flow.js"),
    include_str!("page/tables.js"),
    include_str!("page/actions.js"),
    include_str!("page/page.js")
);

static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page/page.html").replace("/* page.css */", STYLE).replace("/* page.js */", SCRIPT)
});

/// The content security policy of the status page. It allows the page's own script and style by their hashes, and
/// connections to the admin listener. It forbids framing.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |text: &str| BASE64_STANDARD.encode(sha256(text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    HeaderValue::try_from(policy).expect("base64 is visible ASCII")
});

/// Answers `GET /` with the status page.
pub(super) async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, POLICY.clone()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, PAGE.as_str()).into_response()
}
