//! The generation of the cache: the number of times it was purged.
//!
//! An answer that was asked for in an earlier generation is neither stored nor given to later callers. The
//! generation is checked and the answer inserted under one lock. If they were not, a purge in between would
//! be undone.

use std::sync::PoisonError;

use crate::sync::{RwLock, RwLockReadGuard};

/// The number of purges so far.
#[derive(Debug, Default)]
pub(super) struct Generation(RwLock<u64>);

/// A lock on the number of purges. No purge can begin before the guard is dropped.
pub(super) struct GenerationGuard<'a>(RwLockReadGuard<'a, u64>);

impl Generation {
    /// Waits until no [`GenerationGuard`] is left, and then counts a purge. Entries must be removed after this
    /// call, not before.
    pub(super) fn advance(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Returns the number of purges so far.
    pub(super) fn number(&self) -> u64 {
        self.lock().number()
    }

    /// Keeps purges from beginning while an answer is inserted. The guard must not be held across an await.
    pub(super) fn lock(&self) -> GenerationGuard<'_> {
        GenerationGuard(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl GenerationGuard<'_> {
    /// Returns the number of purges, which does not change while the guard exists.
    pub(super) fn number(&self) -> u64 {
        *self.0
    }
}
