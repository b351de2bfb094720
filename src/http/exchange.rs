//! What a connection's socket and the calls on it know of each other: whose turn it is, and what is not written yet.
//!
//! hyper lets go of a body when it has taken the last of its bytes, which may be long before the client has: a place
//! in flight is therefore given to the socket, and returned when the socket is flushed. HTTP/2 has many turns at once,
//! and a client may leave one answer lying while it takes others: there each answer has a clock of its own.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::Response;
use hyper::body::{Frame, SizeHint};
use hyper::header::CONNECTION;
use tokio::time::Instant;

use super::Front;
use super::outgoing::Load;
use super::reply::Pieces;
use super::streams::StreamPlace;
use crate::gateway::{Principal, SharePermit};

/// HTTP/2 hands what it is given to its own queue, whether or not the client takes any: a frame's worth at a time, it is
/// asked for more only when there is room, and no queue holds a whole answer.
const FRAME_BYTES: usize = 16 * 1024;

/// A request that is being served, until it is dropped.
pub(super) struct Place {
    /// The bytes of its answer; nothing as long as that is short. Given back before the place is.
    load: OnceLock<Box<Load>>,
    taken: Mutex<Option<Taken>>,
    /// What was `taken`, once calls that may outlive the request hold it, too.
    lasting: OnceLock<Lasting>,
}

/// One of the places in flight, and of the caller's share of them.
pub(super) struct Taken {
    _counted: Counted,
    _held: SharePermit,
}

/// A request's place for a call that goes on when its caller has gone.
pub(super) type Lasting = Arc<Option<Taken>>;

impl Place {
    /// A place, if one is free and `principal` may have it.
    pub(super) fn take(front: &Front, principal: &Principal) -> Option<Self> {
        let (counted, taken) = Counted::add(&front.in_flight);
        let held = principal.hold(front.config.server.max_in_flight.saturating_sub(taken))?;
        let taken = Mutex::new(Some(Taken { _counted: counted, _held: held }));
        Some(Self { load: OnceLock::new(), taken, lasting: OnceLock::new() })
    }

    /// The place, to be held by a call until that ends, and by the request until it is over.
    pub(super) fn lasting(&self) -> Lasting {
        let take = || Arc::new(self.taken.lock().unwrap_or_else(PoisonError::into_inner).take());
        Arc::clone(self.lasting.get_or_init(take))
    }

    /// What the request has of the budget for answers, once it needs some.
    pub(super) fn load(&self, front: &Front) -> &Load {
        self.load.get_or_init(|| Box::new(Load::new(&front.outgoing)))
    }

    /// Holds what `body` needs in place of all that its answers needed before.
    pub(super) fn holds_instead(&self, principal: &Principal, body: &Pieces) {
        if let Some(load) = self.load.get() {
            load.replace(principal, body);
        }
    }
}

/// One of the requests in flight. Their number is one for all cores, as its bound is, and the only one that every request
/// writes: whoever holds a place points at the number itself, so that nothing else is shared for it.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// One more, and how many there were before.
    fn add(in_flight: &Arc<AtomicUsize>) -> (Self, usize) {
        let before = in_flight.fetch_add(1, Ordering::Relaxed);
        (Self(Arc::clone(in_flight)), before)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection of HTTP/2 deserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deserves {
    /// To go on.
    More,
    /// A friendly end: nothing has been asked for long.
    End,
    /// To be cut: an answer lies untaken.
    Cut,
}

/// One connection's turns: the client sends a request head, then we answer, then the next.
#[derive(Default)]
pub(super) struct Exchange(Mutex<State>);

#[derive(Default)]
struct State {
    /// Requests whose head was read.
    heads: u64,
    /// Requests that are not answered to the end.
    answering: usize,
    /// The most that `answering` has been. HTTP/2's answers go out in turn, so each waits for that many.
    crowd: u32,
    /// Since when HTTP/2 is spoken and no request is being answered.
    quiet: Option<Instant>,
    /// HTTP/2 is spoken.
    multiplexed: bool,
    /// Of HTTP/2: when something of each unfinished answer was last taken.
    taken: BTreeMap<u64, Instant>,
    /// Of HTTP/2: a request of the connection had a good key.
    key_shown: bool,
    /// Of HTTP/1.1: an answer has said that the connection closes.
    last_answer: bool,
    /// Of answers that hyper has, but not yet the kernel.
    unwritten: Vec<Holds>,
}

/// The places that a request holds until its answer is written: among those in flight, and among HTTP/2's.
type Holds = (Option<Arc<Place>>, Option<StreamPlace>);

/// One request's turn; dropping it is its end, answered or not.
pub(super) struct Turn {
    exchange: Arc<Exchange>,
    number: u64,
    multiplexed: bool,
    holds: Holds,
}

impl Exchange {
    /// HTTP/2 is spoken from now on: heads come whenever the client likes.
    pub(super) fn multiplex(&self, now: Instant) {
        let mut state = self.state();
        state.multiplexed = true;
        state.quiet = Some(now);
    }

    /// A request head was read.
    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        let mut state = self.state();
        state.heads += 1;
        state.answering += 1;
        state.crowd = state.crowd.max(u32::try_from(state.answering).unwrap_or(u32::MAX));
        state.quiet = None;
        let (number, multiplexed) = (state.heads, state.multiplexed);
        Turn { exchange: Arc::clone(self), number, multiplexed, holds: Holds::default() }
    }

    /// True if more than `most` requests are not answered to the end, and no key was shown that accounts for them.
    pub(super) fn wants_key(&self, most: usize) -> bool {
        let state = self.state();
        !state.key_shown && state.answering + state.unwritten.len() > most
    }

    /// Notes that a request of the connection had a good key.
    pub(super) fn key_was_shown(&self) {
        self.state().key_shown = true;
    }

    /// The number of the head that the client is to send now; `None` while it is our turn, or both sides'.
    pub(super) fn awaited_head(&self) -> Option<u64> {
        let state = self.state();
        (state.answering == 0 && !state.multiplexed).then_some(state.heads)
    }

    /// True if an answer over HTTP/1.1 has said that it is the connection's last. `reads_no_further` says that hyper has not
    /// asked for another request since its last writing: hyper then ends the connection on its own account, after a
    /// caller's own close, over HTTP/1.0, or because it refused a head.
    pub(super) fn last_answer_is_given(&self, reads_no_further: bool) -> bool {
        let state = self.state();
        !state.multiplexed && (state.last_answer || reads_no_further)
    }

    /// Everything that hyper had is with the kernel.
    pub(super) fn flushed(&self) {
        let written = std::mem::take(&mut self.state().unwritten);
        drop(written);
    }

    /// Returns what a connection of HTTP/2 deserves that may be quiet for `idle`. It may take nothing of any answer for
    /// `stall`, and nothing of one for as often as that as there were answers at once.
    pub(super) fn deserves(&self, now: Instant, idle: Duration, stall: Duration) -> Deserves {
        let state = self.state();
        let lies = |at: &Instant, time| now.saturating_duration_since(*at) >= time;
        let (newest, oldest) = (state.taken.values().max(), state.taken.values().min());
        let its_turns = stall.saturating_mul(state.crowd);
        if newest.is_some_and(|at| lies(at, stall)) || oldest.is_some_and(|at| lies(at, its_turns)) {
            Deserves::Cut
        } else if state.quiet.is_some_and(|since| now.saturating_duration_since(since) >= idle) {
            Deserves::End
        } else {
            Deserves::More
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Keeps `place` until the answer is written.
    pub(super) fn hold(&mut self, place: StreamPlace) {
        self.holds.1 = Some(place);
    }

    /// The answer, which keeps its place until it is written.
    pub(super) fn answer(mut self, mut response: Response<Body>) -> Response<Answer> {
        self.holds.0 = response.extensions_mut().remove::<Arc<Place>>();
        self.taken();
        if response.headers().get(CONNECTION).is_some_and(|value| value == "close") {
            self.exchange.state().last_answer = true;
        }
        response.map(|body| Answer { body, ahead: Bytes::new(), turn: self })
    }

    /// The client takes something of the answer.
    fn taken(&self) {
        if self.multiplexed {
            self.exchange.state().taken.insert(self.number, Instant::now());
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.exchange.state();
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

/// An answer's body; its end is the client's turn.
pub(super) struct Answer {
    body: Body,
    /// Of HTTP/2: what the body gave, and the connection has not taken yet.
    ahead: Bytes,
    turn: Turn,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.turn.multiplexed {
            return Pin::new(&mut self.body).poll_frame(cx);
        }
        self.turn.taken();
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

    fn spoken() -> Arc<Exchange> {
        let exchange = Arc::new(Exchange::default());
        exchange.multiplex(Instant::now());
        exchange
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_connection_ends_and_a_busy_one_does_not() {
        let exchange = spoken();
        let deserves = |exchange: &Exchange| exchange.deserves(Instant::now(), IDLE, STALL);
        tokio::time::advance(IDLE / 2).await;
        assert_eq!(deserves(&exchange), Deserves::More);
        let (one, other) = (exchange.begin(), exchange.begin());
        tokio::time::advance(IDLE * 2).await;
        assert_eq!(deserves(&exchange), Deserves::More, "calls take as long as they take");
        drop(one);
        assert_eq!(deserves(&exchange), Deserves::More);
        // A client that resets a call ends its turn as well.
        drop(other);
        assert_eq!(deserves(&exchange), Deserves::More);
        tokio::time::advance(IDLE).await;
        assert_eq!(deserves(&exchange), Deserves::End);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_left_lying_is_the_end_though_others_are_taken() {
        let exchange = spoken();
        let long = || Response::new(Body::from(vec![7; 10 * FRAME_BYTES]));
        let (left, mut taken) = (exchange.begin().answer(long()), exchange.begin().answer(long()));
        // Both may wait for each other, so one may lie for twice the time.
        for _ in 0..8 {
            assert_eq!(exchange.deserves(Instant::now(), IDLE, STALL), Deserves::More);
            tokio::time::advance(STALL / 4).await;
            assert!(taken.body_mut().frame().await.is_some());
        }
        assert_eq!(exchange.deserves(Instant::now(), IDLE, STALL), Deserves::Cut);
        drop(left);
        assert_eq!(exchange.deserves(Instant::now(), IDLE, STALL), Deserves::More);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_taken_slowly_in_turn_go_on() {
        let exchange = spoken();
        let long = || Response::new(Body::from(vec![7; 4 * FRAME_BYTES]));
        let mut answers: Vec<_> = (0..32).map(|_| exchange.begin().answer(long())).collect();
        for _ in 0..4 {
            for answer in &mut answers {
                tokio::time::advance(STALL / 2).await;
                assert_eq!(exchange.deserves(Instant::now(), IDLE, STALL), Deserves::More);
                assert!(answer.body_mut().frame().await.is_some());
            }
        }
        // Nothing of any is soon enough, however many they are.
        tokio::time::advance(STALL).await;
        assert_eq!(exchange.deserves(Instant::now(), IDLE, STALL), Deserves::Cut);
    }

    #[tokio::test]
    async fn requests_that_held_nothing_are_open_no_more() {
        let exchange = spoken();
        for _ in 0..5 {
            drop(exchange.begin());
        }
        assert!(!exchange.wants_key(0));
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
