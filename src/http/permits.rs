//! The permits for connections and for HTTP/2 requests, in total and for each client address.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fair::{Held, Share};
use crate::gateway::PerAddress;

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
