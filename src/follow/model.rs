//! A model of following: random blocks as nodes give them, and answers that were read at any slot and
//! commitment.
//!
//! A node's chain grows with skipped slots, failed transactions, accounts from lookup tables and short
//! epochs. The follower reads its blocks some time later, and learns of final slots later still. An answer
//! that is served for a newer slot than it was read at must equal the state at that newer slot.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::block::BlockWrites;
use super::chain::ChainWriter;
use super::last_writes::{Bucket, Buckets};
use super::{Carry, ChainTip};
use crate::methods::{EpochSchedule, Pubkey, Slot};

const FIRST: Slot = 1_000;
/// The number of accounts. The last account is that of the leader, who gets the fees.
const ACCOUNTS: u8 = 5;
const SLOTS_PER_EPOCH: u64 = 32;
/// The state that answers from another fork show for every account.
const ELSEWHERE: u64 = u64::MAX;

/// A transaction. `writable` lists further writable accounts, each with true if the transaction changes this
/// account. A failed transaction changes only the payer and the leader.
#[derive(Debug, Clone)]
struct ModelTransfer {
    payer: u8,
    writable: Vec<(u8, bool)>,
    has_failed: bool,
}

/// One action of the node, the follower or a caller, in a random sequence of actions.
#[derive(Debug, Clone)]
enum ModelStep {
    /// The node's chain gets a block after `skipped` slots without a block.
    Block { skipped: u64, transfers: Vec<ModelTransfer> },
    /// The follower reads at most `blocks` blocks. If `without_rewards` is true, the last of them still lacks
    /// its rewards, so the follower stops before it.
    Follow { blocks: usize, without_rewards: bool },
    /// The block that is `behind` blocks below the node's newest block becomes final.
    Finalize { behind: usize },
    /// The follower learns of the newest final slot.
    Learn,
    /// A caller reads `account` at confirmed. The answer is from the block that is `behind` blocks below the
    /// newest block.
    ReadConfirmed { account: u8, behind: usize },
    /// A caller reads `account` at finalized. If `is_old` is true, the node is older than Agave 4.1. If
    /// `is_ahead` is true as well, the answer shows the next block's state.
    ReadFinalized { account: u8, is_old: bool, is_ahead: bool },
    /// A caller reads `account` at a slot that the node's chain skipped, so the answer comes from another
    /// fork. `behind` is the number of skipped slots above this slot.
    ReadElsewhere { account: u8, behind: usize },
}

fn transfers() -> impl Strategy<Value = Vec<ModelTransfer>> {
    let writable = proptest::collection::vec((0..ACCOUNTS - 1, any::<bool>()), 0..2);
    let transfer = (0..ACCOUNTS - 1, writable, proptest::bool::weighted(0.3));
    let transfer =
        transfer.prop_map(|(payer, writable, has_failed)| ModelTransfer { payer, writable, has_failed });
    proptest::collection::vec(transfer, 0..2)
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let account = || 0..ACCOUNTS;
    let step = prop_oneof![
        6 => (prop_oneof![3 => Just(0), 1 => 1..3_u64], transfers())
            .prop_map(|(skipped, transfers)| ModelStep::Block { skipped, transfers }),
        4 => (0..4_usize, proptest::bool::weighted(0.2))
            .prop_map(|(blocks, without_rewards)| ModelStep::Follow { blocks, without_rewards }),
        2 => (0..8_usize).prop_map(|behind| ModelStep::Finalize { behind }),
        2 => Just(ModelStep::Learn),
        3 => (account(), 0..6_usize)
            .prop_map(|(account, behind)| ModelStep::ReadConfirmed { account, behind }),
        3 => (account(), any::<bool>(), any::<bool>())
            .prop_map(|(account, is_old, is_ahead)| ModelStep::ReadFinalized { account, is_old, is_ahead }),
        1 => (account(), 0..6_usize)
            .prop_map(|(account, behind)| ModelStep::ReadElsewhere { account, behind }),
    ];
    proptest::collection::vec(step, 1..120)
}

fn address(n: u8) -> Pubkey {
    Pubkey([n; 32])
}

/// The state after a block: for each account, the slot at which the account changed last.
type ModelState = [u64; ACCOUNTS as usize];

/// A block of the node's chain.
struct ModelBlock {
    slot: Slot,
    parent: Slot,
    state: ModelState,
    transfers: Vec<ModelTransfer>,
}

impl ModelBlock {
    /// Returns the block at `slot` that follows `parent`. In the first block of an epoch every account
    /// changes, although `transfers` does not list it.
    fn after(parent: &Self, slot: Slot, transfers: Vec<ModelTransfer>) -> Self {
        let mut state = parent.state;
        for transfer in &transfers {
            state[usize::from(transfer.payer)] = slot;
            let changes = transfer.writable.iter().filter(|(_, changes)| *changes && !transfer.has_failed);
            changes.for_each(|(account, _)| state[usize::from(*account)] = slot);
            state[usize::from(ACCOUNTS - 1)] = slot;
        }
        if slot / SLOTS_PER_EPOCH > parent.slot / SLOTS_PER_EPOCH {
            state = [slot; ACCOUNTS as usize];
        }
        Self { slot, parent: parent.slot, state, transfers }
    }

    /// Returns the JSON text of the block, as a node gives it.
    fn text(&self, with_rewards: bool) -> Vec<u8> {
        let key = |n: u8, writable: bool, source: &str| json!({ "pubkey": address(n).to_string(), "signer": false, "source": source, "writable": writable });
        let transactions = self.transfers.iter().map(|transfer| {
            let mut keys = vec![key(transfer.payer, true, "transaction"), key(99, false, "transaction")];
            keys.extend(transfer.writable.iter().map(|(account, _)| key(*account, true, "lookupTable")));
            let err = transfer.has_failed.then_some("InsufficientFundsForFee");
            json!({ "meta": { "err": err }, "transaction": { "accountKeys": keys, "signatures": [] } })
        });
        let leader = address(ACCOUNTS - 1).to_string();
        let fee = json!({ "pubkey": leader, "rewardType": "Fee", "lamports": 1, "postBalance": 2 });
        let is_paid = with_rewards && !self.transfers.is_empty();
        let mut block = json!({
            "blockhash": self.slot.to_string(),
            "previousBlockhash": self.parent.to_string(),
            "parentSlot": self.parent,
            "rewards": if is_paid { vec![fee] } else { vec![] },
            "transactions": transactions.collect::<Value>(),
        });
        if self.slot / SLOTS_PER_EPOCH > self.parent / SLOTS_PER_EPOCH {
            block["numRewardPartitions"] = json!(1);
        }
        block.to_string().into_bytes()
    }
}

/// An answer about an account, read while the chain with the number `number` was followed.
struct ModelAnswer {
    number: u64,
    account: u8,
    slot: Slot,
    state: u64,
    /// True if the answer may show a later state than the state at its context slot.
    may_be_newer: bool,
}

/// The node's chain, the follower's chain, and the answers that callers got.
struct FollowModel {
    blocks: Vec<ModelBlock>,
    finalized: usize,
    /// The number of blocks that the follower has read.
    followed: usize,
    schedule: EpochSchedule,
    buckets: Buckets,
    writer: ChainWriter,
    answers: Vec<ModelAnswer>,
}

impl FollowModel {
    fn new() -> Self {
        let schedule =
            json!({ "slotsPerEpoch": SLOTS_PER_EPOCH, "firstNormalEpoch": 0, "firstNormalSlot": 0 });
        let genesis = ModelBlock { slot: FIRST, parent: FIRST - 1, state: [0; 5], transfers: vec![] };
        Self {
            blocks: vec![genesis],
            finalized: 0,
            followed: 1,
            schedule: EpochSchedule::parse(schedule.to_string().as_bytes()).unwrap(),
            buckets: Buckets::default(),
            writer: ChainWriter::new(1, FIRST, Instant::now()),
            answers: Vec::new(),
        }
    }

    fn newest(&self) -> &ModelBlock {
        self.blocks.last().expect("the chain has a first block")
    }

    fn bucket(&self, account: u8) -> Bucket {
        self.buckets.of(&address(account))
    }

    /// Adds an answer that shows `account` as it is in `state`. The context slot of the answer is `slot`.
    fn read(&mut self, account: u8, slot: Slot, state: &ModelState, may_be_newer: bool) {
        let number = self.writer.chain().number();
        let state = state[usize::from(account)];
        self.answers.push(ModelAnswer { number, account, slot, state, may_be_newer });
    }

    /// Lets the follower read its next block. Returns false if the rewards of the block are missing.
    fn follow(&mut self, without_rewards: bool) -> bool {
        let block = &self.blocks[self.followed];
        let writes = BlockWrites::parse(&block.text(!without_rewards)).unwrap();
        if writes.lacks_fee_reward {
            return false;
        }
        let (slot, tip) = (block.slot, self.writer.chain().tip().slot);
        self.followed += 1;
        if writes.begins_rewards || self.schedule.epoch(slot) != self.schedule.epoch(tip) {
            let number = self.writer.chain().number() + 1;
            self.writer = ChainWriter::new(number, slot, Instant::now());
        } else {
            let buckets = writes.writes.iter().map(|write| self.buckets.of_fingerprint(*write)).collect();
            assert_eq!((writes.parent_slot, self.writer.add(slot, buckets)), (tip, Ok(())));
        }
        true
    }

    fn step(&mut self, step: ModelStep) {
        match step {
            ModelStep::Block { skipped, transfers } => {
                let slot = self.newest().slot + 1 + skipped;
                let block = ModelBlock::after(self.newest(), slot, transfers);
                self.blocks.push(block);
            }
            ModelStep::Follow { blocks, without_rewards } => {
                let last = self.blocks.len().min(self.followed + blocks);
                while self.followed < last && self.follow(without_rewards && self.followed + 1 == last) {}
            }
            ModelStep::Finalize { behind } => {
                self.finalized = self.finalized.max(self.blocks.len().saturating_sub(behind + 1));
            }
            ModelStep::Learn => {
                let finalized = self.blocks[self.finalized].slot;
                assert_eq!(self.writer.finalize(finalized), Ok(()));
            }
            ModelStep::ReadConfirmed { account, behind } => {
                let block = &self.blocks[self.blocks.len().saturating_sub(behind + 1)];
                let (slot, state) = (block.slot, block.state);
                self.read(account, slot, &state, false);
            }
            ModelStep::ReadFinalized { account, is_old, is_ahead } => {
                let slot = self.blocks[self.finalized].slot;
                // On a real chain, many blocks follow a final block, so the follower has read the next block.
                let is_ahead = is_old && is_ahead && self.finalized + 1 < self.followed;
                let state = self.blocks[self.finalized + usize::from(is_ahead)].state;
                self.read(account, slot, &state, is_old);
            }
            ModelStep::ReadElsewhere { account, behind } => {
                let slots = (FIRST..self.newest().slot).rev();
                let mut skipped = slots.filter(|slot| self.blocks.iter().all(|block| block.slot != *slot));
                let skipped = skipped.nth(behind);
                if let Some(slot) = skipped {
                    self.read(account, slot, &[ELSEWHERE; ACCOUNTS as usize], false);
                }
            }
        }
    }

    /// Checks every answer that may be served for a newer slot than it was read at. Returns the number of
    /// these answers.
    fn check(&self) -> Result<u64, TestCaseError> {
        let mut count = 0;
        let chain = self.writer.chain();
        for answer in self.answers.iter().filter(|answer| answer.number == chain.number()) {
            let may_be_newer = answer.may_be_newer;
            let to_target = Carry::ToTarget { may_be_newer };
            for carry in [Carry::ToTip, to_target] {
                let carried = chain.unchanged_until(self.bucket(answer.account), answer.slot, carry);
                let Some(ChainTip { slot, .. }) = carried else { continue };
                count += 1;
                let block = self.blocks[..self.followed].iter().find(|block| block.slot == slot);
                let state = block.map(|block| block.state[usize::from(answer.account)]);
                prop_assert_eq!(
                    state,
                    Some(answer.state),
                    "account {} read at {}, carried to {} ({:?})",
                    answer.account,
                    answer.slot,
                    slot,
                    carry
                );
                let newest = if carry == Carry::ToTip { self.followed - 1 } else { self.finalized };
                prop_assert!(slot <= self.blocks[newest].slot, "{} is not there yet", slot);
            }
        }
        Ok(count)
    }
}

#[test]
fn carried_answers_equal_the_state_at_their_slot() {
    let mut runner = TestRunner::default();
    let carried = Cell::new(0);
    let outcome = runner.run(&steps(), |steps| {
        let mut model = FollowModel::new();
        for step in steps {
            model.step(step);
            carried.set(carried.get() + model.check()?);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(carried.get() > 10_000, "only {} answers were carried", carried.get());
}
