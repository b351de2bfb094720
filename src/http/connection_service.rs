//! The hyper service that answers the requests of one connection, and the permits for connections and for HTTP/2 requests.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use h2::Reason;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method as Verb, Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection_activity::{ConnectionActivity, PacedBody, RequestGuard};
use super::keyless::KeylessPlace;
use super::request_head::{RequestHead, Wants};
use super::shutdown::Phases;
use super::{Front, serve};
use crate::fair::{Held, Share};
use crate::gateway::PerAddress;
use crate::subscribe::SocketClient;

/// The maximum number of concurrent requests on an HTTP/2 connection that has not yet sent a valid key. After a valid
/// key only HTTP/2's own limit on streams applies.
const WITHOUT_KEY: usize = 16;

/// The parts that the requests of one connection share.
pub(super) struct ConnectionService {
    pub(super) front: Arc<Front>,
    pub(super) routes: axum::Router,
    pub(super) place: Arc<KeylessPlace>,
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) phases: Arc<Phases>,
    /// The permits that limit concurrent HTTP/2 requests. `None` over HTTP/1.1.
    pub(super) http2_permits: Option<Arc<ConnectionPermits>>,
    /// The WebSocket that the connection becomes, once its request is answered.
    pub(super) upgraded: Mutex<Option<(OnUpgrade, Arc<SocketClient>)>>,
}

impl ConnectionService {
    /// Answers a request. The request's head is dropped before the future is returned, because the future may wait
    /// for a long time.
    ///
    /// # Errors
    /// The stream is refused, because there are too many HTTP/2 requests, or too many on this connection without a
    /// valid key. The client may send the request again (RFC 9113, 8.7).
    pub(super) fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<PacedBody>, h2::Error>> {
        let upgrade = hyper::upgrade::on(&mut request);
        let (head, body) = request.into_parts();
        // Boxed, so that a refused request and an idle connection take little memory.
        let begun =
            self.begin(&head, &body).map(|(head, guard)| Box::pin(self.serve(head, guard, body, upgrade)));
        async move { Ok(begun.ok_or(Reason::REFUSED_STREAM)?.await) }
    }

    /// Returns the part of the request's head that is kept, and the guard that marks the request's end. `None` if the
    /// request is not admitted.
    fn begin(&self, head: &Parts, body: &Incoming) -> Option<(RequestHead, RequestGuard)> {
        let mut guard = self.activity.begin();
        // A browser may send many preflights before its first call. They are answered at once.
        let is_preflight = head.method == Verb::OPTIONS && body.is_end_stream();
        let head = RequestHead::of(&self.front, self.place.peer, head);
        if matches!(head.wants, Wants::Call(Ok(_))) {
            self.place.show_key();
        }
        // A request costs its client a few bytes, and slotfront some KiB until its answer is sent. HTTP/1.1 needs no such
        // limit: a connection has one request at a time, and connections are limited.
        if let Some(permits) = &self.http2_permits {
            if !is_preflight && !self.place.has_shown_key() && self.activity.unfinished() > WITHOUT_KEY {
                return None;
            }
            guard.hold(permits.try_acquire(head.client.address)?);
        }
        Some((head, guard))
    }

    async fn serve(
        self: Arc<Self>,
        head: RequestHead,
        guard: RequestGuard,
        body: Incoming,
        upgrade: OnUpgrade,
    ) -> Response<PacedBody> {
        let mut response = serve(&self.front, &self.routes, head, body).await;
        if let Some(client) = response.extensions_mut().remove::<Arc<SocketClient>>() {
            self.place.show_key();
            *self.upgraded.lock().unwrap_or_else(PoisonError::into_inner) = Some((upgrade, client));
        } else if self.http2_permits.is_none() && self.phases.notice.is_triggered() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        guard.answer(response)
    }
}

pub(super) type ConnectionPermit = OwnedSemaphorePermit;

/// The permit that an HTTP/2 request must hold. Dropping the value frees it, and ends its count towards the address's
/// share.
pub(super) struct Http2Permit {
    _permit: ConnectionPermit,
    _share: Held,
}

/// The error of a client address that already holds its share of the connections.
#[derive(Debug, thiserror::Error)]
#[error(
    "most of server.max_connections are in use, and the client's address already holds its share of them"
)]
pub(super) struct ShareExhausted;

/// The permits that limit connections or HTTP/2 requests, in total and for each client address.
///
/// A connection needs no key, so without the limit for each address one client could hold all connections. An address
/// may hold at most eight times as many permits as are free at that moment. The same rule applies to a key's requests
/// in flight.
pub(super) struct ConnectionPermits {
    all: Arc<Semaphore>,
    shares: PerAddress<Share>,
}

impl ConnectionPermits {
    pub(super) fn new(permits: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(permits)), shares: PerAddress::new() }
    }

    /// Takes a permit for a connection, and waits until one is free. Shares are not checked, because the client's
    /// address may not be known.
    ///
    /// # Errors
    /// The semaphore is closed, which never happens.
    pub(super) async fn acquire(&self) -> io::Result<ConnectionPermit> {
        Arc::clone(&self.all).acquire_owned().await.map_err(io::Error::other)
    }

    /// Takes a permit for an HTTP/2 request without waiting. `None` if no permit is free, or if `client` already holds
    /// its share.
    pub(super) fn try_acquire(&self, client: Option<IpAddr>) -> Option<Http2Permit> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Http2Permit { _permit: permit, _share: self.share_of(client)? })
    }

    /// Takes one of the permits that the address `client` may hold, for a permit that is already acquired. `None` if
    /// the address holds as many as it may. Clients without a known address have one share together.
    pub(super) fn share_of(&self, client: Option<IpAddr>) -> Option<Held> {
        self.shares.get(client, Share::default).hold(1, self.all.available_permits() + 1)
    }
}
