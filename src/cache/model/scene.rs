//! The whole cache on a stepped clock, over nodes whose answers are held until the test lets them go, in any order.
//!
//! Each call that goes up has a number, and a node writes it into its answer: so each answer that a caller gets says
//! which calls it is made of, and so how old it is, from which commitment, and from before or after which clearing.

use std::sync::LazyLock;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::*;
use crate::error::Error;
use crate::pool::WayBack;
use crate::telemetry::Trace;

/// Read once: a case has its own cache, and most of the settings of all.
pub(super) static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = Config::dev(any, any, Vec::new());
    // Nothing is evicted, and a small cache is made sooner than a large one.
    (config.cache.capacity, config.cache.max_entry) = (8 << 20, 8 << 20);
    config
});

/// How far ahead of the frontier an answer is still believed, in slots.
const BELIEVED: u64 = 64;

/// A call that went up.
pub(super) struct Call {
    pub(super) ask: UpstreamRequest,
    pub(super) sent_at: Instant,
    /// How often the cache had been emptied before.
    pub(super) era: u32,
    /// Where its answer goes; `None` once it has landed.
    way_back: Option<WayBack>,
    /// What it brought, if that was a node's word.
    pub(super) said: Option<Said>,
    pub(super) landed_at: Option<Instant>,
    /// When it landed, in the order of all that happened.
    pub(super) landed_in: Option<usize>,
}

/// A node's word.
pub(super) struct Said {
    pub(super) body: NodeReply,
    pub(super) slot: Slot,
    /// Whether the cache may keep it, as far as its slot and clearings go.
    pub(super) keepable: bool,
}

/// Somebody who asked, and what came of it.
pub(super) struct Caller<W> {
    /// What was asked, as the test has it.
    pub(super) wish: W,
    /// Its minContextSlot.
    pub(super) min: Option<Slot>,
    /// The same, or the floor that its plan keeps.
    pub(super) wanted: Option<Slot>,
    pub(super) asked_at: Instant,
    pub(super) era: u32,
    /// In the order of all that happened.
    pub(super) asked_in: usize,
    task: JoinHandle<Result<CacheAnswer, Error>>,
}

pub(super) struct Scene<W> {
    pub(super) frontier: Arc<Frontier>,
    pub(super) calls: Vec<Call>,
    pub(super) era: u32,
    pub(super) step: usize,
    cache: Arc<Cache>,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    going_up: UnboundedReceiver<(UpstreamRequest, WayBack)>,
    waiting: Vec<Caller<W>>,
}

impl<W> Scene<W> {
    pub(super) fn new(settings: impl FnOnce(&mut Config)) -> Self {
        let mut config = CONFIG.clone();
        settings(&mut config);
        let (metrics, frontier, tasks) = (Metrics::new(), Arc::new(Frontier::new(1)), TaskTracker::new());
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).unwrap());
        let (stand_in, going_up) = unbounded_channel();
        pool.stand_in.set(stand_in).unwrap();
        let cache =
            Cache::new(&config, Arc::clone(&frontier), pool, Arc::clone(&metrics), tasks.clone(), None);
        for (c, slot) in Commitment::ALL.into_iter().zip([FIRST, FIRST - 2, FIRST - 32]) {
            frontier.probed(0, c, slot, Instant::now());
        }
        let (calls, waiting) = (Vec::new(), Vec::new());
        Self { frontier, calls, era: 0, step: 0, cache, metrics, tasks, going_up, waiting }
    }

    /// The frontier at a commitment, or so far behind it.
    pub(super) fn at(&self, commitment: Commitment, behind: i64) -> Slot {
        self.frontier.slot(commitment).saturating_add_signed(-behind)
    }

    pub(super) fn moves_on(&self, commitment: Commitment, slots: u64) {
        let slot = self.frontier.slot(commitment) + slots;
        self.frontier.probed(0, commitment, slot, Instant::now());
    }

    pub(super) fn ask(&mut self, wish: W, query: Query, options: CallOptions) {
        let min = query.min_context_slot();
        let wanted = min.max(options.floor);
        let cache = Arc::clone(&self.cache);
        let task = self
            .tasks
            .spawn(async move { cache.answer(&query, options, Charge::nobody(), &NoConditions).await });
        let (asked_at, era, asked_in) = (Instant::now(), self.era, self.step);
        self.waiting.push(Caller { wish, min, wanted, asked_at, era, asked_in, task });
    }

    /// Takes every turn to make a long answer, so that whoever needs one waits until they are dropped.
    pub(super) async fn takes_all_turns(&self) -> OwnedSemaphorePermit {
        self.cache.renderer.take_all_permits().await
    }

    /// The slot below which the accounts of `query` are not shown.
    pub(super) fn shown(&self, query: &Query) -> Slot {
        let plan = self.cache.lookup.plan(query);
        self.cache.lookup.held.floor(&plan.key, Instant::now())
    }

    /// The number of floors that were given up.
    pub(super) fn floor_resets(&self) -> u64 {
        self.metrics.cache_floor_resets.at(()).get()
    }

    pub(super) fn clears(&mut self) {
        self.era += 1;
        self.cache.clear();
    }

    /// The calls that are under way, by their numbers.
    pub(super) fn under_way(&self) -> Vec<usize> {
        (0..self.calls.len()).filter(|at| self.calls[*at].way_back.is_some()).collect()
    }

    /// Those of them that have just gone up.
    pub(super) fn just_sent(&self) -> Vec<usize> {
        let now = Instant::now();
        self.under_way().into_iter().filter(|at| self.calls[*at].sent_at == now).collect()
    }

    /// The answer to the call of this number lands; `None` where the node failed.
    pub(super) fn lands(&mut self, number: usize, word: Option<(NodeReply, Slot)>, confirmed: bool) {
        let call = &mut self.calls[number];
        let Some(way_back) = call.way_back.take() else { return };
        (call.landed_at, call.landed_in) = (Some(Instant::now()), Some(self.step));
        let answer = word.map(|(body, slot)| {
            let commitment = call.ask.query.commitment().filter(|_| call.ask.query.has_context());
            let believed = commitment.is_none_or(|c| slot <= self.frontier.slot(c) + BELIEVED);
            let keepable = believed && call.era == self.era;
            call.said = Some(Said { body: body.clone(), slot, keepable });
            Reply { node: 0, body, sent_at: call.sent_at, slot, confirmed }
        });
        // A call that goes past the cache is its caller's, who may have given up.
        if way_back.send(answer.ok_or_else(|| Error::NoUpstream(Vec::new()))).is_err() {
            call.said = None;
        }
    }

    /// Lets everything happen that needs neither time nor a node; whoever has an answer then.
    pub(super) async fn settles(&mut self) -> Vec<(Caller<W>, Result<CacheAnswer, Error>)> {
        // More than any chain of tasks that wake each other: caller, flight, caller, a second flight, a third.
        for _ in 0..24 {
            tokio::task::yield_now().await;
        }
        while let Ok((ask, way_back)) = self.going_up.try_recv() {
            let (sent_at, era) = (Instant::now(), self.era);
            self.calls.push(Call {
                ask,
                sent_at,
                era,
                way_back: Some(way_back),
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

/// Runs one case on a clock of its own, that only the case moves.
pub(super) fn on_a_stepped_clock<T>(case: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // Far enough from the clock's beginning for answers that were asked for before.
    runtime.block_on(async {
        advance(Duration::from_mins(10)).await;
        case.await
    })
}

/// What a caller asks of the cache beside the query.
pub(super) fn options(bypass: bool, floor: Option<Slot>) -> CallOptions {
    let deadline = Instant::now() + Duration::from_secs(30);
    let (caller, trace) = (crate::pool::Caller::default(), Trace::default());
    CallOptions { bypass, floor, deadline, coding: None, caller, trace }
}
