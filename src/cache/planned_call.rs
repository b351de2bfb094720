//! A caller's call of the cache: what it asks for, under which conditions, and the answer that it gets.

use std::sync::Arc;

use tokio::time::Instant;

use super::charge::Charge;
use super::entry::{EntryMeta, Payload};
use super::freshness::{Limit, ServeRule};
use super::key::LookupPlan;
use super::status::CacheStatus;
use crate::coding::{Coding, CompressedText};
use crate::methods::{Query, Slot};
use crate::pool::CallerId;
use crate::telemetry::Trace;

/// The options of a caller's call, in addition to the query.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// True if the call goes to a node even if an answer is stored. The node's answer is stored all the same.
    pub bypass: bool,
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
    /// The source of the answer, for the `Cache-Status` header, the log and the metrics.
    pub status: CacheStatus,
    /// The slot, age and class of the answer.
    pub meta: EntryMeta,
    /// The text of `payload` in the caller's coding. `None` if the text is not compressed.
    pub compressed: Option<Arc<CompressedText>>,
}

/// The limits of one caller that may change while its call is under way: the lowest slot that it accepts, and the
/// memory that it may use.
pub trait Conditions: Send + Sync {
    /// Returns the slot below which this caller gets no stored answer at present while a node can give a newer one.
    /// If no node reaches that slot, the caller gets an answer below it, not an error.
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

/// A caller's call with its plan: the keys to look up, and the call to send to a node.
#[derive(Clone)]
pub(super) struct PlannedCall<'a> {
    pub(super) query: &'a Query,
    pub(super) plan: LookupPlan,
    pub(super) options: CallOptions,
    pub(super) charge: &'a Charge,
    pub(super) conditions: &'a dyn Conditions,
    /// The moment at which the caller arrived.
    pub(super) arrived_at: Instant,
}

impl PlannedCall<'_> {
    /// Returns the slot that a stored answer must reach to serve this caller at present: its minContextSlot or the
    /// slot that its key has seen, whichever is higher.
    pub(super) fn min_slot(&self) -> Slot {
        self.query.min_context_slot().max(self.conditions.monotonic_slot()).unwrap_or(0)
    }

    /// Returns the rule for an entry that is served to this caller within `limit`.
    pub(super) fn rule(&self, limit: Limit) -> ServeRule {
        ServeRule { limit, min_slot: 0, asked_since: Some(self.arrived_at) }
    }
}
