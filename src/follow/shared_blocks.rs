//! Blocks that several replicas of slotfront share: one replica asks a node, and the others take the block that
//! this replica read.
//!
//! The replica that first looks for a block claims it in the shared store and asks a node. It then publishes
//! the accounts that the block may write. The others wait for these accounts, at most [`WAIT`]. If they do
//! not get the accounts in this way, they ask their own nodes for the block. Each replica polls its own nodes
//! for the slots that have a block, and joins each block to its chain by slot and hash.
//!
//! No replica leads: a leader that hangs or is behind would have to be found out and replaced, and all would be late.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::block::BlockWrites;
use super::record;
use crate::methods::Slot;
use crate::pool::Pool;
use crate::redis_store::mac::StoreMac;
use crate::redis_store::{CLAIM, Store};
use crate::telemetry::{SharedOperation, SharedResult};

/// The longest wait for a block that another replica has claimed.
const WAIT: Duration = Duration::from_secs(1);
/// The lifetime of a replica's claim that it is fetching a block. A claim ends before the replicas that wait for
/// the block give up, so that one of them can claim the block next.
const CLAIM_LIFE: Duration = Duration::from_millis(800);
/// The pause before the store is asked again for a block that another replica has claimed.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// The time above which a wait for a block that another replica has claimed counts as slow.
const SLOW_WAIT: Duration = Duration::from_millis(250);
/// The time after a slow or vain wait in which this replica waits for no block that another replica has claimed.
const IMPATIENT_FOR: Duration = Duration::from_secs(10);
/// The lifetime of a block's record in the shared store. Replicas need only the newest blocks.
const RECORD_LIFE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) enum SharedBlock {
    Read(BlockWrites),
    /// Another replica is asking a node for the block.
    Claimed,
    /// A replica has read the block without its rewards. Only another answer of a node tells whether the
    /// rewards are late or do not exist.
    Incomplete,
    /// The store does not give the block, so a node must be asked.
    Absent,
}

pub(super) trait BlockStore: Sync {
    /// Looks for the block at `slot`. If no replica has read or claimed the block, claims it for this replica
    /// and returns [`SharedBlock::Absent`].
    fn look_up(&self, slot: Slot) -> impl Future<Output = SharedBlock> + Send;

    /// Publishes the block at `slot`. `node` is the id of the node that gave the block. A block without its
    /// rewards replaces a claim, but no other record of the block.
    fn publish(&self, slot: Slot, node: usize, block: &BlockWrites) -> impl Future<Output = ()> + Send;
}

/// Finds the blocks that other replicas have read, and publishes those that this replica reads.
pub(super) struct SharedBlocks<S> {
    /// The shared store. `None` if blocks are not shared.
    store: Option<S>,
    /// The time until which this replica waits for no block that another replica has claimed, because an earlier
    /// wait was slow or in vain. `None` if no wait was slow or in vain so far.
    impatient_until: Mutex<Option<Instant>>,
}

impl<S: BlockStore> SharedBlocks<S> {
    /// Creates a handle to the blocks in `store`. If `store` is `None`, no blocks are shared.
    pub(super) fn new(store: Option<S>) -> Self {
        Self { store, impatient_until: Mutex::default() }
    }

    /// Returns the block at `slot` if another replica has read it. Waits for a block that another replica has
    /// claimed. `None` if nodes must be asked.
    pub(super) async fn find(&self, slot: Slot) -> Option<BlockWrites> {
        let store = self.store.as_ref()?;
        let began = Instant::now();
        let mut has_waited = false;
        let (block, in_vain) = loop {
            match store.look_up(slot).await {
                SharedBlock::Read(block) => break (Some(block), false),
                SharedBlock::Incomplete => break (None, false),
                SharedBlock::Claimed if self.may_wait() && began.elapsed() < WAIT => {
                    has_waited = true;
                    sleep(LOOK_AGAIN).await;
                }
                SharedBlock::Claimed | SharedBlock::Absent => break (None, true),
            }
        };
        if has_waited && (in_vain || began.elapsed() > SLOW_WAIT) {
            // A replica that claims blocks and reads them slowly, or never, would delay each block.
            *self.impatient_until.lock() = Some(Instant::now() + IMPATIENT_FOR);
        }
        block
    }

    /// Returns the block at `slot` if another replica has read it. Does not wait for a claimed block.
    pub(super) async fn find_now(&self, slot: Slot) -> Option<BlockWrites> {
        match self.store.as_ref()?.look_up(slot).await {
            SharedBlock::Read(block) => Some(block),
            SharedBlock::Claimed | SharedBlock::Incomplete | SharedBlock::Absent => None,
        }
    }

    /// Publishes the block at `slot`. `node` is the id of the node that gave the block.
    pub(super) async fn publish(&self, slot: Slot, node: usize, block: &BlockWrites) {
        if let Some(store) = &self.store {
            store.publish(slot, node, block).await;
        }
    }

    fn may_wait(&self) -> bool {
        let until = *self.impatient_until.lock();
        until.is_none_or(|until| until <= Instant::now())
    }
}

/// The Redis store through which replicas share blocks, and the MAC that signs the records of the blocks.
pub(super) struct StoredBlocks {
    pub(super) store: Arc<Store>,
    pub(super) mac: StoreMac,
    pub(super) pool: Arc<Pool>,
}

impl StoredBlocks {
    /// Returns the key of the block at `slot` in the Redis store. `None` while the genesis hash of the Solana
    /// cluster is unknown.
    fn key(&self, slot: Slot) -> Option<String> {
        let genesis = self.pool.genesis()?;
        let namespace = self.store.namespace();
        // A gateway with another secret could not read this gateway's records, so it uses other keys.
        let [a, b, c, d, ..] = self.mac.sign(&[b"block"]);
        let secret = u32::from_be_bytes([a, b, c, d]);
        Some(format!("{namespace}:block1:{genesis}:{{{slot}}}:{secret:08x}"))
    }
}

impl BlockStore for StoredBlocks {
    async fn look_up(&self, slot: Slot) -> SharedBlock {
        let Some(key) = self.key(slot) else { return SharedBlock::Absent };
        let began = Instant::now();
        // One byte more than allowed is read, so that a longer record is seen to be too long.
        let looked_up = self.store.claim_block(&key, CLAIM_LIFE, record::MAX_RECORD + 1).await;
        // The store has already counted the failure.
        let Ok(looked_up) = looked_up else { return SharedBlock::Absent };
        let (result, block) = match &*looked_up {
            b"" => (SharedResult::Miss, SharedBlock::Absent),
            CLAIM => (SharedResult::Miss, SharedBlock::Claimed),
            bytes => match record::decode(&self.mac, &key, bytes) {
                None => (SharedResult::Foreign, SharedBlock::Absent),
                Some(block) if block.lacks_fee_reward => (SharedResult::Miss, SharedBlock::Incomplete),
                Some(block) => (SharedResult::Hit, SharedBlock::Read(block)),
            },
        };
        self.store.count(SharedOperation::Block, result, began.elapsed());
        block
    }

    async fn publish(&self, slot: Slot, node: usize, block: &BlockWrites) {
        // Since the node gave the block, the pool may have found that the node belongs to another cluster.
        let Some(key) = self.key(slot).filter(|_| self.pool.is_followable(node)) else { return };
        if let Some(record) = record::encode(&self.mac, &key, block) {
            self.store.put_block(&key, &record, !block.lacks_fee_reward, RECORD_LIFE).await;
        }
    }
}
