//! The number of requests that HTTP/2 may begin at once, on one connection and on all of them.
//!
//! A request costs its client a few bytes and the gateway some KiB, from its head to the end of its answer, and the key is
//! not looked at before the body has come. HTTP/1.1 has one such request a connection, and connections are bounded.
//!
//! A browser sends a preflight for each call, and may send many at once before the first call has shown a key. A preflight
//! without a body is answered at once, and needs no key. Health checks come one at a time.

use tokio::time::Instant;

use super::Front;
use super::connection_activity::ConnectionActivity;
use super::places::{Places, StreamPermit};
use super::summary::{Summary, Wants};
use crate::config::Server;

/// Requests at once on a connection that has not shown a good key. A client that shows one has all that the protocol allows.
const WITHOUT_KEY: usize = 16;

/// Places for the requests of all connections, shared between client addresses as connections are.
pub(super) struct Streams(Places);

impl Streams {
    /// Places for all that may be in flight, and for as many that are not as HTTP/1.1 could have.
    pub(super) fn new(server: &Server) -> Self {
        Self(Places::new(server.max_in_flight.saturating_add(server.max_connections)))
    }

    /// Returns the permit of a request that has begun on the connection of `activity`, unless there are too many. `has_body`
    /// is true if a body may follow.
    pub(super) fn admit(
        &self,
        front: &Front,
        activity: &ConnectionActivity,
        Summary { caller, wants, .. }: &Summary,
        has_body: bool,
    ) -> Option<StreamPermit> {
        let is_preflight = matches!(wants, Wants::Options) && !has_body;
        if !is_preflight && activity.wants_key(WITHOUT_KEY) {
            let Wants::Call { key, .. } = wants else { return None };
            let origin = caller.origin.as_deref();
            // A wrong key counts as one that failed, or this would be a way to guess.
            front.gateway.authenticate(key, caller.client, origin, Instant::now()).ok()?;
            activity.key_was_shown();
        }
        self.0.take(caller.client)
    }
}
