//! Places for connections, and for the requests of HTTP/2: how many there are in all, and how many one address may hold.
//!
//! A connection needs no key, so whoever can reach the port could hold them all and say nothing. The rule for an address
//! is that for a key and the places in flight: up to eight times as many as are free at that moment.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::gateway::{PerAddress, Share, SharePermit};

/// The permit of a connection, until it is dropped.
pub(super) type ConnectionPermit = OwnedSemaphorePermit;

/// The permit of a request over HTTP/2, until it is dropped.
pub(super) struct StreamPermit {
    _permit: ConnectionPermit,
    _share: SharePermit,
}

/// An address holds its share of all connections.
#[derive(Debug, thiserror::Error)]
#[error("the client's address holds its share of all connections")]
pub(super) struct TooMany;

/// All places, and who holds them.
pub(super) struct Places {
    all: Arc<Semaphore>,
    shares: PerAddress<Share>,
}

impl Places {
    pub(super) fn new(connections: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(connections)), shares: PerAddress::new() }
    }

    /// A place, once there is one.
    pub(super) async fn free(&self) -> io::Result<ConnectionPermit> {
        Arc::clone(&self.all).acquire_owned().await.map_err(io::Error::other)
    }

    /// Takes a place at once, if there is one within the share of `client`.
    pub(super) fn take(&self, client: Option<IpAddr>) -> Option<StreamPermit> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(StreamPermit { _permit: permit, _share: self.hold(client)? })
    }

    /// The share's part of a place of `client`'s that is taken already.
    pub(super) fn hold(&self, client: Option<IpAddr>) -> Option<SharePermit> {
        self.shares.get(client, Share::default).hold(self.all.available_permits() + 1)
    }
}
