//! A model-based test of carried accounts, which are served at later slots because no block has written them.
//! The model knows the cluster's state at every slot.
//!
//! Blocks write accounts, and nodes answer from recent slots. The follower, which reads the blocks for the cache,
//! trails the nodes or starts anew. An answer must show the state at the slot that it names. One account changes
//! without a block that lists it, as sysvars do. Another account has forms that change with each slot.

mod cluster;
mod named;

use super::*;
use crate::cache::CacheStatus;
use crate::cache::model::stepped_cache::AnsweredCaller;
use crate::config::FollowMode;
use crate::follow::tests::TestChain;
use AccountQuestion::{Balance, List, Single};
use cluster::{
    ACCOUNTS, AccountQuestion, Block, CLOCKED, Cluster, HISTORY, LISTS, PLAIN, TOKEN, UNSEEN, asked, pubkey,
};

#[derive(Debug, Clone)]
enum ModelStep {
    /// The cluster skips `skipped` slots, and then makes a block that writes the accounts `writes`.
    Block { skipped: Slot, writes: Vec<u8> },
    /// The block that is `behind` blocks before the newest block becomes finalized, if it is not yet.
    Finalize { behind: usize },
    /// The follower, which reads the blocks for the cache, reads at most `blocks` further blocks. Once it has read
    /// the newest block, a poll confirms that there is no newer one.
    Follow { blocks: usize },
    /// The follower, which reads the blocks for the cache, forgets the run of blocks that it has read, and starts
    /// anew at the newest block.
    Restart,
    /// A caller asks. If `wanted_behind` is set, the call has a minContextSlot, unless it asks for a balance.
    /// `wanted_behind` counts slots down from the newest slot at `commitment`.
    Ask { question: AccountQuestion, commitment: Commitment, wanted_behind: Option<i64> },
    /// A node answers a call under way, and `choice` picks the call. The answer has the slot of the block that is
    /// `behind` blocks before the newest block at the call's commitment. If `is_old` is true, the node has an old
    /// version, which at finalized may show data of a later block.
    Answer { choice: usize, behind: usize, is_old: bool },
    /// Time passes.
    Wait { ms: u64 },
    /// An account is purged.
    Purge { account: u8 },
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let account = || proptest::sample::select(ACCOUNTS.to_vec());
    let question = prop_oneof![
        3 => (account(), any::<bool>()).prop_map(|(account, parsed)| Single { account, parsed }),
        2 => (0..LISTS.len(), any::<bool>()).prop_map(|(list, parsed)| List { list, parsed }),
        1 => proptest::sample::select(vec![TOKEN, CLOCKED]).prop_map(|account| Balance { account }),
    ];
    let commitment = proptest::sample::select(vec![Commitment::Confirmed, Commitment::Finalized]);
    let writes = proptest::collection::vec(proptest::sample::select(vec![PLAIN, TOKEN, CLOCKED]), 0..2);
    let step = prop_oneof![
        5 => (prop_oneof![4 => Just(0), 1 => 1..4_u64], writes)
            .prop_map(|(skipped, writes)| ModelStep::Block { skipped, writes }),
        2 => (0..8_usize).prop_map(|behind| ModelStep::Finalize { behind }),
        5 => (0..4_usize).prop_map(|blocks| ModelStep::Follow { blocks }),
        1 => Just(ModelStep::Restart),
        8 => (question, commitment, proptest::option::weighted(0.2, -3..6_i64)).prop_map(
            |(question, commitment, wanted_behind)| ModelStep::Ask { question, commitment, wanted_behind }
        ),
        6 => (0..4_usize, 0..5_usize, proptest::bool::weighted(0.3))
            .prop_map(|(choice, behind, is_old)| ModelStep::Answer { choice, behind, is_old }),
        4 => prop_oneof![0..300_u64, 0..6_000_u64].prop_map(|ms| ModelStep::Wait { ms }),
        1 => account().prop_map(|account| ModelStep::Purge { account }),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The question of a caller or of an upstream call, with its commitment.
#[derive(Debug, Clone, Copy)]
struct TestCall {
    question: AccountQuestion,
    commitment: Commitment,
}

struct CarryModel {
    cache: SteppedCache<TestCall>,
    cluster: Cluster,
    chain: TestChain,
    /// The position of the first block that the follower has not read yet.
    unread: usize,
    /// True if a node of an old version has answered at finalized. Such an answer may show data of a later
    /// slot than the one in its context.
    has_old_answers: bool,
    carried: usize,
}

impl CarryModel {
    fn new() -> Self {
        Self::in_mode(FollowMode::On)
    }

    fn in_mode(mode: FollowMode) -> Self {
        let cache = SteppedCache::new(|config| config.follow.mode = mode);
        let newest = cache.frontier.slot(Commitment::Confirmed);
        let slots = newest - HISTORY..=newest;
        let blocks: Vec<_> = slots.map(|slot| Block { slot, writes: Vec::new() }).collect();
        let final_slot = cache.frontier.slot(Commitment::Finalized);
        let finalized = blocks.iter().position(|block| block.slot == final_slot).unwrap();
        let first = newest - HISTORY;
        let chain = TestChain::begin(&cache.followed, first);
        let mut model = Self {
            cache,
            cluster: Cluster { blocks, finalized },
            chain,
            unread: 1,
            has_old_answers: false,
            carried: 0,
        };
        model.follow(usize::MAX);
        model
    }

    /// Lets the follower read the next `blocks` blocks.
    fn follow(&mut self, blocks: usize) {
        let to = self.cluster.blocks.len().min(self.unread.saturating_add(blocks));
        for block in &self.cluster.blocks[self.unread..to] {
            let writes: Vec<_> = block.writes.iter().map(|account| pubkey(*account)).collect();
            self.chain.add(block.slot, &writes);
        }
        self.unread = to;
        if self.unread == self.cluster.blocks.len() {
            self.chain.renew();
        }
        self.chain.finalize(self.cluster.blocks[self.cluster.finalized].slot);
    }

    fn newest_slot(&self, commitment: Commitment) -> Slot {
        let newest = self.cluster.newest();
        let position = if commitment == Commitment::Finalized { self.cluster.finalized } else { newest };
        self.cluster.blocks[position].slot
    }

    fn apply(&mut self, step: ModelStep) {
        match step {
            ModelStep::Block { skipped, writes } => {
                let slot = self.newest_slot(Commitment::Confirmed) + 1 + skipped;
                self.cluster.blocks.push(Block { slot, writes });
                self.cache.frontier.probed(
                    self.cache.frontier.era(),
                    0,
                    Commitment::Confirmed,
                    slot,
                    Instant::now(),
                );
            }
            ModelStep::Finalize { behind } => {
                let finalized = self.cluster.newest().saturating_sub(behind);
                if finalized > self.cluster.finalized {
                    self.cluster.finalized = finalized;
                    let slot = self.cluster.blocks[finalized].slot;
                    self.cache.frontier.probed(
                        self.cache.frontier.era(),
                        0,
                        Commitment::Finalized,
                        slot,
                        Instant::now(),
                    );
                }
            }
            ModelStep::Follow { blocks } => self.follow(blocks),
            ModelStep::Restart => {
                let newest = self.newest_slot(Commitment::Confirmed);
                self.chain = TestChain::begin(&self.cache.followed, newest);
                self.unread = self.cluster.blocks.len();
            }
            ModelStep::Ask { question, commitment, wanted_behind } => {
                let newest = self.newest_slot(commitment);
                let min_slot = wanted_behind.map(|behind| newest.saturating_add_signed(-behind));
                let query = question.query(commitment, min_slot);
                self.cache.ask(TestCall { question, commitment }, query, options(false, None));
            }
            ModelStep::Answer { choice, behind, is_old } => {
                if let Some(number) = self.cache.call_under_way(choice) {
                    self.answer(number, behind, is_old);
                }
            }
            ModelStep::Wait { .. } => {}
            ModelStep::Purge { account } => self.cache.purge_account(pubkey(account)),
        }
    }

    /// Answers the upstream call with this number. The answer has the slot of the block that is `behind` blocks
    /// before the newest block at the call's commitment. If `is_old` is true, an answer at finalized shows the
    /// newest state.
    fn answer(&mut self, number: usize, behind: usize, is_old: bool) {
        let query = self.cache.calls[number].request.query.clone();
        let commitment = query.commitment().unwrap();
        let newest =
            if commitment == Commitment::Finalized { self.cluster.finalized } else { self.cluster.newest() };
        let position = newest.saturating_sub(behind);
        let slot = self.cluster.blocks[position].slot;
        let body = if query.min_context_slot().is_some_and(|own| slot < own) {
            let body =
                format!(r#"{{"code":-32016,"message":"not reached","data":{{"contextSlot":{slot}}}}}"#);
            NodeReply::Error { code: -32016, body: body.into() }
        } else {
            // An old node may show the state of a later block at finalized.
            let is_newer = is_old && commitment == Commitment::Finalized;
            self.has_old_answers |= is_newer;
            let shown = if is_newer { self.cluster.newest() } else { position };
            let shown = self.cluster.blocks[shown].slot;
            let (accounts, parsed, balance) = asked(&query);
            let value = match (&query, balance) {
                (_, Some(account)) => self.cluster.value(Balance { account }, shown),
                (Query::Accounts(_), None) => {
                    let values = accounts.iter().map(|account| self.cluster.account(*account, parsed, shown));
                    format!("[{}]", values.collect::<Vec<_>>().join(","))
                }
                _ => self.cluster.account(accounts[0], parsed, shown),
            };
            let version = if is_old { "4.0.2" } else { "4.1.0" };
            let context = format!(r#"{{"apiVersion":"{version}","slot":{slot}}}"#);
            NodeReply::Result(format!(r#"{{"context":{context},"value":{value}}}"#).into())
        };
        self.cache.answer_call(number, body, slot);
    }

    /// Runs all tasks, and checks the answers that callers got.
    async fn settle(&mut self) -> Result<(), TestCaseError> {
        for AnsweredCaller { caller, answer } in self.cache.settle().await {
            let Ok(answer) = answer else { continue };
            let Payload::Result(body) = &answer.payload else { continue };
            let body = body.whole();
            let text = String::from_utf8_lossy(&body);
            let is_carried = answer.status == CacheStatus::Carried;
            self.carried += usize::from(is_carried);
            let TestCall { question, commitment } = caller.call;
            let slot = answer.meta.slot;
            // Answers of old nodes at finalized need not show the state at their slot. A carried answer must.
            let is_old = commitment == Commitment::Finalized && self.has_old_answers;
            if is_carried || !is_old {
                let expected = format!(r#""slot":{slot}}},"value":{}}}"#, self.cluster.value(question, slot));
                prop_assert!(
                    text.ends_with(&expected),
                    "{question:?} {commitment}: {text}, expected {expected}"
                );
            }
            if let Some(min_slot) = caller.min_slot {
                prop_assert!(slot >= min_slot, "{question:?} {commitment}: {slot} below {min_slot}");
            }
        }
        Ok(())
    }

    async fn run(mut self, steps: Vec<ModelStep>) -> Result<usize, TestCaseError> {
        for step in steps {
            if let ModelStep::Wait { ms } = step {
                advance(Duration::from_millis(ms)).await;
            }
            self.apply(step);
            self.settle().await?;
        }
        for _ in 0..40 {
            for number in self.cache.calls_under_way() {
                self.answer(number, 0, false);
            }
            self.settle().await?;
            if !self.cache.has_waiting_callers() {
                return Ok(self.carried);
            }
            advance(Duration::from_millis(100)).await;
        }
        prop_assert!(false, "a caller waits for ever");
        Ok(0)
    }
}

proptest! {
    #[test]
    fn answers_are_the_state_at_their_slot(steps in steps()) {
        on_a_stepped_clock(async { CarryModel::new().run(steps).await })?;
    }
}
