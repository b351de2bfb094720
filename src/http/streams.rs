//! Limits the concurrent requests over HTTP/2, on one connection and in total.
//!
//! A request costs its client a few bytes and the gateway some KiB until its answer is sent. The key is normally checked only
//! after the body has arrived. HTTP/1.1 has one such request per connection, and connections are limited.
//!
//! A browser sends a preflight for each call, and may send many before the first call has shown a key. A preflight without
//! a body is answered at once and needs no key. Health checks come one at a time.

use tokio::time::Instant;

use super::Front;
use super::connection_activity::ConnectionActivity;
use super::connection_permits::{ConnectionPermits, StreamPermit};
use super::summary::{Summary, Wants};
use crate::config::Server;

/// The concurrent requests on a connection that has not shown a valid key. Afterwards only the protocol's limit applies.
const WITHOUT_KEY: usize = 16;

/// The permits for the HTTP/2 requests of all connections, shared between client addresses.
pub(super) struct Streams(ConnectionPermits);

impl Streams {
    /// Creates a permit for each request that may be in flight, and for as many waiting requests as HTTP/1.1 could have.
    pub(super) fn new(server: &Server) -> Self {
        Self(ConnectionPermits::new(server.max_in_flight.saturating_add(server.max_connections)))
    }

    /// Returns the permit of a request on the connection of `activity`; `None` if there are too many requests. `has_body` is
    /// true if a body may follow the head.
    pub(super) fn admit(
        &self,
        front: &Front,
        activity: &ConnectionActivity,
        Summary { caller, wants, .. }: &Summary,
        has_body: bool,
    ) -> Option<StreamPermit> {
        let is_preflight = matches!(wants, Wants::Options) && !has_body;
        if !is_preflight && activity.needs_key(WITHOUT_KEY) {
            let Wants::Call { key, .. } = wants else { return None };
            let origin = caller.origin.as_deref();
            // Failed attempts are counted here, too. Otherwise a client could guess keys this way.
            front.gateway.authenticate(key, caller.client, origin, Instant::now()).ok()?;
            activity.note_valid_key();
        }
        self.0.try_acquire(caller.client)
    }
}
