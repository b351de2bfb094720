//! Every key by its hash: built whole from a key file, then never changed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;

use super::clock::Clock;
use super::keys::{Key, KeyHash};
use super::lease::Lease;
use super::plan::{Plans, Terms};
use super::principal::{Bounds, Pass, Principal};
use super::quota::Ledger;
use super::shared::Lessor;
use super::standing::Standing;
use crate::config::Units;
use crate::telemetry::Metrics;
use crate::uniform::BuildUniform;

/// The keys in force.
#[derive(Default)]
pub(crate) struct Table {
    /// By the beginning of the hash, which each principal has in full: so small that most of it stays in the processor's
    /// caches.
    by_start: HashMap<u64, Held, BuildUniform>,
    /// By the whole hash: keys that were replaced, and those that begin like another, and until when they hold.
    others: HashMap<KeyHash, (Held, Option<Timestamp>), BuildUniform>,
    by_id: HashMap<Arc<str>, Arc<Principal>>,
}

/// What a hash stands for.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) principal: Arc<Principal>,
    /// The principal's, also here so that [`Held::warm`] need not wait for the principal to find it.
    standing: Arc<Standing>,
}

impl Held {
    /// Touches what the limit check will read, in places of its own each: among a hundred thousand keys all of them are
    /// out of the processor's caches, and the waits overlap only where no address comes out of another place.
    fn warm(&self) {
        black_box((self.standing.held.load(Ordering::Relaxed), self.standing.used.warm()));
        if let Some(bounds) = &self.principal.bounds {
            bounds.rate.warm();
        }
        black_box(self.principal.max_batch);
    }
}

/// What principals are made from, beside their keys.
#[derive(Clone)]
pub(crate) struct Ground {
    pub(crate) clock: Arc<Clock>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) registry: Arc<OnceLock<Arc<Metrics>>>,
    /// The server's bound on batches.
    pub(crate) max_batch: usize,
    /// What calls cost.
    pub(crate) units: Arc<Units>,
    /// Who asks the shared store, if there is one.
    pub(crate) lessor: Option<Arc<Lessor>>,
}

impl Table {
    /// The table of `keys`. A key that `old` knows goes on with its limiter's state, the slots that it was
    /// shown, and the places that it holds.
    pub(crate) fn new(keys: Vec<Key>, plans: &Plans, old: &Self, ground: &Ground) -> Self {
        // With room for a few more: those that were replaced, and `dev`'s.
        let mut table = Self {
            by_start: HashMap::with_capacity_and_hasher(keys.len() + 1, BuildUniform::default()),
            others: HashMap::default(),
            by_id: HashMap::with_capacity(keys.len() + 1),
        };
        for key in keys {
            // Judged when the file was read.
            let Some(terms) = plans.get(&key.plan) else { continue };
            let revoked = key.revoked.is_some();
            let scope = (!key.scope.is_any()).then(|| Box::new(key.scope));
            let pass = Pass { expires: key.expires, revoked, scope };
            table.add(&key.id, key.hash, &key.previous, pass, terms, old, ground);
        }
        table
    }

    #[expect(clippy::too_many_arguments, reason = "a key and all that it is joined with")]
    pub(crate) fn add(
        &mut self,
        id: &str,
        hash: KeyHash,
        previous: &[(KeyHash, Timestamp)],
        pass: Pass,
        terms: &Arc<Terms>,
        old: &Self,
        ground: &Ground,
    ) {
        let id: Arc<str> = Arc::from(id);
        let known = old.by_id.get(&id).and_then(|principal| principal.bounds.as_ref());
        let standing = ground.ledger.of(&id);
        let bounds = Bounds::new(Arc::clone(terms), known, Arc::clone(&standing), || ground.lease(&id));
        let principal = Arc::new(ground.principal(Arc::clone(&id), hash, Some(bounds), pass));
        let held = Held { principal: Arc::clone(&principal), standing };
        for (hash, until) in previous {
            self.others.insert(*hash, (held.clone(), Some(*until)));
        }
        match self.by_start.entry(hash.start()) {
            Entry::Vacant(place) => {
                place.insert(held);
            }
            Entry::Occupied(mut place) if place.get().principal.hash == hash => {
                place.insert(held);
            }
            Entry::Occupied(_) => {
                self.others.insert(hash, (held, None));
            }
        }
        self.by_id.insert(id, principal);
    }

    /// Whose hash this is, and until when it holds: a key that was replaced ends before its successor.
    pub(crate) fn get(&self, hash: &KeyHash) -> Option<(&Arc<Principal>, Option<Timestamp>)> {
        if let Some(held) = self.by_start.get(&hash.start()) {
            held.warm();
            if held.principal.hash == *hash {
                return Some((&held.principal, None));
            }
        }
        self.others.get(hash).map(|(held, until)| (&held.principal, *until))
    }

    /// Who has this id, revoked or not.
    pub(crate) fn named(&self, id: &str) -> Option<&Principal> {
        self.by_id.get(id).map(|principal| &**principal)
    }

    /// Who may call, revoked keys included.
    pub(crate) fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.by_id.values().map(|principal| &**principal)
    }

    /// How many keys there are, revoked ones included.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl Ground {
    /// The rate of `who` over all gateways, where they have a store in common.
    pub(crate) fn lease(&self, who: &str) -> Option<Arc<Lease>> {
        self.lessor.as_ref().map(|lessor| Lease::new(who.to_owned(), lessor))
    }

    pub(crate) fn principal(
        &self,
        id: Arc<str>,
        hash: KeyHash,
        bounds: Option<Bounds>,
        pass: Pass,
    ) -> Principal {
        let own = bounds.as_ref().and_then(|bounds| bounds.terms.plan.max_batch);
        Principal {
            hash,
            id,
            max_batch: own.map_or(self.max_batch, |own| own.min(self.max_batch)),
            bounds,
            pass,
            units: Arc::clone(&self.units),
            clock: Arc::clone(&self.clock),
            metrics: OnceLock::new(),
            registry: Arc::clone(&self.registry),
        }
    }
}
