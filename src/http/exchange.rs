//! What a connection's socket and the calls on it know of each other: whose turn it is, and what is not written yet.
//!
//! hyper lets go of a body when it has taken the last of its bytes, which may be long before the client has: a place
//! in flight is therefore given to the socket, and returned when the socket is flushed.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::Response;
use hyper::body::{Frame, SizeHint};

use super::Front;
use crate::gateway::{Held, Principal};

/// A request that is being served, until it is dropped.
pub(super) struct Place {
    _counted: Counted,
    _held: Held,
}

impl Place {
    /// A place, if one is free and `principal` may have it.
    pub(super) fn take(front: &Arc<Front>, principal: &Principal) -> Option<Self> {
        let (counted, taken) = Counted::add(front);
        let held = principal.hold(front.config.server.max_in_flight.saturating_sub(taken))?;
        Some(Self { _counted: counted, _held: held })
    }
}

/// One of the requests in flight.
struct Counted(Arc<Front>);

impl Counted {
    /// One more, and how many there were before.
    fn add(front: &Arc<Front>) -> (Self, usize) {
        front.metrics.requests_in_flight.inc();
        (Self(Arc::clone(front)), front.in_flight.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.requests_in_flight.dec();
    }
}

/// One connection's turn: the client sends a request head, then we answer, then the next.
#[derive(Default)]
pub(super) struct Exchange(Mutex<State>);

#[derive(Default)]
struct State {
    /// Requests whose head was read.
    heads: u64,
    answering: bool,
    /// Of answers that hyper has, but not yet the kernel.
    unwritten: Vec<Arc<Place>>,
}

impl Exchange {
    /// A request head was read.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.heads += 1;
        state.answering = true;
    }

    /// The number of the head that the client is to send now; `None` while it is our turn.
    pub(super) fn awaited_head(&self) -> Option<u64> {
        let state = self.state();
        (!state.answering).then_some(state.heads)
    }

    /// Everything that hyper had is with the kernel.
    pub(super) fn flushed(&self) {
        let written = std::mem::take(&mut self.state().unwritten);
        drop(written);
    }

    /// The answer to the request that was begun last, which keeps its place until it is written.
    pub(super) fn answer(self: Arc<Self>, mut response: Response<Body>) -> Response<Answer> {
        let place = response.extensions_mut().remove::<Arc<Place>>();
        response.map(|body| Answer { body, place, exchange: self })
    }

    fn end(&self, place: Option<Arc<Place>>) {
        let mut state = self.state();
        state.answering = false;
        state.unwritten.extend(place);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer's body; its end is the client's turn.
pub(super) struct Answer {
    body: Body,
    place: Option<Arc<Place>>,
    exchange: Arc<Exchange>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.exchange.end(self.place.take());
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
