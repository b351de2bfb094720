//! A simulated node: its view of the chain, its faults, and the counts of its calls.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use bytes::Bytes;
use slotfront_rpc::jsonrpc::envelope::{self, Element, EnvelopeError, Request};
use slotfront_rpc::jsonrpc::{Call, Id, reply};
use slotfront_rpc::methods::{Commitment, Slot};
use tokio::sync::watch;

use super::answer::{self, PROBE_METHODS, Refusal, View};
use super::chain::{Chain, STATE_SLOTS};
use super::fault::{Fault, Faults, Hold, Holds};
use super::traits::NodeTraits;

/// The maximum lag of a node, in slots. The states of accounts are kept for 128 more slots, because the finalized
/// slot of a node is older than its newest slot.
pub const MAX_LAG: u64 = STATE_SLOTS - 128;
/// The methods that a Firedancer node supports.
const FIREDANCER: [&str; 10] = [
    "getAccountInfo",
    "getMultipleAccounts",
    "getClusterNodes",
    "getSlot",
    "getHealth",
    "getVersion",
    "getGenesisHash",
    "getEpochInfo",
    "getBlockHeight",
    "getLatestBlockhash",
];
/// The maximum number of method names with separate counts, because callers can invent names.
const COUNTED_NAMES: usize = 64;

pub struct Node {
    chain: Arc<RwLock<Chain>>,
    traits: NodeTraits,
    lag: AtomicU64,
    /// The slot at which the node stands still once it has reached it.
    newest: AtomicU64,
    /// The number of calls with [`Fault::TwoMachines`].
    turns: AtomicU64,
    pub(crate) faults: Faults,
    pub(crate) holds: Holds,
    is_down: watch::Sender<bool>,
    calls: Mutex<BTreeMap<String, u64>>,
    observer: OnceLock<Box<CallObserver>>,
    /// Tells sockets that the node may have new blocks, or may have begun or ceased to hang.
    news: Arc<watch::Sender<()>>,
}

type CallObserver = dyn Fn(&Call) + Send + Sync;

impl Node {
    pub(crate) fn new(
        index: usize,
        chain: Arc<RwLock<Chain>>,
        addresses: Arc<[OnceLock<SocketAddr>]>,
        news: Arc<watch::Sender<()>>,
    ) -> Self {
        Self {
            chain,
            traits: NodeTraits::new(index, addresses),
            lag: AtomicU64::new(0),
            newest: AtomicU64::new(Slot::MAX),
            turns: AtomicU64::new(0),
            faults: Faults::default(),
            holds: Holds::default(),
            is_down: watch::Sender::new(false),
            calls: Mutex::default(),
            observer: OnceLock::new(),
            news,
        }
    }

    /// Returns the position of the node in the cluster, from 0.
    pub fn index(&self) -> usize {
        self.traits.index()
    }

    /// Returns the address at which the node listens, or `None` before the cluster is served.
    pub fn address(&self) -> Option<SocketAddr> {
        self.traits.peers().get(self.index()).and_then(|address| address.get().copied())
    }

    /// Stores the address at which the node listens. Only the first call has an effect.
    pub(crate) fn listens_at(&self, address: SocketAddr) {
        if let Some(slot) = self.traits.peers().get(self.index()) {
            slot.get_or_init(|| address);
        }
    }

    /// Keeps the node this many slots behind the cluster, at most [`MAX_LAG`]. From 128 slots on, the node is
    /// unhealthy.
    pub fn set_lag(&self, slots: u64) {
        self.lag.store(slots.min(MAX_LAG), Ordering::Relaxed);
        self.news.send_replace(());
    }

    /// Lets the node stand still at this slot, as if it received no newer blocks. `None` lets it go on. Its lag must
    /// not exceed [`MAX_LAG`].
    pub fn stand_still_at(&self, slot: Option<Slot>) {
        self.newest.store(slot.unwrap_or(Slot::MAX), Ordering::Relaxed);
        self.news.send_replace(());
    }

    /// Drops the node's blocks before `slot`, as if its ledger were smaller.
    pub fn prune_below(&self, slot: Slot) {
        self.traits.first_available.store(slot, Ordering::Relaxed);
    }

    /// Takes the blocks of these slots from the node, as if it had started from a snapshot above them. For their final
    /// slots it answers -32007, like for skipped ones. An empty range gives the blocks back.
    pub fn set_hole(&self, slots: Range<Slot>) {
        *self.traits.hole.write().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    /// Sets the health of the node. A node that is at least 128 slots behind is always unhealthy.
    pub fn set_healthy(&self, healthy: bool) {
        self.traits.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Turns the full API on or off. Without it, the node has only getVoteAccounts of the eight methods that slotfront
    /// caches.
    pub fn set_full_api(&self, on: bool) {
        self.traits.full_api.store(on, Ordering::Relaxed);
    }

    /// Turns transaction history on or off. Without it, getBlock answers -32011.
    pub fn set_history(&self, on: bool) {
        self.traits.history.store(on, Ordering::Relaxed);
    }

    /// Turns a fault of Agave 4.0 on or off (agave#4807). Answers at finalized then hold some accounts of a later slot.
    ///
    /// The node reads some accounts at the slot after the context slot: a single account, and the first, third, fifth
    /// and so on of a list.
    pub fn set_reads_ahead(&self, on: bool) {
        self.traits.reads_ahead.store(on, Ordering::Relaxed);
    }

    /// Restricts the node to the methods of a Firedancer node. All other methods get HTTP 501 with an empty body.
    pub fn set_firedancer(&self, on: bool) {
        self.traits.firedancer.store(on, Ordering::Relaxed);
    }

    /// Sets the version that the node reports, "4.0.0" by default. Has no effect on a Firedancer node.
    pub fn set_version(&self, version: &'static str) {
        *self.traits.version.write().unwrap_or_else(PoisonError::into_inner) = version;
    }

    /// Returns true if the node supports all of `methods`.
    pub(crate) fn implements(&self, methods: &[String]) -> bool {
        !self.traits.is_firedancer() || methods.iter().all(|method| FIREDANCER.contains(&method.as_str()))
    }

    /// Adds a fault that affects every request, until [`Self::clear_faults`].
    pub fn fault(&self, fault: Fault) {
        self.faults.plan(None, fault, None);
        self.news.send_replace(());
    }

    /// Adds a fault that affects requests with this method: the next `times` of them, or all if `times` is `None`.
    ///
    /// If several faults apply to a request, the one that was added first happens.
    pub fn fault_on(&self, method: &str, fault: Fault, times: Option<usize>) {
        self.faults.plan(Some(method), fault, times);
    }

    pub fn clear_faults(&self) {
        self.faults.clear();
        self.news.send_replace(());
    }

    /// Stops or restarts the node. While it is down, its connections end and new ones are refused.
    pub fn set_down(&self, down: bool) {
        self.is_down.send_replace(down);
    }

    /// Waits until the node is down if `down` is true, otherwise until it is up.
    pub(crate) async fn becomes(&self, down: bool) {
        // The wait cannot fail, because `self` keeps the sender alive.
        let _ = self.is_down.subscribe().wait_for(|is_down| *is_down == down).await;
    }

    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// Waits until the node does not hang.
    pub(crate) async fn wakes(&self) {
        // The wait cannot fail, because `self` keeps the sender alive.
        let _ = self.news.subscribe().wait_for(|()| !self.faults.hang()).await;
    }

    /// Holds the replies to this method until the returned value is released or dropped. A fault of the node takes
    /// effect after the hold.
    pub fn hold(&self, method: &str) -> Hold {
        self.holds.hold(method)
    }

    /// Lets a function see each call before it is answered. Only the first function is kept.
    pub fn observe(&self, observer: impl Fn(&Call) + Send + Sync + 'static) {
        self.observer.get_or_init(|| Box::new(observer));
    }

    /// Returns the number of calls of this method over HTTP. Calls in batches count separately.
    pub fn calls(&self, method: &str) -> u64 {
        self.counts().get(method).copied().unwrap_or(0)
    }

    /// Returns the number of calls over HTTP.
    pub fn calls_total(&self) -> u64 {
        self.counts().values().sum()
    }

    /// Returns the number of calls over HTTP, without methods that only probes call.
    pub fn calls_without_probes(&self) -> u64 {
        self.counts()
            .iter()
            .filter(|(method, _)| !PROBE_METHODS.contains(&method.as_str()))
            .map(|(_, n)| n)
            .sum()
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u64>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, methods: &[String]) {
        let mut counts = self.counts();
        for method in methods {
            let known = counts.len() < COUNTED_NAMES || counts.contains_key(method);
            *counts.entry(if known { method.clone() } else { "other".to_owned() }).or_default() += 1;
        }
    }

    /// Returns the slot that this node answers from at `commitment`.
    pub fn slot(&self, commitment: Commitment) -> Slot {
        self.view(|view| view.slot(commitment))
    }

    /// Reads the chain as this node sees it.
    pub(crate) fn view<T>(&self, read: impl FnOnce(&View<'_>) -> T) -> T {
        let chain = self.chain.read().unwrap_or_else(PoisonError::into_inner);
        let newest = chain.slot().saturating_sub(self.lag.load(Ordering::Relaxed));
        let tip = Arc::clone(chain.tip_at(newest.min(self.newest.load(Ordering::Relaxed))));
        read(&View { chain: &chain, node: &self.traits, tip, ignores_min_slot: false })
    }

    /// Reads the chain as the machine sees it whose turn it is ([`Fault::TwoMachines`]).
    fn view_of_machine<T>(&self, read: impl FnOnce(&View<'_>) -> T) -> T {
        let is_behind = self.turns.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        self.view(|view| {
            let slot = view.tip.slot.saturating_sub(u64::from(is_behind));
            read(&View { tip: Arc::clone(view.chain.tip_at(slot)), ignores_min_slot: true, ..*view })
        })
    }

    /// Answers a request body directly, without HTTP. Holds and faults do not affect the answer, and the calls are
    /// not counted. The result is empty if there is nothing to answer.
    pub fn answer(&self, body: &[u8]) -> Vec<u8> {
        self.reply(&envelope::parse(&Bytes::copy_from_slice(body)), None)
    }

    /// Answers a parsed body. A fault that changes answers applies to each answer of a batch.
    pub(crate) fn reply(&self, request: &Request, fault: Option<&Fault>) -> Vec<u8> {
        answer_each(request, |out, call| self.reply_to_call(out, call, fault))
    }

    fn reply_to_call(&self, out: &mut Vec<u8>, call: &Call, fault: Option<&Fault>) {
        if let Some(observe) = self.observer.get() {
            observe(call);
        }
        let answer = match fault {
            Some(Fault::Error { code, message }) => Err(Refusal::new(*code, message)),
            Some(Fault::Unhealthy) => {
                let data = Some(serde_json::json!({ "numSlotsBehind": null }));
                Err(Refusal { data, ..Refusal::new(-32_005, "Node is unhealthy") })
            }
            Some(Fault::NullResult) => Ok(serde_json::Value::Null),
            Some(Fault::Result(result)) => Ok(result.clone()),
            // The arrays are written as text, because dropping such a deep JSON tree would overflow the stack.
            Some(Fault::Nested(depth)) => {
                let result = [vec![b'['; *depth], vec![b']'; *depth]].concat();
                return reply::result(out, &call.id, &result);
            }
            _ => {
                let method = String::from_utf8_lossy(&call.method);
                let answer = |view: &View<'_>| answer::call(view, &method, &call.params);
                let answer = match fault {
                    Some(Fault::TwoMachines) => self.view_of_machine(answer),
                    _ => self.view(answer),
                };
                match fault {
                    Some(Fault::Ahead(slots)) => answer.map(|result| answer::ahead(result, *slots)),
                    Some(Fault::With(members)) => answer.map(|result| answer::with(result, members)),
                    _ => answer,
                }
            }
        };
        let id = match (fault, &call.id) {
            (Some(Fault::WrongId), Id::Number(n)) => &Id::Number(n.wrapping_add(1)),
            (Some(Fault::WrongId), _) => &Id::Number(u64::MAX),
            (Some(Fault::Provider(_)), Id::Number(n)) => &Id::Text(format!("\"{n}\"").into()),
            (_, id) => id,
        };
        let nulls = matches!(fault, Some(Fault::Provider(_)));
        let and = |member| if nulls { format!(",\"{member}\":null") } else { String::new() };
        match answer {
            Ok(result) => reply::result(out, id, (result.to_string() + &and("error")).as_bytes()),
            Err(refusal) => reply::node_error(out, id, (refusal.to_json() + &and("result")).as_bytes()),
        }
    }
}

/// Answers a parsed body. `answer` writes the answer to one call. The result is empty if there is nothing to answer.
pub(crate) fn answer_each(request: &Request, mut answer: impl FnMut(&mut Vec<u8>, &Call)) -> Vec<u8> {
    let mut reply_to = |out: &mut Vec<u8>, element: &Element| match element {
        Element::Call(call) => answer(out, call),
        Element::Notification => {}
        Element::Refused { id, error } => reply::envelope_refusal(out, id, *error),
    };
    let mut out = Vec::new();
    match request {
        Request::ParseError => reply::envelope_refusal(&mut out, &Id::Null, EnvelopeError::Parse),
        Request::One(element) => reply_to(&mut out, element),
        Request::Batch(elements) => {
            for element in elements {
                let start = out.len();
                out.push(if start == 0 { b'[' } else { b',' });
                reply_to(&mut out, element);
                if out.len() == start + 1 {
                    out.truncate(start);
                }
            }
            if !out.is_empty() {
                out.push(b']');
            }
        }
    }
    if !out.is_empty() {
        out.push(b'\n');
    }
    out
}

pub(crate) fn methods(request: &Request) -> Vec<String> {
    let elements = match request {
        Request::ParseError => &[][..],
        Request::One(element) => std::slice::from_ref(element),
        Request::Batch(elements) => elements,
    };
    let calls = elements.iter().filter_map(|element| match element {
        Element::Call(call) => Some(String::from_utf8_lossy(&call.method).into_owned()),
        _ => None,
    });
    calls.collect()
}
