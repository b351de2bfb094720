//! The generation of the cache: the number of times it was purged.
//!
//! An answer that was asked for in an earlier generation is neither stored nor given to later callers. The
//! generation check and the insert happen under one lock. Otherwise a purge between them would be undone.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// The number of the present generation.
#[derive(Debug, Default)]
pub(super) struct Generation(RwLock<u64>);

/// The next generation cannot begin before this guard is dropped.
pub(super) struct GenerationGuard<'a>(RwLockReadGuard<'a, u64>);

impl Generation {
    /// Waits until no guard of this generation is left, and begins the next one. Entries must be removed
    /// after this call, not before.
    pub(super) fn advance(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Returns the number of the present generation.
    pub(super) fn number(&self) -> u64 {
        self.lock().number()
    }

    /// Holds the present generation while an answer is inserted. Must not be held across an await.
    pub(super) fn lock(&self) -> GenerationGuard<'_> {
        GenerationGuard(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl GenerationGuard<'_> {
    /// Returns the number of the generation that this guard holds.
    pub(super) fn number(&self) -> u64 {
        *self.0
    }
}
