//! The requests of a connection that hyper serves: how many are being answered, and which answers are not written yet.
//!
//! hyper drops a body when it has taken the last of its bytes, which may be long before the client has them. The permit of
//! a request therefore passes to the socket, and is returned when the socket is flushed. HTTP/2 has many requests at once,
//! and a client may leave one answer lying while it takes others. There each answer has a clock of its own.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::Response;
use hyper::body::{Frame, SizeHint};
use hyper::header::CONNECTION;
use tokio::time::Instant;

use super::in_flight::InFlightPermit;
use super::places::StreamPermit;

/// HTTP/2 hands what it is given to its own queue, whether or not the client takes any: a frame's worth at a time, it is
/// asked for more only when there is room, and no queue holds a whole answer.
const FRAME_BYTES: usize = 16 * 1024;

/// The action that the state of an HTTP/2 connection asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdleAction {
    /// Keep the connection open.
    Keep,
    /// Close it with notice: nothing has been asked for long.
    Close,
    /// Drop it: the client takes nothing of an answer.
    Abort,
}

/// The activity of one connection.
#[derive(Default)]
pub(super) struct ConnectionActivity(Mutex<State>);

#[derive(Default)]
struct State {
    /// Requests whose head was read.
    heads: u64,
    /// Requests that are not answered to the end.
    answering: usize,
    /// The most that `answering` has been. HTTP/2's answers go out in turn, so each waits for that many.
    crowd: u32,
    /// The time since which HTTP/2 is spoken and no request is being answered.
    quiet: Option<Instant>,
    /// HTTP/2 is spoken.
    multiplexed: bool,
    /// Of HTTP/2: the time at which the client last took something of each unfinished answer.
    taken: BTreeMap<u64, Instant>,
    /// True if HTTP/2 is spoken and a request of the connection had a good key.
    key_shown: bool,
    /// True if HTTP/1.1 is spoken and an answer has said that the connection closes.
    last_answer: bool,
    /// The permits of answers that hyper has, but the kernel has not yet.
    unwritten: Vec<Holds>,
}

/// The permits that a request holds until its answer is written: of those in flight, and of HTTP/2's.
type Holds = (Option<Arc<InFlightPermit>>, Option<StreamPermit>);

/// A request that was begun. To drop the guard is its end, answered or not.
pub(super) struct RequestGuard {
    activity: Arc<ConnectionActivity>,
    number: u64,
    multiplexed: bool,
    holds: Holds,
}

impl ConnectionActivity {
    /// Notes that HTTP/2 is spoken from now on: heads come whenever the client likes.
    pub(super) fn multiplex(&self, now: Instant) {
        let mut state = self.state();
        state.multiplexed = true;
        state.quiet = Some(now);
    }

    /// Notes that a request head was read.
    pub(super) fn begin(self: &Arc<Self>) -> RequestGuard {
        let mut state = self.state();
        state.heads += 1;
        state.answering += 1;
        state.crowd = state.crowd.max(u32::try_from(state.answering).unwrap_or(u32::MAX));
        state.quiet = None;
        let (number, multiplexed) = (state.heads, state.multiplexed);
        RequestGuard { activity: Arc::clone(self), number, multiplexed, holds: Holds::default() }
    }

    /// Returns true if more than `most` requests are not answered to the end, and no key was shown that accounts for them.
    pub(super) fn wants_key(&self, most: usize) -> bool {
        let state = self.state();
        !state.key_shown && state.answering + state.unwritten.len() > most
    }

    /// Notes that a request of the connection had a good key.
    pub(super) fn key_was_shown(&self) {
        self.state().key_shown = true;
    }

    /// Returns the number of the head that the client is to send now; `None` while an answer is due, and over HTTP/2.
    pub(super) fn awaited_head(&self) -> Option<u64> {
        let state = self.state();
        (state.answering == 0 && !state.multiplexed).then_some(state.heads)
    }

    /// Returns true if an answer over HTTP/1.1 has said that it is the connection's last. `reads_no_further` says that hyper has not
    /// asked for another request since its last writing: hyper then ends the connection on its own account, after a
    /// caller's own close, over HTTP/1.0, or because it refused a head.
    pub(super) fn last_answer_is_given(&self, reads_no_further: bool) -> bool {
        let state = self.state();
        !state.multiplexed && (state.last_answer || reads_no_further)
    }

    /// Returns the permits of all that hyper has written: the kernel has it now.
    pub(super) fn flushed(&self) {
        let written = std::mem::take(&mut self.state().unwritten);
        drop(written);
    }

    /// Returns what to do with a connection of HTTP/2 that may be quiet for `idle`. It may take nothing of any answer for
    /// `stall`, and nothing of one for as often as that as there were answers at once.
    pub(super) fn idle_action(&self, now: Instant, idle: Duration, stall: Duration) -> IdleAction {
        let state = self.state();
        let lies = |at: &Instant, time| now.saturating_duration_since(*at) >= time;
        let (newest, oldest) = (state.taken.values().max(), state.taken.values().min());
        let its_turns = stall.saturating_mul(state.crowd);
        if newest.is_some_and(|at| lies(at, stall)) || oldest.is_some_and(|at| lies(at, its_turns)) {
            IdleAction::Abort
        } else if state.quiet.is_some_and(|since| now.saturating_duration_since(since) >= idle) {
            IdleAction::Close
        } else {
            IdleAction::Keep
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestGuard {
    /// Keeps `permit` until the answer is written.
    pub(super) fn hold(&mut self, permit: StreamPermit) {
        self.holds.1 = Some(permit);
    }

    /// Returns the answer, which keeps its permits until it is written.
    pub(super) fn answer(mut self, mut response: Response<Body>) -> Response<PacedBody> {
        self.holds.0 = response.extensions_mut().remove::<Arc<InFlightPermit>>();
        self.taken();
        if response.headers().get(CONNECTION).is_some_and(|value| value == "close") {
            self.activity.state().last_answer = true;
        }
        response.map(|body| PacedBody { body, ahead: Bytes::new(), guard: self })
    }

    /// The client takes something of the answer.
    fn taken(&self) {
        if self.multiplexed {
            self.activity.state().taken.insert(self.number, Instant::now());
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        state.answering = state.answering.saturating_sub(1);
        if self.holds.0.is_some() || self.holds.1.is_some() {
            state.unwritten.push(std::mem::take(&mut self.holds));
        }
        if self.multiplexed {
            state.taken.remove(&self.number);
            state.quiet = (state.answering == 0).then(Instant::now);
        }
    }
}

/// An answer's body. To drop it ends the request.
pub(super) struct PacedBody {
    body: Body,
    /// Bytes that the body gave and HTTP/2 has not taken yet.
    ahead: Bytes,
    guard: RequestGuard,
}

impl hyper::body::Body for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.guard.multiplexed {
            return Pin::new(&mut self.body).poll_frame(cx);
        }
        self.guard.taken();
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

    fn spoken() -> Arc<ConnectionActivity> {
        let activity = Arc::new(ConnectionActivity::default());
        activity.multiplex(Instant::now());
        activity
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_connection_ends_and_a_busy_one_does_not() {
        let activity = spoken();
        let idle_action = |activity: &ConnectionActivity| activity.idle_action(Instant::now(), IDLE, STALL);
        tokio::time::advance(IDLE / 2).await;
        assert_eq!(idle_action(&activity), IdleAction::Keep);
        let (one, other) = (activity.begin(), activity.begin());
        tokio::time::advance(IDLE * 2).await;
        assert_eq!(idle_action(&activity), IdleAction::Keep, "calls take as long as they take");
        drop(one);
        assert_eq!(idle_action(&activity), IdleAction::Keep);
        // A client that resets a call ends its turn as well.
        drop(other);
        assert_eq!(idle_action(&activity), IdleAction::Keep);
        tokio::time::advance(IDLE).await;
        assert_eq!(idle_action(&activity), IdleAction::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_left_lying_is_the_end_though_others_are_taken() {
        let activity = spoken();
        let long = || Response::new(Body::from(vec![7; 10 * FRAME_BYTES]));
        let (left, mut taken) = (activity.begin().answer(long()), activity.begin().answer(long()));
        // Both may wait for each other, so one may lie for twice the time.
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
    async fn answers_that_are_taken_slowly_in_turn_go_on() {
        let activity = spoken();
        let long = || Response::new(Body::from(vec![7; 4 * FRAME_BYTES]));
        let mut answers: Vec<_> = (0..32).map(|_| activity.begin().answer(long())).collect();
        for _ in 0..4 {
            for answer in &mut answers {
                tokio::time::advance(STALL / 2).await;
                assert_eq!(activity.idle_action(Instant::now(), IDLE, STALL), IdleAction::Keep);
                assert!(answer.body_mut().frame().await.is_some());
            }
        }
        // Nothing of any is soon enough, however many they are.
        tokio::time::advance(STALL).await;
        assert_eq!(activity.idle_action(Instant::now(), IDLE, STALL), IdleAction::Abort);
    }

    #[tokio::test]
    async fn requests_that_held_nothing_are_open_no_more() {
        let activity = spoken();
        for _ in 0..5 {
            drop(activity.begin());
        }
        assert!(!activity.wants_key(0));
    }

    #[tokio::test]
    async fn over_http_2_an_answer_goes_out_in_frames_and_whole() {
        let body: Vec<u8> = (0..40_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        let mut answer = spoken().begin().answer(Response::new(Body::from(body.clone()))).into_body();
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
