//! Permits for connections and for the requests of HTTP/2: a limit in total, and a share for each client address.
//!
//! A connection needs no key, so without shares one client could hold all connections. An address may hold at most eight
//! times as many permits as are free at that moment. Keys share the requests in flight by the same rule.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::gateway::{PerAddress, Share, SharePermit};

/// The permit of a connection. Dropping it frees the connection for others.
pub(super) type ConnectionPermit = OwnedSemaphorePermit;

/// The permit of an HTTP/2 request. Dropping it frees the permit and the address's share.
pub(super) struct StreamPermit {
    _permit: ConnectionPermit,
    _share: SharePermit,
}

/// The client's address already holds its share of all connections.
#[derive(Debug, thiserror::Error)]
#[error("the client's address holds its share of all connections")]
pub(super) struct ShareExhausted;

/// A limited number of permits, shared between client addresses.
pub(super) struct ConnectionPermits {
    all: Arc<Semaphore>,
    shares: PerAddress<Share>,
}

impl ConnectionPermits {
    /// Creates `permits` permits, all of them free.
    pub(super) fn new(permits: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(permits)), shares: PerAddress::new() }
    }

    /// Waits for a free permit. Shares are not checked, because the client's address may not be known yet.
    ///
    /// # Errors
    /// The semaphore is closed, which never happens.
    pub(super) async fn acquire(&self) -> io::Result<ConnectionPermit> {
        Arc::clone(&self.all).acquire_owned().await.map_err(io::Error::other)
    }

    /// Takes a permit without waiting; `None` if no permit is free or `client` holds its share.
    pub(super) fn try_acquire(&self, client: Option<IpAddr>) -> Option<StreamPermit> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(StreamPermit { _permit: permit, _share: self.share_of(client)? })
    }

    /// Counts a permit that was acquired before towards the share of `client`; `None` if the share is exhausted. Clients
    /// without a known address have one share together.
    pub(super) fn share_of(&self, client: Option<IpAddr>) -> Option<SharePermit> {
        self.shares.get(client, Share::default).hold(self.all.available_permits() + 1)
    }
}
