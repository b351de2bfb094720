//! A simulated cluster: a seeded chain that advances by itself or by hand, and nodes that answer for it over HTTP.
//!
//! `slotfront dev`, tests and benches stand on it. The chain is a real state machine, no canned answers: blocks move
//! lamports and tokens, and accounts, balances, fees and rewards at a slot agree with the blocks up to it. There are
//! no forks: a processed block always becomes final. Nodes differ in lag, history, health and in the faults that a
//! test gives them.

mod answer;
mod chain;
mod draw;
mod examples;
mod fault;
mod node;
mod serve;
mod traits;

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use chain::{Chain, Genesis};
use slotfront_rpc::methods::{Commitment, Further, Pubkey, Slot};

pub use chain::accounts::Account;
pub use examples::Examples;
pub use fault::{Fault, Hold};
pub use node::{MAX_LAG, Node};

/// The length of a slot, about that of mainnet, where the settings name none.
pub const SLOT_TIME: Duration = Duration::from_millis(250);
/// Slots in a mainnet epoch.
const SLOTS_PER_EPOCH: u64 = 432_000;

/// Returns the read methods beside the eight that simulated nodes answer.
pub fn further_methods() -> Vec<Further> {
    answer::FURTHER.into_iter().filter_map(Further::from_name).collect()
}

/// Returns the methods that only probes ask.
pub fn probe_methods() -> &'static [&'static str] {
    &answer::PROBES
}

/// The settings from which a cluster is made. Clusters of equal settings are equal, apart from their addresses.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Decides everything that is random.
    pub seed: u64,
    /// How many nodes answer; each is also a validator, besides some that do not answer.
    pub nodes: usize,
    /// How many of the nodes do only what a Firedancer node does: the last ones.
    pub firedancer: usize,
    /// How long a slot lasts; `None` is stepped by hand, with block times that are [`SLOT_TIME`] apart.
    pub slot_time: Option<Duration>,
    /// The first slot, whose block holds no transactions. History begins here.
    pub first_slot: Slot,
    /// Slots that have passed when the cluster is new. From 32 on, all three commitments differ.
    pub history_slots: u64,
    /// Slots in an epoch, at least 32.
    pub slots_per_epoch: u64,
    /// The number of slots without a block, of a thousand.
    pub skipped_per_mille: u64,
    /// Slots whose blocks are kept; a few more may be, and 300 blocks always are.
    pub retained_slots: u64,
    /// Unix time of the first slot, in seconds.
    pub unix_time: i64,
}

impl Default for Settings {
    /// Three nodes, slots of [`SLOT_TIME`]; epoch 800 begins within the history, so that a block with rewards is at hand.
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 3,
            firedancer: 0,
            slot_time: Some(SLOT_TIME),
            first_slot: 800 * SLOTS_PER_EPOCH - 60,
            history_slots: 180,
            slots_per_epoch: SLOTS_PER_EPOCH,
            skipped_per_mille: 45,
            retained_slots: 2_000,
            unix_time: 1_790_000_000,
        }
    }
}

impl Settings {
    /// Moves the first slot so far back that the newest slot of a new cluster is of `unix_time`, in seconds.
    /// Depends on the other settings, so it must be called last.
    #[must_use]
    pub fn with_newest_slot_at(mut self, unix_time: i64) -> Self {
        let history_ms = self.history_slots.saturating_mul(self.slot_ms());
        self.unix_time = unix_time.saturating_sub_unsigned(history_ms / 1_000);
        self
    }

    /// The length of a slot in the chain's time, in milliseconds.
    fn slot_ms(&self) -> u64 {
        let slot_time = self.slot_time.unwrap_or(SLOT_TIME);
        u64::try_from(slot_time.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The cluster.
pub struct Cluster {
    chain: Arc<RwLock<Chain>>,
    nodes: Vec<Arc<Node>>,
    slot_time: Option<Duration>,
}

impl Cluster {
    /// Makes a cluster with its history.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "settings are written in place, where a cluster is made"
    )]
    pub fn new(settings: Settings) -> Arc<Self> {
        let mut chain = Chain::new(Genesis {
            seed: settings.seed,
            nodes: settings.nodes,
            first_slot: settings.first_slot,
            slots_per_epoch: settings.slots_per_epoch.max(32),
            slot_ms: settings.slot_ms(),
            skipped_per_mille: settings.skipped_per_mille,
            retained_slots: settings.retained_slots,
            unix_time: settings.unix_time,
        });
        for _ in 0..settings.history_slots {
            chain.step();
        }
        let chain = Arc::new(RwLock::new(chain));
        let addresses: Arc<[_]> = (0..settings.nodes).map(|_| OnceLock::new()).collect();
        let node = |index| Arc::new(Node::new(index, Arc::clone(&chain), Arc::clone(&addresses)));
        let nodes: Vec<Arc<Node>> = (0..settings.nodes).map(node).collect();
        for node in nodes.iter().rev().take(settings.firedancer) {
            node.set_firedancer(true);
        }
        Arc::new(Self { chain, nodes, slot_time: settings.slot_time })
    }

    /// Lets one slot pass, with a block or without.
    pub fn step(&self) {
        self.chain.write().unwrap_or_else(PoisonError::into_inner).step();
    }

    /// Lets `n` slots pass.
    pub fn step_by(&self, n: u64) {
        for _ in 0..n {
            self.step();
        }
    }

    /// Lets slots pass until there is a new block, and tells its slot.
    pub fn step_to_block(&self) -> Slot {
        let before = self.slot(Commitment::Processed);
        while self.slot(Commitment::Processed) == before {
            self.step();
        }
        self.slot(Commitment::Processed)
    }

    /// The newest slot at `commitment` that has a block, for a node without lag.
    pub fn slot(&self, commitment: Commitment) -> Slot {
        self.read(|chain| {
            let tip = chain.tip_at(chain.slot());
            match commitment {
                Commitment::Processed => tip.slot,
                Commitment::Confirmed => tip.confirmed,
                Commitment::Finalized => tip.finalized,
            }
        })
    }

    /// A node.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn node(&self, index: usize) -> &Arc<Node> {
        &self.nodes[index]
    }

    /// Every node.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// The truth about an account as `slot` left it, for slots at most [`MAX_LAG`] behind the newest; `None` where it
    /// does not exist.
    pub fn account_at(&self, key: &Pubkey, slot: Slot) -> Option<Arc<Account>> {
        self.read(|chain| chain.account(key, slot).cloned())
    }

    /// Returns true if `slot` has a block that is still kept.
    pub fn has_block(&self, slot: Slot) -> bool {
        self.read(|chain| chain.block(slot).is_some())
    }

    /// Addresses, slots and messages that make good calls now.
    pub fn examples(&self) -> Examples {
        self.read(examples::examples)
    }

    /// Serves node i on listener i, and lets slots pass if the cluster has a slot time. Returns when all is spawned;
    /// everything ends with `stop`.
    #[expect(clippy::unused_async, reason = "callers are asynchronous, and a runtime must be there")]
    pub async fn serve(
        self: Arc<Self>,
        listeners: Vec<TcpListener>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) {
        for (node, listener) in self.nodes.iter().zip(listeners) {
            if let Ok(address) = listener.local_addr() {
                node.listens_at(address);
            }
            tasks.spawn(serve::run(Arc::clone(node), listener, tasks.clone(), stop.clone()));
        }
        if let Some(slot_time) = self.slot_time {
            tasks.spawn(async move { stop.run_until_cancelled(self.tick(slot_time)).await });
        }
    }

    async fn tick(&self, slot_time: Duration) {
        let mut ticks = tokio::time::interval(slot_time);
        // A busy machine gets slower slots, as a busy cluster does, not a burst of them.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.step();
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Chain) -> T) -> T {
        read(&self.chain.read().unwrap_or_else(PoisonError::into_inner))
    }
}
