//! The options of a call to the cache, and the answer that it gives.

use std::sync::Arc;

use tokio::time::Instant;

use super::entry::{EntryMeta, Payload};
use super::status::CacheStatus;
use crate::coding::{Coded, Coding};
use crate::methods::Slot;
use crate::pool::Caller;
use crate::telemetry::{Outcome, Trace};

/// The options of a call beside the query.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// Go past the cache (the answer is kept all the same).
    pub bypass: bool,
    /// The slot that this caller must not fall behind: a hit below is a miss to this caller; never an error.
    pub floor: Option<Slot>,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// The coding in which the caller takes a long answer; it may get it plain all the same.
    pub coding: Option<Coding>,
    /// The caller, as the pool tells callers apart.
    pub caller: Caller,
    /// Its place in a trace.
    pub trace: Trace,
}

/// An answer on its way to a caller.
#[derive(Debug, Clone)]
pub struct CacheAnswer {
    /// What a node said.
    pub payload: Payload,
    /// Where it came from, for the `Cache-Status` header.
    pub status: CacheStatus,
    /// The same, for metrics.
    pub outcome: Outcome,
    /// What it stands for.
    pub stamp: EntryMeta,
    /// The text of `payload` in the coding that the caller takes, where it is there so.
    pub coded: Option<Arc<Coded>>,
}

/// The conditions of a caller that the cache asks again while an answer takes its time.
pub trait Conditions: Send + Sync {
    /// The slot that this caller must not fall behind by now.
    fn floor(&self) -> Option<Slot>;

    /// Room for so many bytes that are to be written for this caller alone; `None` where there is none.
    fn room(&self, bytes: usize) -> Option<Room>;
}

/// Room that a caller has given, until it is dropped.
pub type Room = Box<dyn Send + Sync>;

/// No conditions beyond the [`CallOptions`].
pub struct NoConditions;

impl Conditions for NoConditions {
    fn floor(&self) -> Option<Slot> {
        None
    }

    fn room(&self, _: usize) -> Option<Room> {
        Some(Box::new(()))
    }
}
