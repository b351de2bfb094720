//! The primitives of those modules that `fuzz/interleave` runs under random schedules of threads.
//!
//! That crate compiles the files of these modules with a `crate::sync` of its own, whose primitives let shuttle's
//! scheduler switch at every lock, atomic operation and wait. A primitive that such a file takes from elsewhere is one
//! at which no switch happens, so its races are not seen.

pub(crate) use std::sync::atomic;

pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
pub(crate) use tokio::sync::watch;
pub(crate) use tokio::time::Instant;
pub(crate) use tokio_util::task::TaskTracker;

/// True in `fuzz/interleave`, where tables are small because the scheduler keeps a record of each atomic.
pub(crate) const UNDER_SHUTTLE: bool = false;
