//! The time until which a secret is valid, and the places from which it may be used.

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;

use super::KeyHash;
use super::scope::Scope;
use crate::telemetry::AuthFailure;

/// The secrets of a key, the times at which they expire, and the restrictions on the use of the key.
#[derive(Debug, Default)]
pub(crate) struct KeyValidity {
    pub(crate) hash: KeyHash,
    /// The replaced secrets, each with the time at which it ceases to be valid.
    pub(crate) previous: Vec<(KeyHash, Timestamp)>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) suspended: bool,
    pub(crate) revoked: bool,
    pub(crate) scope: Scope,
}

impl KeyValidity {
    pub(crate) fn hashes(&self) -> impl Iterator<Item = KeyHash> {
        self.previous.iter().map(|(hash, _)| *hash).chain([self.hash])
    }

    /// Checks that the secret with the hash `hash` may be used now, from the address `client` and the origin `origin`.
    ///
    /// # Errors
    /// The secret may not be used. The error is the reason.
    pub(crate) fn check(
        &self,
        hash: &KeyHash,
        client: Option<IpAddr>,
        origin: Option<&str>,
        wall: impl Fn() -> Timestamp,
    ) -> Result<(), AuthFailure> {
        let replaced = self.previous.iter().find(|(previous, _)| previous == hash);
        let ended = |end: Option<Timestamp>| end.is_some_and(|end| end <= wall());
        if self.revoked {
            return Err(AuthFailure::Revoked);
        }
        if ended(self.expires) || ended(replaced.map(|(_, until)| *until)) {
            return Err(AuthFailure::Expired);
        }
        if self.suspended {
            return Err(AuthFailure::Suspended);
        }
        let client = client.map(|client| client.to_canonical());
        let is_in =
            |list: &Vec<IpNet>| client.is_some_and(|ip| list.iter().any(|network| network.contains(&ip)));
        if self.scope.addresses.as_ref().is_some_and(|list| !is_in(list)) {
            return Err(AuthFailure::Address);
        }
        // Browsers always send an origin, so a request without one does not come from a web page.
        if let (Some(allowed), Some(origin)) = (&self.scope.origins, origin)
            && !allowed.iter().any(|known| known == origin)
        {
            return Err(AuthFailure::Origin);
        }
        Ok(())
    }
}
