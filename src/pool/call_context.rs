//! What every call to nodes carries from its caller, and what it brings back beside its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::Instant;

use crate::fair::CallerId;
use crate::telemetry::Trace;

/// The length of the longest answer that nodes have sent for a call, in bytes, whether it was used or refused. All clones
/// share it.
#[derive(Debug, Clone, Default)]
pub struct LongestRead(Arc<AtomicUsize>);

impl LongestRead {
    pub fn note(&self, bytes: usize) {
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone)]
pub struct CallContext {
    /// The time at which the caller stops waiting.
    pub deadline: Instant,
    /// The caller. If several callers share the call, this is the caller that has waited longest.
    pub caller: CallerId,
    /// The caller's trace, to which every attempt adds a span.
    pub trace: Trace,
    /// True if no caller waits for the answer. The call then uses a node's rate limit only while no caller's call wants
    /// it.
    pub is_background: bool,
    /// What nodes have sent for the call, by which its price follows.
    pub read: LongestRead,
}

impl CallContext {
    /// Returns the context of a call that the gateway makes on its own, with this deadline. No caller waits for it.
    pub fn own(deadline: Instant) -> Self {
        let (caller, trace, read) = (CallerId::default(), Trace::default(), LongestRead::default());
        Self { deadline, caller, trace, is_background: true, read }
    }
}
