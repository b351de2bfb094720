//! How often the cache was emptied: what was asked for before is not kept after, and not given to whoever asks after.
//!
//! Whether it still counts and the keeping are one step: else an answer could be found good, the cache be emptied, and
//! the answer be kept all the same.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// The number of the present generation.
#[derive(Debug, Default)]
pub(super) struct Generation(RwLock<u64>);

/// Holds a generation: as long as it is there the next does not begin.
pub(super) struct Hold<'a>(RwLockReadGuard<'a, u64>);

impl Generation {
    /// The next one begins, once nobody holds this one. What is emptied is emptied after.
    pub(super) fn ends(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Its number.
    pub(super) fn number(&self) -> u64 {
        self.hold().number()
    }

    /// Holds it for as long as something of it is kept; not across an await.
    pub(super) fn hold(&self) -> Hold<'_> {
        Hold(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Hold<'_> {
    /// Its number.
    pub(super) fn number(&self) -> u64 {
        *self.0
    }
}
