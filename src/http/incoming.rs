//! The bodies of requests, from their first byte until their calls are answered. `server.max_incoming` limits their memory.
//!
//! The bytes of a body are counted before they are kept, towards the share of its key or, for a caller without a plan,
//! of its client address. A short body that comes whole is not counted, because `server.max_in_flight` limits those. A
//! body that nobody needs, because its request is refused already, is read and not kept. If it stayed unread, hyper
//! would close the connection without notice, and the TCP reset might reach the client before the response.

use std::net::IpAddr;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Body as _;
use tokio::time::{Instant, timeout_at};

use super::Front;
use super::in_flight::FREE_BYTES;
use super::reply::HttpReply;
use crate::fair::{Held, Share, Taken};
use crate::gateway::Principal;

/// The memory of one body. Dropping the value gives it back.
pub(super) struct Arriving {
    taken: Taken,
    held: Held,
    /// The bytes that have arrived.
    text: Vec<u8>,
}

impl Arriving {
    /// Begins a body of the caller `principal` at the address `client`. It has no bytes yet.
    pub(super) fn new(front: &Front, principal: &Principal, client: Option<IpAddr>) -> Self {
        let of_address = || (*front.incoming_shares.get(client, Share::default)).clone();
        let held = principal.arriving().unwrap_or_else(of_address).hold_nothing();
        Self { taken: Taken::nothing_of(&front.incoming), held, text: Vec::new() }
    }

    /// Takes the memory for `bytes` more bytes. Returns false if that would exceed the budget or the caller's share.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        self.held.grow(bytes, self.taken.free()) && self.taken.grow(bytes)
    }

    /// Appends `chunk` to a body of which `announced` bytes, and perhaps more, are to come. Returns false if there is too
    /// little memory.
    fn append(&mut self, chunk: &[u8], announced: usize) -> bool {
        let (length, capacity) = (self.text.len() + chunk.len(), self.text.capacity());
        if length > capacity {
            let enough = length.max(announced).max(2 * capacity);
            if !self.grow(enough - capacity) {
                return false;
            }
            self.text.reserve_exact(enough - self.text.len());
        }
        self.text.extend_from_slice(chunk);
        true
    }
}

/// Reads the whole body of a request that has `started`, within `server.max_body` bytes and `server.body_timeout`, and
/// keeps it in the memory of `arriving`. Returns `None` for a body that was not kept: there is no such memory, or too
/// little is left. A body that came whole is returned in any case.
///
/// # Errors
/// The body is too long, ends early, or takes too long. The error is a refusal that closes the connection, because the
/// start of the next request is unknown.
pub(super) async fn read(
    front: &Front,
    mut body: Body,
    arriving: &mut Option<Arriving>,
    started: Instant,
) -> Result<Option<Bytes>, Box<HttpReply>> {
    let config = front.config.now();
    let server = &config.server;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX).min(server.max_body);
    let reading = async {
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let early = |_| refusal(StatusCode::BAD_REQUEST, "the request body ended early\n");
            let Ok(chunk) = frame.map_err(early)?.into_data() else { continue };
            length += chunk.len();
            if length > server.max_body {
                let why = "request body size exceeds allowed maximum";
                return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, why));
            }
            if length == chunk.len() && body.is_end_stream() {
                let fits = length <= FREE_BYTES || arriving.as_mut().is_none_or(|body| body.grow(length));
                return Ok(fits.then_some(chunk));
            }
            if !arriving.as_mut().is_some_and(|body| body.append(&chunk, announced)) {
                *arriving = None;
            }
        }
        Ok(arriving.as_mut().map(|body| std::mem::take(&mut body.text).into()))
    };
    let late = |_| Err(refusal(StatusCode::REQUEST_TIMEOUT, "the request body took too long\n"));
    timeout_at(started + server.body_timeout, reading).await.unwrap_or_else(late)
}

fn refusal(status: StatusCode, why: &'static str) -> Box<HttpReply> {
    Box::new(HttpReply::text(status, why).last())
}
