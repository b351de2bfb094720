//! What every call of a key writes, in one piece of memory.
//!
//! Among a hundred thousand keys nothing of a key is in the processor's caches when its call comes, and each piece is
//! waited for. It outlives reloads: a key's new principal goes on with the standing of the one before.

use std::sync::atomic::AtomicUsize;

use governor::state::InMemoryState;

use super::quota::Used;

/// Where one key stands with its limits.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Standing {
    /// Of its rate: when it will be at rest again.
    pub(crate) rest: InMemoryState,
    /// Places that it holds.
    pub(crate) held: AtomicUsize,
    /// Bytes of its answers that are on their way out.
    pub(crate) outgoing: AtomicUsize,
    /// Units that it has used.
    pub(crate) used: Used,
}
