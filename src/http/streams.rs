//! Limits the concurrent requests over HTTP/2, on each connection and in total.
//!
//! A request costs its client a few bytes, and slotfront some KiB until its answer is sent. The key is normally checked
//! only after the body has arrived. HTTP/1.1 needs no such limit: a connection has one request at a time, and
//! connections are limited.
//!
//! Before its first valid key, a connection may have 16 requests in progress. Each further request must carry a valid
//! key. Preflights without a body are exempt, because a browser may send many before its first call. They are answered
//! at once.

use tokio::time::Instant;

use super::Front;
use super::connection_activity::ConnectionActivity;
use super::connection_permits::{ConnectionPermits, StreamPermit};
use super::summary::{Summary, Wants};
use crate::config::Server;

/// The maximum number of concurrent requests on a connection that has not yet sent a valid key. After a valid key only
/// HTTP/2's own limit on streams applies.
const WITHOUT_KEY: usize = 16;

/// The permits that bound the concurrent HTTP/2 requests of all connections. Each client address may hold a share of
/// the permits.
pub(super) struct Streams(ConnectionPermits);

impl Streams {
    /// Creates the permits: as many as `server.max_in_flight` and `server.max_connections` together. HTTP/1.1 has the
    /// same bound: the requests in flight, and on each connection one request whose body is still arriving.
    pub(super) fn new(server: &Server) -> Self {
        Self(ConnectionPermits::new(server.max_in_flight.saturating_add(server.max_connections)))
    }

    /// Takes a permit for a request on the connection of `activity`. `None` if no permit is free, or if the client's
    /// address already holds its share. Also `None` if the request must carry a valid key and does not. `has_body` is
    /// true if a body may follow the head.
    pub(super) fn admit(
        &self,
        front: &Front,
        activity: &ConnectionActivity,
        Summary { client, wants, .. }: &Summary,
        has_body: bool,
    ) -> Option<StreamPermit> {
        let is_preflight = matches!(wants, Wants::Options) && !has_body;
        if !is_preflight && activity.needs_key(WITHOUT_KEY) {
            let Wants::Call { key, .. } = wants else { return None };
            let origin = client.origin.as_deref();
            // The gateway counts failed attempts here, too, so that a client cannot guess keys in this way.
            front.gateway.authenticate(key, client.address, origin, Instant::now()).ok()?;
            activity.note_valid_key();
        }
        self.0.try_acquire(client.address)
    }
}
