//! A simulated cluster: a seeded chain, and nodes that answer calls about it over HTTP and WebSocket. The chain advances
//! in real time or by calls of [`Cluster::step`].
//!
//! `slotfront dev`, tests and benchmarks use it. The chain is a real state machine without canned answers. Blocks move
//! lamports and tokens. Accounts, balances, fees and rewards at a slot agree with the blocks up to it. There are no
//! forks, so every processed block becomes final. All signatures are real. Transactions of clients land once for all
//! nodes. Nodes differ in lag, history, health and injected faults.

mod answer;
mod chain;
mod draw;
mod examples;
mod fault;
mod node;
mod serve;
mod socket;
mod traits;

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use chain::epochs::Epochs;
use chain::{Chain, GenesisConfig};
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};

pub use chain::accounts::Account;
pub use chain::hidden::{HiddenRule, HiddenWrite};
pub use chain::paced::PacedAccounts;
pub use examples::Examples;
pub use fault::{Fault, Hold};
pub use node::{MAX_LAG, Node};
pub use serve::HISTORY_SEARCH;

/// The default length of a slot, about that of mainnet.
pub const SLOT_TIME: Duration = Duration::from_millis(250);
const SLOTS_PER_EPOCH: u64 = 432_000;

pub fn probe_methods() -> &'static [&'static str] {
    &answer::PROBE_METHODS
}

/// The settings of a cluster. Clusters with equal settings are equal, except for the addresses of their nodes and what
/// clients send.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of nodes. Each node belongs to a validator. Some further validators have no node.
    pub nodes: usize,
    /// The number of nodes that support only what a Firedancer node supports. They are the last nodes of the cluster.
    pub firedancer: usize,
    /// The length of a slot. `None` means that only calls such as [`Cluster::step`] advance the chain. The times
    /// of successive slots are then [`SLOT_TIME`] apart.
    pub slot_time: Option<Duration>,
    /// The first slot, at which history begins. Its block has no transactions.
    pub first_slot: Slot,
    /// The number of slots after `first_slot` that a new cluster already has. Its finalized slot is above
    /// `first_slot` if at least 32 of these slots have blocks.
    pub history_slots: u64,
    /// The number of slots in an epoch, at least 32.
    pub slots_per_epoch: u64,
    /// True if slot 0 begins a warm-up. The first epoch then has 32 slots, and each later epoch twice as many, up to
    /// `slots_per_epoch`.
    pub warmup: bool,
    /// The number of slots in a thousand that have no block.
    pub skipped_per_mille: u64,
    /// The number of newest slots whose blocks are kept. At least 300 blocks are kept, even if they span more slots.
    pub retained_slots: u64,
    /// The Unix time of the first slot, in seconds.
    pub unix_time: i64,
    /// The accounts that transactions write at even intervals, in addition to the usual traffic.
    pub paced_accounts: Vec<PacedAccounts>,
}

impl Default for Settings {
    /// Returns settings for three nodes with slots of [`SLOT_TIME`]. Epoch 800 begins within the history, so there is a
    /// block with rewards.
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 3,
            firedancer: 0,
            slot_time: Some(SLOT_TIME),
            first_slot: 800 * SLOTS_PER_EPOCH - 60,
            history_slots: 180,
            slots_per_epoch: SLOTS_PER_EPOCH,
            warmup: false,
            skipped_per_mille: 45,
            retained_slots: 2_000,
            unix_time: 1_790_000_000,
            paced_accounts: Vec::new(),
        }
    }
}

impl Settings {
    /// Sets the time of the first slot, so that the newest slot of a new cluster is at the Unix time `unix_time`, in
    /// seconds.
    ///
    /// The time depends on `history_slots` and `slot_time`, so both must be set before this call.
    #[must_use]
    pub fn with_newest_slot_at(mut self, unix_time: i64) -> Self {
        let history_ms = self.history_slots.saturating_mul(self.slot_ms());
        self.unix_time = unix_time.saturating_sub_unsigned(history_ms / 1_000);
        self
    }

    /// Returns the time by which two successive slots of the chain are apart, in milliseconds.
    fn slot_ms(&self) -> u64 {
        let slot_time = self.slot_time.unwrap_or(SLOT_TIME);
        u64::try_from(slot_time.as_millis()).unwrap_or(u64::MAX)
    }
}

pub struct Cluster {
    chain: Arc<RwLock<Chain>>,
    nodes: Vec<Arc<Node>>,
    slot_time: Option<Duration>,
    /// Tells the sockets of all nodes about a new slot.
    news: Arc<watch::Sender<()>>,
}

impl Cluster {
    /// Creates a cluster, and advances its chain by [`Settings::history_slots`].
    pub fn new(settings: Settings) -> Arc<Self> {
        let mut chain = Chain::new(GenesisConfig {
            seed: settings.seed,
            nodes: settings.nodes,
            first_slot: settings.first_slot,
            epochs: Epochs::new(settings.slots_per_epoch, settings.warmup),
            slot_ms: settings.slot_ms(),
            skipped_per_mille: settings.skipped_per_mille,
            retained_slots: settings.retained_slots,
            unix_time: settings.unix_time,
            paced: settings.paced_accounts,
        });
        for _ in 0..settings.history_slots {
            chain.step();
        }
        Self::on(chain, settings.firedancer, settings.slot_time)
    }

    /// Creates a cluster with a copy of this one's chain, and with nodes of the usual kind that have no fault. That takes a
    /// tenth of the time that a history takes.
    #[must_use]
    pub fn fork(&self) -> Arc<Self> {
        Self::on(self.read(Chain::clone), 0, self.slot_time)
    }

    fn on(chain: Chain, firedancer: usize, slot_time: Option<Duration>) -> Arc<Self> {
        let count = chain.genesis.nodes;
        let chain = Arc::new(RwLock::new(chain));
        let addresses: Arc<[_]> = (0..count).map(|_| OnceLock::new()).collect();
        let news = Arc::new(watch::Sender::new(()));
        let node =
            |index| Arc::new(Node::new(index, Arc::clone(&chain), Arc::clone(&addresses), Arc::clone(&news)));
        let nodes: Vec<Arc<Node>> = (0..count).map(node).collect();
        for node in nodes.iter().rev().take(firedancer) {
            node.set_firedancer(true);
        }
        Arc::new(Self { chain, nodes, slot_time, news })
    }

    /// Advances the chain by one slot, with or without a block.
    pub fn step(&self) {
        self.chain.write().unwrap_or_else(PoisonError::into_inner).step();
        self.news.send_replace(());
    }

    /// Advances the chain by `n` slots.
    pub fn step_by(&self, n: u64) {
        for _ in 0..n {
            self.step();
        }
    }

    /// Advances the chain until there is a new block, and returns its slot.
    pub fn step_to_block(&self) -> Slot {
        let before = self.slot(Commitment::Processed);
        while self.slot(Commitment::Processed) == before {
            self.step();
        }
        self.slot(Commitment::Processed)
    }

    /// Returns the newest slot with a block at `commitment`, for a node without lag.
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

    /// Returns a node.
    ///
    /// # Panics
    /// The cluster has no node at `index`.
    pub fn node(&self, index: usize) -> &Arc<Node> {
        &self.nodes[index]
    }

    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    pub fn genesis_hash(&self) -> String {
        self.read(|chain| answer::genesis_hash(chain.genesis.seed))
    }

    /// Returns the secret key of an account with 1,000 SOL that the cluster's own transactions leave alone. It has the
    /// form of client libraries: the 32 bytes of the seed, then the 32 bytes of the address.
    pub fn funded_key(&self) -> [u8; 64] {
        self.read(|chain| {
            chain::keyring::secret_key(chain.genesis.seed, chain::cluster_addresses::DEVELOPER, 0)
        })
    }

    /// Returns an account's state after `slot`, or `None` if the account does not exist then. `slot` must be at most
    /// [`MAX_LAG`] behind the newest slot.
    pub fn account_at(&self, key: &Pubkey, slot: Slot) -> Option<Arc<Account>> {
        self.read(|chain| chain.account(key, slot).cloned())
    }

    pub fn addresses(&self) -> Vec<Pubkey> {
        self.read(chain::Chain::addresses_of_accounts)
    }

    /// Returns the slot of the last write of an account up to `slot`. `slot` must be at most [`MAX_LAG`] behind the
    /// newest slot.
    pub fn last_write(&self, key: &Pubkey, slot: Slot) -> Option<Slot> {
        self.read(|chain| chain.last_write(key, slot))
    }

    /// Returns the addresses of [`Settings::paced_accounts`], by group.
    pub fn paced_accounts(&self) -> Vec<Vec<Pubkey>> {
        self.read(|chain| chain.addresses.paced.groups.iter().map(|(keys, _)| keys.clone()).collect())
    }

    /// Returns the accounts that blocks write without naming them in a transaction or a reward.
    pub fn hidden_writes(&self) -> Vec<HiddenWrite> {
        self.read(|chain| chain::hidden::all(&chain.addresses))
    }

    /// Returns true if `slot` has a block that is still kept.
    pub fn has_block(&self, slot: Slot) -> bool {
        self.read(|chain| chain.block(slot).is_some())
    }

    /// Returns addresses, slots and messages for calls.
    pub fn examples(&self) -> Examples {
        self.read(examples::examples)
    }

    /// Serves each node, over HTTP and WebSocket, on the listener at the node's index. A further listener belongs to the
    /// last node, too: client libraries look for its socket on the next port. Advances the chain in real time if the settings have a
    /// `slot_time`.
    ///
    /// Returns once all tasks are spawned. The tasks end at `stop`.
    #[expect(clippy::unused_async, reason = "it needs a runtime, so it is asynchronous")]
    pub async fn serve(
        self: Arc<Self>,
        listeners: Vec<TcpListener>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) {
        for (node, listener) in self.nodes.iter().chain(self.nodes.last()).zip(listeners) {
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
        // On a busy machine slots take longer, as on a busy cluster. There is no burst of slots afterwards.
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
