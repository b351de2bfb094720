//! The status page: an HTML document that contains its style and scripts, and the event stream that updates it.
//!
//! The document is put together from `page.html`, `page.css` and the scripts. It loads nothing from other hosts.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::extract;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::stream;

use super::AdminState;
use super::control::AdminError;
use crate::sha256::sha256;

/// The time after which a page reconnects when its event stream has ended.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(
    include_str!("page/format.js"),
    include_str!("page/charts.js"),
    include_str!("page/flow.js"),
    include_str!("page/tables.js"),
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

/// Answers `GET /api/events`. The first event is `all`, with all data of the page. Afterwards an event `tick` is
/// sent once a second, and soon after the health of a node has changed. Answers 503 if
/// [`MAX_STREAMS`](super::MAX_STREAMS) streams are open.
pub(super) async fn events(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    let Ok(permit) = Arc::clone(&state.stream_permits).try_acquire_owned() else {
        let why = "too many event streams are open; poll /api/status instead";
        return AdminError::new(StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let ticks = state.ticks.subscribe();
    let all = Event::default().event("all").data(state.full_snapshot()).retry(RECONNECT_DELAY);
    // The stream holds the permit until it is dropped.
    let events =
        stream::unfold((Some(all), ticks, state, permit), |(all, mut ticks, state, permit)| async move {
            let event = if let Some(all) = all {
                all
            } else {
                state.stop.run_until_cancelled(ticks.changed()).await?.ok()?;
                let tick = Arc::clone(&ticks.borrow_and_update());
                Event::default().event("tick").data(&*tick)
            };
            Some((Ok::<_, Infallible>(event), (None, ticks, state, permit)))
        });
    Sse::new(events).into_response()
}
