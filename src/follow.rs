//! Following the chain, to know which accounts did not change since they were read.
//!
//! A block lists every account that its transactions may write. So an account that no block has written since it was
//! read is the same at the newest slot, and needs no fetch, if the follower has read each confirmed block meanwhile.
//! This module knows blocks and slots, and no cache entries. The cache asks it one question: up to which slot is an
//! account unchanged, after it was read at a slot of a chain? ([`Chain::unchanged_until`])
//!
//! `follower` is the task that follows one chain after another. `reader` polls the nodes for new blocks, and `fetch`
//! asks for them. `block` reads the accounts that a block may write. `chain` joins blocks by their hashes and keeps the
//! last writes (`last_writes`). `excluded` lists the accounts that may change without being listed in a block.
//! `shared_blocks` lets one replica read a block for all, in the form of `record`. A chain that cannot go on is
//! replaced by a new one, and every account is then fetched once more.

mod block;
mod chain;
mod cross_check;
mod excluded;
mod fetch;
mod follower;
mod heads;
mod last_writes;
#[cfg(test)]
mod model;
mod reader;
mod record;
mod shared_blocks;
mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

pub use chain::{Carry, Chain, ChainTip};
pub use excluded::{is_excluded_address, is_excluded_owner};
pub use fetch::block_params;
pub use follower::Follower;
pub use heads::{BlockHead, Heads};
pub use last_writes::Bucket;
use last_writes::Buckets;
pub use reader::calls_per_slot;
pub use state::{FollowState, PauseReason};

use crate::methods::{Pubkey, Slot};
pub use crate::node::version::{EXACT_FINALIZED, NodeVersion};

#[derive(Debug, Default)]
pub struct FollowedChain {
    buckets: Buckets,
    chain: ArcSwapOption<Chain>,
    /// The newest blocks of the chain. `None` while following pauses.
    heads: watch::Sender<Option<Arc<Heads>>>,
    /// Notifies waiting tasks that the chain has a newer block, or that a chain has begun or ended.
    moved: watch::Sender<()>,
    last_number: AtomicU64,
    state: Mutex<FollowState>,
    /// True once an answer was served for a newer slot than it was read at, and was found wrong at the newer
    /// slot. Stays true until a restart.
    contradicted: AtomicBool,
    /// True if accounts were asked for since the follower last reset this flag.
    touched: AtomicBool,
    /// Notified by the first call for an account after the follower has reset `touched`.
    first_touch: Notify,
}

impl FollowedChain {
    /// Returns the bucket of an address: the index under which the last write of its account is kept. An
    /// address has the same bucket in every followed chain.
    pub fn bucket(&self, address: &Pubkey) -> Bucket {
        self.buckets.of(address)
    }

    /// Returns the chain that is followed now. `None` while following pauses. The guard should be dropped soon. Unlike
    /// a cloned `Arc`, the guard counts no reference, so cache hits on several cores do not write to shared memory.
    pub fn current(&self) -> Guard<Option<Arc<Chain>>> {
        self.chain.load()
    }

    /// Returns the number of the chain that is followed now. 0 while following pauses. A cached answer is
    /// stored with the number that was current before the node was asked.
    pub fn number(&self) -> u64 {
        self.chain.load().as_ref().map_or(0, |chain| chain.number())
    }

    /// Waits until the chain with the number `chain` has a block at `slot` or above, and returns the chain.
    /// `None` if the chain ends before that.
    pub async fn reached(&self, chain: u64, slot: Slot) -> Option<Arc<Chain>> {
        let mut moved = self.moved.subscribe();
        loop {
            let current = self.chain.load_full().filter(|current| current.number() == chain)?;
            if current.tip().slot >= slot {
                return Some(current);
            }
            moved.changed().await.ok()?;
        }
    }

    /// Returns a receiver of the newest blocks of the chain. It has `None` while following pauses.
    pub fn heads(&self) -> watch::Receiver<Option<Arc<Heads>>> {
        self.heads.subscribe()
    }

    /// Wakes the tasks that wait for a newer block, or for the end of the chain.
    fn note_move(&self) {
        self.moved.send_replace(());
    }

    /// Records that an account was asked for. If no call does so for five minutes, the follower stops reading
    /// blocks until the next call.
    pub fn touch(&self) {
        // Most calls only read the flag, so that its cache line does not move from core to core.
        if !self.touched.load(Ordering::Relaxed) && !self.touched.swap(true, Ordering::Relaxed) {
            self.first_touch.notify_one();
        }
    }

    /// Records that an account has changed although no block wrote it. Until a restart, no answer is served
    /// for a newer slot than it was read at.
    pub fn contradict(&self) {
        self.contradicted.store(true, Ordering::Relaxed);
    }

    /// Returns true if, since the start, an account was found changed although no block wrote it.
    pub fn is_contradicted(&self) -> bool {
        self.contradicted.load(Ordering::Relaxed)
    }

    pub fn state(&self) -> FollowState {
        *self.state.lock()
    }

    fn set_state(&self, state: FollowState) -> FollowState {
        std::mem::replace(&mut *self.state.lock(), state)
    }

    /// Returns true if accounts were asked for since the last call of this function.
    fn take_touched(&self) -> bool {
        self.touched.load(Ordering::Relaxed) && self.touched.swap(false, Ordering::Relaxed)
    }

    async fn touched(&self) {
        while !self.take_touched() {
            self.first_touch.notified().await;
        }
    }

    /// Makes `chain` the followed chain, until the returned guard is dropped.
    fn publish(&self, chain: &Arc<Chain>) -> PublishedChain<'_> {
        self.chain.store(Some(Arc::clone(chain)));
        self.note_move();
        PublishedChain(self)
    }

    fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The guard of a published chain. When the guard is dropped, no chain is followed any more.
struct PublishedChain<'a>(&'a FollowedChain);

impl Drop for PublishedChain<'_> {
    fn drop(&mut self) {
        self.0.chain.store(None);
        self.0.heads.send_replace(None);
        self.0.note_move();
    }
}
