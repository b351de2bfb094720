//! Places for connections, and for the requests of HTTP/2: how many there are in all, and how many one address may hold.
//!
//! A connection needs no key, so whoever can reach the port could hold them all and say nothing. The rule for an address
//! is that for a key and the places in flight: up to eight times as many as are free at that moment.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::gateway::{PerAddress, Share, SharePermit};

/// One place, until it is dropped.
pub(super) type Place = OwnedSemaphorePermit;

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
    pub(super) async fn free(&self) -> io::Result<Place> {
        Arc::clone(&self.all).acquire_owned().await.map_err(io::Error::other)
    }

    /// A place at once, with its part in the share of `client`'s, if there is one within it.
    pub(super) fn take(&self, client: Option<IpAddr>) -> Option<(Place, SharePermit)> {
        let place = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some((place, self.hold(client)?))
    }

    /// The share's part of a place of `client`'s that is taken already.
    pub(super) fn hold(&self, client: Option<IpAddr>) -> Option<SharePermit> {
        self.shares.get(client, Share::default).hold(self.all.available_permits() + 1)
    }
}
