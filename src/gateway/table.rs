//! The key table: a map from the hashes of keys to their [`Principal`]s. It is built from the key file and does not
//! change.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::clock::WallClock;
use super::keys::{ApiKey, KeyHash, Revocations};
use super::lease::{Lease, LeaseClient};
use super::plan::{PlanTerms, Plans};
use super::principal::{ANONYMOUS, KeyValidity, PlanLimits, Principal};
use super::quota::Ledger;
use crate::config::Units;
use crate::telemetry::Metrics;

/// The keys in force, by hash and by id.
#[derive(Default)]
pub(crate) struct KeyTable {
    /// The keys by the hash of each of their secrets, replaced ones included.
    by_hash: HashMap<KeyHash, Arc<Principal>>,
    by_id: HashMap<Arc<str>, Arc<Principal>>,
}

/// The parts of a [`Principal`] that are the same for all keys.
#[derive(Clone)]
pub(crate) struct KeyTableContext {
    pub(crate) clock: Arc<WallClock>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) registry: Arc<OnceLock<Arc<Metrics>>>,
    /// The server's limit on the calls in a batch.
    pub(crate) max_batch: usize,
    /// The prices of calls.
    pub(crate) units: Arc<Units>,
    /// The client that reserves calls in advance from the rates that all gateways share. `None` if no shared store
    /// is configured.
    pub(crate) lease_client: Option<Arc<LeaseClient>>,
}

impl KeyTable {
    /// Builds the table of `keys`. A key that is also in `old` keeps the state of its rate and its requests in flight.
    /// It also keeps the highest slots that answers have shown to its callers.
    pub(crate) fn new(keys: Vec<ApiKey>, plans: &Plans, old: &Self, context: &KeyTableContext) -> Self {
        let mut table = Self::default();
        table.by_hash.reserve(keys.len());
        table.by_id.reserve(keys.len());
        for key in keys {
            // Only a revoked key may have an unknown plan. Such a key is refused like an unknown key.
            let Some(terms) = plans.get(&key.plan) else { continue };
            let validity = KeyValidity {
                hash: key.hash,
                previous: key.previous,
                expires: key.expires,
                revoked: key.revoked.is_some(),
                scope: key.scope,
            };
            table.add(&key.id, validity, terms, old, context);
        }
        table
    }

    /// Adds the key `id` to the table. Replaces a key with the same id or hash.
    pub(crate) fn add(
        &mut self,
        id: &str,
        validity: KeyValidity,
        terms: &Arc<PlanTerms>,
        old: &Self,
        context: &KeyTableContext,
    ) {
        let id: Arc<str> = Arc::from(id);
        let before = old.by_id.get(&id).and_then(|principal| principal.limits.as_ref());
        let used = context.ledger.of(&id);
        let steady = context.clock.steady(Instant::now());
        let limits = PlanLimits::new(Arc::clone(terms), before, used, || context.lease(&id), steady);
        let principal = Arc::new(context.principal(Arc::clone(&id), validity, Some(limits)));
        for hash in principal.validity.hashes() {
            self.by_hash.insert(hash, Arc::clone(&principal));
        }
        self.by_id.insert(id, principal);
    }

    /// Returns a copy of this table without the keys in `revocations`. `None` if the table has no such key. The dev key
    /// is never left out.
    pub(crate) fn without(&self, revocations: &Revocations, dev_key: Option<&str>) -> Option<Self> {
        let goes = |principal: &Principal| {
            dev_key != Some(&principal.id) && revocations.contain(&principal.id, principal.validity.hashes())
        };
        if !self.principals().any(goes) {
            return None;
        }
        let mut rest = Self { by_hash: self.by_hash.clone(), by_id: self.by_id.clone() };
        rest.by_hash.retain(|_, principal| !goes(principal));
        rest.by_id.retain(|_, principal| !goes(principal));
        Some(rest)
    }

    /// Returns the key with this hash, which may be expired or revoked. `None` if there is none.
    pub(crate) fn get(&self, hash: &KeyHash) -> Option<&Arc<Principal>> {
        self.by_hash.get(hash)
    }

    /// Returns the key with this id, which may be expired or revoked. `None` if there is none.
    pub(crate) fn named(&self, id: &str) -> Option<&Principal> {
        self.by_id.get(id).map(|principal| &**principal)
    }

    /// Returns all keys, revoked ones included.
    pub(crate) fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.by_id.values().map(|principal| &**principal)
    }

    /// Returns the number of keys, revoked ones included.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl KeyTableContext {
    /// Creates the [`Lease`] that reserves calls from the shared rate of `holder`, a key or client address. `None`
    /// if no shared store is configured.
    pub(crate) fn lease(&self, holder: &str) -> Option<Arc<Lease>> {
        self.lease_client.as_ref().map(|client| Lease::new(holder.to_owned(), client))
    }

    /// Creates the principal of a caller without a key.
    pub(crate) fn anonymous(&self, limits: Option<PlanLimits>) -> Principal {
        self.principal(Arc::from(ANONYMOUS), KeyValidity::default(), limits)
    }

    fn principal(&self, id: Arc<str>, validity: KeyValidity, limits: Option<PlanLimits>) -> Principal {
        let own = limits.as_ref().and_then(|limits| limits.terms.plan.max_batch);
        Principal {
            id,
            validity,
            max_batch: own.map_or(self.max_batch, |own| own.min(self.max_batch)),
            limits,
            units: Arc::clone(&self.units),
            clock: Arc::clone(&self.clock),
            metrics: OnceLock::new(),
            registry: Arc::clone(&self.registry),
        }
    }
}
