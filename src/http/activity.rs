//! Tracks the requests of a connection that hyper serves, until their answers are written to the socket.
//!
//! hyper drops a body once it has taken the body's last bytes. These bytes may reach the client much later. The permits
//! that limit the requests in flight are therefore kept until the socket is flushed. Over HTTP/2 a client may read some
//! answers and ignore others, so the progress of each answer is recorded separately.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::Response;
use hyper::body::{Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::in_flight::InFlightPermit;
use super::permits::Http2Permit;

/// The maximum length of a frame given to hyper over HTTP/2, in bytes. hyper queues a frame even if the client reads
/// nothing, and asks for the next frame when its queue has space. With short frames, hyper never queues a whole long
/// answer.
const FRAME_BYTES: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdleAction {
    Keep,
    /// Closes the connection with a GOAWAY, because it has been idle for too long.
    Close,
    /// Drops the connection, because the client does not read an answer.
    Abort,
}

#[derive(Default)]
pub(super) struct ConnectionActivity(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of request heads read from the connection so far.
    heads: u64,
    /// The number of requests whose answers are not finished.
    answering: usize,
    /// The highest value of `answering` so far. HTTP/2 writes concurrent answers in turn, so an answer may wait
    /// for as many others.
    peak_answering: u32,
    /// The time since which the connection has no request. `None` while it has one.
    quiet_since: Option<Instant>,
    /// The time since which a part of the next head has arrived over HTTP/1.1.
    head_since: Option<Instant>,
    /// True if bytes have come that may be such a part.
    has_bytes: bool,
    is_http2: bool,
    /// The time of the last progress of each unfinished HTTP/2 answer, by request number.
    last_progress: BTreeMap<u64, Instant>,
    /// The permits of requests whose answers are finished. hyper has taken the last bytes of these answers, but has not
    /// flushed them to the socket yet.
    unwritten: Vec<HeldPermits>,
}

/// The permits that a request holds until its answer is written. The first counts towards `server.max_in_flight`, the
/// second towards the limit on HTTP/2 requests.
type HeldPermits = (Option<InFlightPermit>, Option<Http2Permit>);

/// A request that is being answered. Dropping the value marks the end of the request, answered or not.
pub(super) struct RequestGuard {
    activity: Arc<ConnectionActivity>,
    number: u64,
    is_http2: bool,
    permits: Mutex<HeldPermits>,
}

impl ConnectionActivity {
    /// Begins the connection at `now`. The timeout for a request head runs from now, so it also applies to a client that
    /// sends nothing.
    pub(super) fn start(&self, now: Instant) {
        let mut state = self.state();
        (state.quiet_since, state.head_since) = (Some(now), Some(now));
    }

    /// Marks the connection as HTTP/2, and as idle since `now`.
    pub(super) fn set_http2(&self, now: Instant) {
        let mut state = self.state();
        state.is_http2 = true;
        state.quiet_since = Some(now);
    }

    pub(super) fn begin(self: &Arc<Self>) -> Arc<RequestGuard> {
        let mut state = self.state();
        state.heads += 1;
        state.answering += 1;
        state.peak_answering = state.peak_answering.max(u32::try_from(state.answering).unwrap_or(u32::MAX));
        (state.quiet_since, state.head_since, state.has_bytes) = (None, None, false);
        let (number, is_http2) = (state.heads, state.is_http2);
        Arc::new(RequestGuard { activity: Arc::clone(self), number, is_http2, permits: Mutex::default() })
    }

    pub(super) fn unfinished(&self) -> usize {
        let state = self.state();
        state.answering + state.unwritten.len()
    }

    /// Records that bytes of the next head have arrived, unless a request is being answered.
    pub(super) fn note_bytes(&self) {
        let mut state = self.state();
        state.has_bytes = state.quiet_since.is_some();
    }

    /// Returns the time by which the next head must have arrived, and true if a part of it has. A head may take the
    /// time `head`, and a connection may wait the time `idle` for its first byte. `None` while a request is being
    /// answered, and over HTTP/2, where heads may come at any time.
    pub(super) fn head_deadline(&self, head: Duration, idle: Duration) -> Option<(Instant, bool)> {
        let mut state = self.state();
        let quiet_since = state.quiet_since.filter(|_| !state.is_http2)?;
        // Most heads come whole, so the clock is read only for the others.
        if std::mem::take(&mut state.has_bytes) {
            state.head_since.get_or_insert_with(Instant::now);
        }
        Some(state.head_since.map_or((quiet_since + idle, false), |since| (since + head, true)))
    }

    /// Frees the permits of requests whose answers are finished. Must be called after each flush of the socket.
    pub(super) fn flushed(&self) {
        let written = std::mem::take(&mut self.state().unwritten);
        drop(written);
    }

    /// Returns the action to take on an HTTP/2 connection at the time `now`.
    ///
    /// A connection without requests may stay open for `idle`. At least one unfinished answer must progress within
    /// `stall`. Each unfinished answer must progress within a longer time: `stall` multiplied by the highest
    /// number of concurrent answers so far.
    pub(super) fn idle_action(&self, now: Instant, idle: Duration, stall: Duration) -> IdleAction {
        let state = self.state();
        let is_past = |at: &Instant, time| now.saturating_duration_since(*at) >= time;
        let (newest, oldest) = (state.last_progress.values().max(), state.last_progress.values().min());
        let longest_turn = stall.saturating_mul(state.peak_answering);
        if newest.is_some_and(|at| is_past(at, stall)) || oldest.is_some_and(|at| is_past(at, longest_turn)) {
            IdleAction::Abort
        } else if state.quiet_since.is_some_and(|since| now.saturating_duration_since(since) >= idle) {
            IdleAction::Close
        } else {
            IdleAction::Keep
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl RequestGuard {
    /// Keeps the permit of the request's HTTP/2 stream until the answer is written.
    pub(super) fn hold(&self, permit: Http2Permit) {
        self.permits().1 = Some(permit);
    }

    pub(super) fn keep(&self, permit: Option<InFlightPermit>) {
        self.permits().0 = permit;
    }

    /// Wraps the answer to the request in a body that keeps the request's permits until the answer is written.
    pub(super) fn answer(self: Arc<Self>, response: Response<Body>) -> Response<PacedBody> {
        self.note_progress();
        response.map(|body| PacedBody { body, ahead: Bytes::new(), guard: self })
    }

    fn permits(&self) -> MutexGuard<'_, HeldPermits> {
        self.permits.lock()
    }

    /// Records that the answer progresses now. Has no effect over HTTP/1.1.
    fn note_progress(&self) {
        if self.is_http2 {
            self.activity.state().last_progress.insert(self.number, Instant::now());
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let permits = std::mem::take(&mut *self.permits());
        let mut state = self.activity.state();
        state.answering = state.answering.saturating_sub(1);
        if permits.0.is_some() || permits.1.is_some() {
            state.unwritten.push(permits);
        }
        state.last_progress.remove(&self.number);
        state.quiet_since = (state.answering == 0).then(Instant::now);
    }
}

/// The body of an answer. Over HTTP/2 the body yields frames of at most [`FRAME_BYTES`]. Dropping the body ends the
/// request.
pub(super) struct PacedBody {
    body: Body,
    /// The bytes that were taken from `body` and not given to hyper yet.
    ahead: Bytes,
    guard: Arc<RequestGuard>,
}

impl hyper::body::Body for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.guard.is_http2 {
            return Pin::new(&mut self.body).poll_frame(cx);
        }
        self.guard.note_progress();
        if self.ahead.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => self.ahead = data,
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                None => return Poll::Ready(None),
            }
        }
        let most = self.ahead.len().min(FRAME_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.ahead.split_to(most)))))
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, ahead) = (self.body.size_hint(), self.ahead.len() as u64);
        let mut both = SizeHint::new();
        both.set_lower(body.lower() + ahead);
        if let Some(upper) = body.upper() {
            both.set_upper(upper + ahead);
        }
        both
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use hyper::body::Body as _;

    use super::*;

    const IDLE: Duration = Duration::from_mins(2);
    const STALL: Duration = Duration::from_secs(30);

    fn http2_activity() -> Arc<ConnectionActivity> {
        let activity = Arc::new(ConnectionActivity::default());
        activity.set_http2(Instant::now());
        activity
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_quiet_connection_ends() {
        let activity = http2_activity();
        let idle_action = |activity: &ConnectionActivity| activity.idle_action(Instant::now(), IDLE, STALL);
        tokio::time::advance(IDLE / 2).await;
        assert_eq!(idle_action(&activity), IdleAction::Keep);
        let (one, other) = (activity.begin(), activity.begin());
        tokio::time::advance(IDLE * 2).await;
        assert_eq!(idle_action(&activity), IdleAction::Keep, "calls take as long as they take");
        drop(one);
        assert_eq!(idle_action(&activity), IdleAction::Keep);
        // A request that the client resets ends, too.
        drop(other);
        assert_eq!(idle_action(&activity), IdleAction::Keep);
        tokio::time::advance(IDLE).await;
        assert_eq!(idle_action(&activity), IdleAction::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn one_answer_not_taken_ends_the_connection() {
        let activity = http2_activity();
        let long = || Response::new(Body::from(vec![7; 10 * FRAME_BYTES]));
        let (left, mut taken) = (activity.begin().answer(long()), activity.begin().answer(long()));
        // With two concurrent answers, one may stall for twice the time.
        for _ in 0..8 {
            assert_eq!(activity.idle_action(Instant::now(), IDLE, STALL), IdleAction::Keep);
            tokio::time::advance(STALL / 4).await;
            assert!(taken.body_mut().frame().await.is_some());
        }
        assert_eq!(activity.idle_action(Instant::now(), IDLE, STALL), IdleAction::Abort);
        drop(left);
        assert_eq!(activity.idle_action(Instant::now(), IDLE, STALL), IdleAction::Keep);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_taken_slowly_in_turn_continue() {
        let activity = http2_activity();
        let long = || Response::new(Body::from(vec![7; 4 * FRAME_BYTES]));
        let mut answers: Vec<_> = (0..32).map(|_| activity.begin().answer(long())).collect();
        for _ in 0..4 {
            for answer in &mut answers {
                tokio::time::advance(STALL / 2).await;
                assert_eq!(activity.idle_action(Instant::now(), IDLE, STALL), IdleAction::Keep);
                assert!(answer.body_mut().frame().await.is_some());
            }
        }
        // Without progress of any answer, a single stall period is the limit.
        tokio::time::advance(STALL).await;
        assert_eq!(activity.idle_action(Instant::now(), IDLE, STALL), IdleAction::Abort);
    }

    #[tokio::test]
    async fn requests_that_held_nothing_are_open_no_more() {
        let activity = http2_activity();
        for _ in 0..5 {
            drop(activity.begin());
        }
        assert_eq!(activity.unfinished(), 0);
    }

    #[tokio::test]
    async fn http2_answers_go_out_in_frames() {
        let body: Vec<u8> = (0..40_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        let mut answer = http2_activity().begin().answer(Response::new(Body::from(body.clone()))).into_body();
        let (mut sizes, mut whole) = (Vec::new(), Vec::new());
        loop {
            assert_eq!(answer.size_hint().exact(), Some((body.len() - whole.len()) as u64));
            let Some(frame) = answer.frame().await else { break };
            let data = frame.unwrap().into_data().unwrap();
            sizes.push(data.len());
            whole.extend_from_slice(&data);
        }
        assert!(answer.is_end_stream());
        assert_eq!((sizes, whole), (vec![FRAME_BYTES, FRAME_BYTES, 40_000 - 2 * FRAME_BYTES], body));
    }
}
