//! The whole cache on a stepped clock, over nodes whose answers are held until the test releases them, in any
//! order.
//!
//! Each upstream call has a number, and the node writes it into its answer. Each answer therefore shows the
//! calls of which it is made, and so its age, its commitment, and whether it is from before a purge.

use std::sync::LazyLock;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::*;
use crate::error::Error;
use crate::pool::ReplySender;
use crate::telemetry::Trace;

/// Read once: each case has a cache of its own, but most of the settings in common.
pub(super) static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = Config::dev(any, any, Vec::new());
    // The capacity suffices to evict nothing, and a small cache is created faster.
    (config.cache.capacity, config.cache.max_entry) = (8 << 20, 8 << 20);
    config
});

/// The distance ahead of the frontier, in slots, up to which an answer is believed.
const BELIEVED: u64 = 64;

/// An upstream call.
pub(super) struct SentCall {
    pub(super) ask: UpstreamRequest,
    pub(super) sent_at: Instant,
    /// The number of purges before the call.
    pub(super) era: u32,
    /// The sender of the answer. `None` once the call has landed.
    reply_sender: Option<ReplySender>,
    /// The node's answer. `None` if the node failed.
    pub(super) said: Option<NodeAnswer>,
    pub(super) landed_at: Option<Instant>,
    /// The number of the step in which the call landed.
    pub(super) landed_in: Option<usize>,
}

/// The answer of a node.
pub(super) struct NodeAnswer {
    pub(super) body: NodeReply,
    pub(super) slot: Slot,
    /// True if the cache may keep the answer, as far as its slot and purges go.
    pub(super) keepable: bool,
}

/// A caller who waits for an answer.
pub(super) struct TestCaller<W> {
    /// The test's own description of the call.
    pub(super) call: W,
    /// The caller's minContextSlot.
    pub(super) min: Option<Slot>,
    /// The minContextSlot or the floor of the caller's plan, whichever is higher.
    pub(super) wanted: Option<Slot>,
    pub(super) asked_at: Instant,
    pub(super) era: u32,
    /// The number of the step in which the caller asked.
    pub(super) asked_in: usize,
    task: JoinHandle<Result<CacheAnswer, Error>>,
}

pub(super) struct SteppedCache<W> {
    pub(super) frontier: Arc<Frontier>,
    pub(super) calls: Vec<SentCall>,
    pub(super) era: u32,
    pub(super) step: usize,
    cache: Arc<Cache>,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    going_up: UnboundedReceiver<(UpstreamRequest, ReplySender)>,
    waiting: Vec<TestCaller<W>>,
}

impl<W> SteppedCache<W> {
    pub(super) fn new(settings: impl FnOnce(&mut Config)) -> Self {
        let mut config = CONFIG.clone();
        settings(&mut config);
        let (metrics, frontier, tasks) = (Metrics::new(), Arc::new(Frontier::new(1)), TaskTracker::new());
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).unwrap());
        let (fake_node, going_up) = unbounded_channel();
        pool.fake_node.set(fake_node).unwrap();
        let cache =
            Cache::new(&config, Arc::clone(&frontier), pool, Arc::clone(&metrics), tasks.clone(), None);
        for (c, slot) in Commitment::ALL.into_iter().zip([FIRST, FIRST - 2, FIRST - 32]) {
            frontier.probed(0, c, slot, Instant::now());
        }
        let (calls, waiting) = (Vec::new(), Vec::new());
        Self { frontier, calls, era: 0, step: 0, cache, metrics, tasks, going_up, waiting }
    }

    /// Returns the slot that is `behind` slots behind the frontier of a commitment.
    pub(super) fn at(&self, commitment: Commitment, behind: i64) -> Slot {
        self.frontier.slot(commitment).saturating_add_signed(-behind)
    }

    pub(super) fn moves_on(&self, commitment: Commitment, slots: u64) {
        let slot = self.frontier.slot(commitment) + slots;
        self.frontier.probed(0, commitment, slot, Instant::now());
    }

    pub(super) fn ask(&mut self, test_call: W, query: Query, options: CallOptions) {
        let min = query.min_context_slot();
        let wanted = min.max(options.floor);
        let cache = Arc::clone(&self.cache);
        let task = self
            .tasks
            .spawn(async move { cache.answer(&query, options, Charge::free(), &NoConditions).await });
        let (asked_at, era, asked_in) = (Instant::now(), self.era, self.step);
        self.waiting.push(TestCaller { call: test_call, min, wanted, asked_at, era, asked_in, task });
    }

    /// Takes every render permit, so that each long answer waits until they are dropped.
    pub(super) async fn takes_all_turns(&self) -> OwnedSemaphorePermit {
        self.cache.renderer.take_all_permits().await
    }

    /// Returns the slot below which the accounts of `query` are not shown.
    pub(super) fn shown(&self, query: &Query) -> Slot {
        let plan = self.cache.lookup.plan(query);
        self.cache.lookup.held.floor(&plan.key, Instant::now())
    }

    /// Returns the number of floors that were reset.
    pub(super) fn floor_resets(&self) -> u64 {
        self.metrics.cache_floor_resets.at(()).get()
    }

    pub(super) fn clears(&mut self) {
        self.era += 1;
        self.cache.purger().clear();
    }

    /// Returns the numbers of the calls under way.
    pub(super) fn under_way(&self) -> Vec<usize> {
        (0..self.calls.len()).filter(|at| self.calls[*at].reply_sender.is_some()).collect()
    }

    /// Returns the numbers of the calls that were sent at this moment.
    pub(super) fn just_sent(&self) -> Vec<usize> {
        let now = Instant::now();
        self.under_way().into_iter().filter(|at| self.calls[*at].sent_at == now).collect()
    }

    /// Answers the call of this number. `None` is a failure of the node.
    pub(super) fn lands(&mut self, number: usize, word: Option<(NodeReply, Slot)>, confirmed: bool) {
        let call = &mut self.calls[number];
        let Some(reply_sender) = call.reply_sender.take() else { return };
        (call.landed_at, call.landed_in) = (Some(Instant::now()), Some(self.step));
        let answer = word.map(|(body, slot)| {
            let commitment = call.ask.query.commitment().filter(|_| call.ask.query.has_context());
            let believed = commitment.is_none_or(|c| slot <= self.frontier.slot(c) + BELIEVED);
            let keepable = believed && call.era == self.era;
            call.said = Some(NodeAnswer { body: body.clone(), slot, keepable });
            PoolReply { node: 0, body, sent_at: call.sent_at, slot, confirmed }
        });
        // A call past the cache belongs to its caller, who may have given up.
        if reply_sender.send(answer.ok_or_else(|| Error::NoUpstream(Vec::new()))).is_err() {
            call.said = None;
        }
    }

    /// Runs all tasks until they wait for time or a node, and returns the callers who got an answer.
    pub(super) async fn settles(&mut self) -> Vec<(TestCaller<W>, Result<CacheAnswer, Error>)> {
        // More rounds than any chain of tasks that wake each other: caller, flight, caller, a second flight,
        // a third.
        for _ in 0..24 {
            tokio::task::yield_now().await;
        }
        while let Ok((ask, reply_sender)) = self.going_up.try_recv() {
            let (sent_at, era) = (Instant::now(), self.era);
            self.calls.push(SentCall {
                ask,
                sent_at,
                era,
                reply_sender: Some(reply_sender),
                said: None,
                landed_at: None,
                landed_in: None,
            });
        }
        self.step += 1;
        let mut answered = Vec::new();
        for mut caller in std::mem::take(&mut self.waiting) {
            if caller.task.is_finished() {
                answered.push(((&mut caller.task).await.unwrap(), caller));
            } else {
                self.waiting.push(caller);
            }
        }
        answered.into_iter().map(|(answer, caller)| (caller, answer)).collect()
    }

    pub(super) fn anybody_waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// Runs one case on a clock that only the case moves.
pub(super) fn on_a_stepped_clock<T>(case: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // The clock starts late enough for answers from before the test.
    runtime.block_on(async {
        advance(Duration::from_mins(10)).await;
        case.await
    })
}

/// Returns the options of a call.
pub(super) fn options(bypass: bool, floor: Option<Slot>) -> CallOptions {
    let deadline = Instant::now() + Duration::from_secs(30);
    let (caller, trace) = (crate::pool::CallerId::default(), Trace::default());
    CallOptions { bypass, floor, deadline, coding: None, caller, trace }
}
