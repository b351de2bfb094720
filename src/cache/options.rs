//! The options of a call to the cache, and the answer to a call.

use std::sync::Arc;

use tokio::time::Instant;

use super::entry::{EntryMeta, Payload};
use super::status::CacheStatus;
use crate::coding::{Coding, CompressedText};
use crate::methods::Slot;
use crate::pool::CallerId;
use crate::telemetry::{Outcome, Trace};

/// The options of a caller's call, in addition to the query.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// True if the call goes to a node even if an answer is stored. The node's answer is stored all the same.
    pub bypass: bool,
    /// The slot below which this caller gets no stored answer while a node can give a newer one. If no node
    /// reaches that slot, the caller gets an answer below it, not an error.
    pub monotonic_slot: Option<Slot>,
    /// The moment at which the caller stops waiting.
    pub deadline: Instant,
    /// The content coding that the caller accepts. The answer may still come uncompressed.
    pub coding: Option<Coding>,
    /// The id by which the pool tells callers apart.
    pub caller: CallerId,
    /// The call's span context.
    pub trace: Trace,
}

/// An answer on its way to a caller.
#[derive(Debug, Clone)]
pub struct CacheAnswer {
    /// The node's result or error.
    pub payload: Payload,
    /// The source of the answer, for the `Cache-Status` header.
    pub status: CacheStatus,
    /// The source of the answer, for metrics.
    pub outcome: Outcome,
    /// The slot, age and class of the answer.
    pub meta: EntryMeta,
    /// The text of `payload` in the caller's coding. `None` if the text is not compressed.
    pub compressed: Option<Arc<CompressedText>>,
}

/// The limits of one caller that may change while its call is under way: the lowest slot that it accepts, and the
/// memory that it may use.
pub trait Conditions: Send + Sync {
    /// Returns the slot below which this caller gets no answer from a look-up at present. A fetched answer
    /// may be below that slot.
    fn monotonic_slot(&self) -> Option<Slot>;

    /// Reserves memory for `bytes` bytes that are written for this caller only. `None` if memory is short.
    fn reserve_memory(&self, bytes: usize) -> Option<MemoryPermit>;
}

/// The permit for memory that is reserved for a caller. Dropping the permit frees the memory.
pub type MemoryPermit = Box<dyn Send + Sync>;

/// A caller without conditions beyond its [`CallOptions`].
pub struct NoConditions;

impl Conditions for NoConditions {
    fn monotonic_slot(&self) -> Option<Slot> {
        None
    }

    fn reserve_memory(&self, _: usize) -> Option<MemoryPermit> {
        Some(Box::new(()))
    }
}
