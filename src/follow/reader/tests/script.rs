//! Nodes that answer as a script says.

use std::collections::{BTreeMap, HashMap, VecDeque};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use super::super::*;
use crate::follow::block::BlockWrites;
use crate::follow::shared_blocks::SharedBlock;
use crate::methods::Pubkey;
use crate::node::{Fault, NodeReply};

/// A block of a scripted chain.
#[derive(Clone)]
pub(super) struct Block {
    pub(super) slot: Slot,
    pub(super) parent: Slot,
    /// The hash of the block. `None` stands for `h` and the slot, such as `h101`.
    pub(super) hash: Option<String>,
    /// The hash of the block's parent. `None` stands for `h` and the parent's slot, such as `h100`.
    pub(super) previous: Option<String>,
    pub(super) writes: Vec<u8>,
    /// The account that gets the fees. `None` for a block whose rewards are missing.
    pub(super) fee: Option<u8>,
    /// JSON text that is inserted at the end of the block's object.
    pub(super) more: &'static str,
}

impl Block {
    /// Returns a block at the slot after `parent`. The block's parent is the block at `parent`.
    pub(super) fn after(parent: Slot) -> Self {
        let (hash, previous) = (None, None);
        Self { slot: parent + 1, parent, hash, previous, writes: vec![200], fee: Some(201), more: "" }
    }

    /// Returns the block with one more written account.
    pub(super) fn writing(mut self, account: u8) -> Self {
        self.writes.push(account);
        self
    }

    /// Returns the JSON text of the block.
    pub(super) fn text(&self) -> String {
        let account =
            |n: &u8| json!({"pubkey": Pubkey([*n; 32]).to_string(), "signer": false, "writable": true});
        let accounts: Vec<_> = self.writes.iter().map(account).collect();
        let reward = |n: u8| json!({"pubkey": Pubkey([n; 32]).to_string(), "rewardType": "Fee"});
        let block = json!({
            "blockhash": self.hash.clone().unwrap_or(format!("h{}", self.slot)),
            "previousBlockhash": self.previous.clone().unwrap_or(format!("h{}", self.parent)),
            "parentSlot": self.parent,
            "transactions": [{"meta": {}, "transaction": {"accountKeys": accounts}}],
            "rewards": self.fee.map(reward).into_iter().collect::<Vec<_>>(),
        });
        let mut text = block.to_string();
        text.insert_str(text.len() - 1, self.more);
        text
    }
}

/// Returns a node's JSON-RPC error with this code.
#[expect(clippy::unnecessary_wraps, reason = "other answers are faults")]
pub(super) fn error(code: i32) -> Result<NodeReply, Fault> {
    Ok(NodeReply::Error { code, body: "{}".into() })
}

/// The number of calls of one method at which a test fails, because the reader seems to call without a pause.
const MAX_CALLS: u64 = 10_000;

/// The blocks and errors with which one scripted node answers.
pub(super) struct NodeScript {
    pub(super) blocks: BTreeMap<Slot, String>,
    pub(super) newest: Slot,
    pub(super) slots_per_epoch: u64,
    /// True while every call to the node fails.
    pub(super) is_down: bool,
    pub(super) tier: u8,
    /// The slots that each answer to getBlocks lists. If `None`, an answer lists the slots of `blocks`.
    pub(super) listed: Option<Vec<Slot>>,
    /// For each slot, the answers to the next getBlock calls, in order. Later calls get the block at the slot.
    refusals: HashMap<Slot, VecDeque<Result<NodeReply, Fault>>>,
    asked: HashMap<&'static str, u64>,
}

impl NodeScript {
    /// Queues `answers` for the next calls of getBlock for `slot`.
    pub(super) fn refuse(&mut self, slot: Slot, answers: impl IntoIterator<Item = Result<NodeReply, Fault>>) {
        self.refusals.entry(slot).or_default().extend(answers);
    }

    /// Returns the number of calls of `method` that the node has received.
    pub(super) fn asked(&self, method: &str) -> u64 {
        self.asked.get(method).copied().unwrap_or_default()
    }

    fn answer(&mut self, method: &'static str, params: &Value) -> Result<NodeReply, Fault> {
        let asked = self.asked.entry(method).or_default();
        *asked += 1;
        assert!(*asked < MAX_CALLS, "{method} is asked for without a pause");
        if self.is_down {
            return Err(Fault::Connect);
        }
        let slot = |at: usize| params[at].as_u64().unwrap();
        let result = match method {
            "getSlot" => self.newest.to_string(),
            "getEpochSchedule" => json!({
                "slotsPerEpoch": self.slots_per_epoch, "firstNormalEpoch": 0, "firstNormalSlot": 0,
            })
            .to_string(),
            "getBlocks" => {
                let end = slot(1).min(self.newest);
                let slots = self.blocks.keys().filter(|block| (slot(0)..=end).contains(block));
                json!(self.listed.clone().unwrap_or(slots.copied().collect())).to_string()
            }
            "getBlock" => {
                if let Some(refusal) = self.refusals.get_mut(&slot(0)).and_then(VecDeque::pop_front) {
                    return refusal;
                }
                self.blocks.get(&slot(0)).unwrap_or(&"null".to_owned()).clone()
            }
            other => panic!("{other} is not asked for"),
        };
        Ok(NodeReply::Result(result.into()))
    }
}

/// A node that answers by its script. Holds the node's id and the script.
#[derive(Clone)]
pub(super) struct ScriptedNode(usize, Arc<Mutex<NodeScript>>);

impl BlockNode for ScriptedNode {
    fn id(&self) -> usize {
        self.0
    }

    fn tier(&self) -> u8 {
        self.1.lock().tier
    }

    async fn ask(&self, method: &'static str, params: Value, _: Duration) -> Result<NodeReply, Fault> {
        self.1.lock().answer(method, &params)
    }
}

impl BlockNodes for &[ScriptedNode] {
    type Node = ScriptedNode;

    fn usable(&self) -> Vec<ScriptedNode> {
        self.to_vec()
    }
}

/// A shared store of blocks that a test fills.
#[derive(Default)]
pub(super) struct ScriptedStore {
    blocks: Mutex<HashMap<Slot, Option<BlockWrites>>>,
}

impl ScriptedStore {
    /// Stores the record of `block`, as if another replica had read the block.
    pub(super) fn put(&self, block: &Block) {
        let writes = BlockWrites::parse(block.text().as_bytes()).unwrap();
        self.blocks.lock().insert(block.slot, Some(writes));
    }

    /// Marks the block at `slot` as claimed by another replica.
    pub(super) fn claim(&self, slot: Slot) {
        self.blocks.lock().insert(slot, None);
    }

    /// Removes the claim or the record of the block at `slot`.
    pub(super) fn remove(&self, slot: Slot) {
        self.blocks.lock().remove(&slot);
    }

    /// Returns true if a replica has stored the record of `block`.
    pub(super) fn has(&self, block: &Block) -> bool {
        let writes = BlockWrites::parse(block.text().as_bytes()).unwrap();
        let blocks = self.blocks.lock();
        blocks.get(&block.slot) == Some(&Some(writes))
    }
}

impl BlockStore for Arc<ScriptedStore> {
    async fn look_up(&self, slot: Slot) -> SharedBlock {
        match self.blocks.lock().get(&slot) {
            None => SharedBlock::Absent,
            Some(None) => SharedBlock::Claimed,
            Some(Some(block)) if block.lacks_fee_reward => SharedBlock::Incomplete,
            Some(Some(block)) => SharedBlock::Read(block.clone()),
        }
    }

    async fn publish(&self, slot: Slot, _: usize, block: &BlockWrites) {
        let mut blocks = self.blocks.lock();
        blocks.insert(slot, Some(block.clone()));
    }
}

/// Scripted nodes, all with a block at slot 100, and everything else that the reader under test needs.
pub(super) struct Scene {
    pub(super) frontier: Frontier,
    pub(super) followed: Arc<FollowedChain>,
    pub(super) metrics: Arc<Metrics>,
    shared: SharedBlocks<Arc<ScriptedStore>>,
    tasks: TaskTracker,
    nodes: Vec<ScriptedNode>,
}

impl Scene {
    pub(super) fn new(nodes: usize) -> Self {
        let script = |_| NodeScript {
            blocks: BTreeMap::from([(100, Block::after(99).text())]),
            newest: 100,
            slots_per_epoch: 432_000,
            is_down: false,
            tier: 0,
            listed: None,
            refusals: HashMap::new(),
            asked: HashMap::new(),
        };
        Self {
            frontier: Frontier::new(nodes),
            followed: Arc::default(),
            metrics: Metrics::new(),
            shared: SharedBlocks::new(None),
            tasks: TaskTracker::new(),
            nodes: (0..nodes).map(|n| ScriptedNode(n, Arc::new(Mutex::new(script(n))))).collect(),
        }
    }

    /// Creates `nodes` scripted nodes, and a chain that begins at their block at slot 100.
    pub(super) async fn begun(nodes: usize) -> (Self, ChainInProgress) {
        let scene = Self::new(nodes);
        let chain = scene.reader().begin().await.unwrap_or_else(|reason| panic!("{reason:?}"));
        (scene, chain)
    }

    /// Makes the reader share blocks through a new store, and returns the store.
    pub(super) fn share(&mut self) -> Arc<ScriptedStore> {
        let store = Arc::<ScriptedStore>::default();
        self.shared = SharedBlocks::new(Some(Arc::clone(&store)));
        store
    }

    pub(super) fn reader(&self) -> Reader<'_, &[ScriptedNode], Arc<ScriptedStore>> {
        let settings = ReaderSettings { poll: Duration::from_millis(100), max_gap: 8 };
        let Self { frontier, followed, metrics, shared, tasks, nodes } = self;
        Reader { nodes: &nodes[..], shared, frontier, followed, metrics, tasks, settings }
    }

    pub(super) async fn advance(&self, chain: &mut ChainInProgress) -> Result<(), FollowEnd> {
        self.reader().advance(chain).await
    }

    pub(super) fn node(&self, node: usize) -> MutexGuard<'_, NodeScript> {
        self.nodes[node].1.lock()
    }

    /// Adds a block to the chain of every node.
    pub(super) fn add(&self, block: &Block) {
        self.add_to(&(0..self.nodes.len()).collect::<Vec<_>>(), block);
    }

    /// Adds a block to the chains of the nodes with the indexes `nodes`.
    pub(super) fn add_to(&self, nodes: &[usize], block: &Block) {
        for node in nodes {
            let mut node = self.node(*node);
            node.newest = block.slot;
            node.blocks.insert(block.slot, block.text());
        }
    }
}
