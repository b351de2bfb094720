//! One request on its way through the router, and the connection that it came on.

use std::net::IpAddr;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use hyper::body::Body;
use hyper::{HeaderMap, Method, Request, Uri};
use tokio::time::Instant;

use super::activity::{ConnectionActivity, RequestGuard};
use super::client::ClientInfo;
use super::keyless::KeylessPlace;
use super::permits::ConnectionPermits;
use super::shutdown::Phases;
use super::{Front, key};
use crate::error::Error;
use crate::gateway::Principal;

/// The maximum number of concurrent requests on an HTTP/2 connection that has not yet sent a valid key. After a valid
/// key only HTTP/2's own limit on streams applies.
const WITHOUT_KEY: usize = 16;

/// The parts that the requests of one connection share.
pub(super) struct Connection {
    pub(super) front: Arc<Front>,
    pub(super) place: Arc<KeylessPlace>,
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) phases: Arc<Phases>,
    /// The permits that limit concurrent HTTP/2 requests. `None` over HTTP/1.1.
    pub(super) http2_permits: Option<Arc<ConnectionPermits>>,
}

/// One request: an extension of it, which the handlers read.
pub(super) struct Visit {
    pub(super) client: ClientInfo,
    pub(super) started: Instant,
    pub(super) guard: Arc<RequestGuard>,
    connection: Arc<Connection>,
    is_preflight: bool,
}

/// The response to a request for which there is no place on an HTTP/2 connection.
#[derive(Clone)]
pub(super) struct Refused;

impl Visit {
    pub(super) fn begin(connection: &Arc<Connection>, request: &Request<impl Body>) -> Self {
        let (guard, started) = (connection.activity.begin(), Instant::now());
        let client = ClientInfo::of(&connection.front, connection.place.peer, request.headers());
        let is_preflight = request.method() == Method::OPTIONS && request.body().is_end_stream();
        Self { client, started, guard, connection: Arc::clone(connection), is_preflight }
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.client.address
    }

    /// Returns the caller whose key is at `uri` or in `headers`. With a valid key the connection is no stranger's.
    ///
    /// # Errors
    /// As for [`Gateway::authenticate`](crate::gateway::Gateway::authenticate).
    pub(super) fn caller(&self, uri: &Uri, headers: &HeaderMap) -> Result<Arc<Principal>, Error> {
        let gateway = &self.connection.front.gateway;
        let caller = match key::of(&self.connection.front, uri, headers) {
            Some(key) => {
                gateway.authenticate(key, self.address(), self.client.origin.as_deref(), self.started)
            }
            None => Err(gateway.refuse_two_keys(self.address())),
        };
        if caller.is_ok() {
            self.connection.place.show_key();
        }
        caller
    }

    /// Takes a place for the request, before any of its body is read.
    ///
    /// A request costs its client a few bytes, and slotfront some KiB until its answer is sent. HTTP/1.1 needs no such limit:
    /// a connection has one request at a time, and connections are limited.
    pub(super) fn admit(&self) -> Result<(), Refused> {
        let Connection { place, activity, http2_permits, .. } = &*self.connection;
        let Some(permits) = http2_permits else { return Ok(()) };
        // A browser may send many preflights before its first call. They are answered at once.
        if !self.is_preflight && !place.has_shown_key() && activity.unfinished() > WITHOUT_KEY {
            return Err(Refused);
        }
        self.guard.hold(permits.try_acquire(self.address()).ok_or(Refused)?);
        Ok(())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}
