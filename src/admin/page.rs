//! The status page: one document with its style and script inside, and the events that keep it live.
//!
//! Asks no foreign host, works offline, and is told once a second what changed. Its parts are files of their own
//! (`page.html`, `page.css` and scripts) that become one document here.

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
use sha2::{Digest, Sha256};

use super::State;
use super::control::Refusal;

/// How long a page waits before it asks for events again, once they have ended.
const AGAIN: Duration = Duration::from_secs(1);

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(
    include_str!("page/words.js"),
    include_str!("page/charts.js"),
    include_str!("page/flow.js"),
    include_str!("page/tables.js"),
    include_str!("page/page.js")
);

static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page/page.html").replace("/* page.css */", STYLE).replace("/* page.js */", SCRIPT)
});

/// Lets the page run its own script and style, by their hashes, talk to us alone, and be framed by nobody.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    HeaderValue::try_from(policy).expect("base64 is visible ASCII")
});

/// `GET /`
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

/// `GET /api/events`: an event `all` with everything, then an event `tick` each second, and
/// one at once when a node's standing changes. 503 when too many listen.
pub(super) async fn events(extract::State(state): extract::State<Arc<State>>) -> Response {
    let Ok(seat) = Arc::clone(&state.viewers).try_acquire_owned() else {
        let why = "too many pages are open; poll /api/status";
        return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let ticks = state.ticks.subscribe();
    let all = Event::default().event("all").data(state.everything()).retry(AGAIN);
    // The seat is held by the stream, and given back when the stream is dropped.
    let events =
        stream::unfold((Some(all), ticks, state, seat), |(all, mut ticks, state, seat)| async move {
            let event = if let Some(all) = all {
                all
            } else {
                state.stop.run_until_cancelled(ticks.changed()).await?.ok()?;
                let tick = Arc::clone(&ticks.borrow_and_update());
                Event::default().event("tick").data(&*tick)
            };
            Some((Ok::<_, Infallible>(event), (None, ticks, state, seat)))
        });
    Sse::new(events).into_response()
}
