//! The whole cache on a clock that only the test moves. Its nodes hold their answers until the test releases
//! them, in any order.
//!
//! Each upstream call has a number, and the node writes that number into its answer. An answer of the cache
//! therefore shows from which calls it is made. From these calls, the test knows the age and the commitment
//! of the answer, and if a purge came after the calls.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::*;
use crate::cache::purge::Filter;
use crate::config::Config;
use crate::error::Error;
use crate::follow::FollowedChain;
use crate::pool::{PoolReply, ReplySender};
use crate::telemetry::Trace;

/// An upstream call.
pub(super) struct SentCall {
    pub(super) request: UpstreamRequest,
    pub(super) sent_at: Instant,
    /// The number of purges before the call was sent.
    pub(super) generation: u32,
    /// The sender of the node's answer. `None` once the call has ended.
    reply_sender: Option<ReplySender>,
    /// The node's answer. `None` until the node answers, after a failure, or if nobody waited for the answer.
    pub(super) answer: Option<NodeAnswer>,
    pub(super) answered_at: Option<Instant>,
    /// The number of the test's step in which the call ended. `None` while the call is under way.
    pub(super) answered_in: Option<usize>,
}

impl SentCall {
    /// Returns the node's answer, if the cache may store it.
    pub(super) fn stored_answer(&self) -> Option<&NodeAnswer> {
        self.answer.as_ref().filter(|answer| answer.may_be_stored)
    }
}

/// The answer of a node to an upstream call.
pub(super) struct NodeAnswer {
    pub(super) body: NodeReply,
    pub(super) slot: Slot,
    /// True if the cache may store the answer: its slot is plausible, and no purge came after its call.
    pub(super) may_be_stored: bool,
}

/// A caller of the cache.
pub(super) struct TestCaller<W> {
    /// The call, in the test's own type for calls.
    pub(super) call: W,
    /// The caller's minContextSlot.
    pub(super) min_context_slot: Option<Slot>,
    /// The lowest slot of a hit for this caller: the minContextSlot or the highest slot shown to the caller's
    /// key, whichever is higher.
    pub(super) min_slot: Option<Slot>,
    pub(super) asked_at: Instant,
    /// The number of purges before the caller asked.
    pub(super) generation: u32,
    /// The number of the test's step in which the caller asked.
    pub(super) asked_in: usize,
}

/// A caller with the answer or error that it got.
pub(super) struct AnsweredCaller<W> {
    pub(super) caller: TestCaller<W>,
    pub(super) answer: Result<CacheAnswer, Error>,
}

/// A caller who waits for an answer.
struct WaitingCaller<W> {
    caller: TestCaller<W>,
    /// The task of the call. Its result has the number of callers who were answered before.
    task: JoinHandle<(usize, Result<CacheAnswer, Error>)>,
}

/// The cache under test, its callers, and its upstream calls.
pub(super) struct SteppedCache<W> {
    pub(super) frontier: Arc<Frontier>,
    /// All upstream calls so far. The position of a call is its number.
    pub(super) calls: Vec<SentCall>,
    /// The number of purges so far.
    pub(super) generation: u32,
    /// The number of the test's present step. A step ends when all tasks wait for time or a node.
    pub(super) step: usize,
    pub(super) followed: Arc<FollowedChain>,
    cache: Arc<Cache>,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    requests: UnboundedReceiver<(UpstreamRequest, ReplySender)>,
    waiting: Vec<WaitingCaller<W>>,
    /// The number of callers who were answered so far.
    answered: Arc<AtomicUsize>,
}

impl<W> SteppedCache<W> {
    /// Creates an empty cache with the default settings, changed by `change`.
    pub(super) fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = bounds::CONFIG.clone();
        change(&mut config);
        let (metrics, frontier, tasks) = (Metrics::new(), Arc::new(Frontier::new(1)), TaskTracker::new());
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).unwrap());
        let (fake_node, requests) = unbounded_channel();
        pool.fake_node.set(fake_node).unwrap();
        let followed = Arc::new(FollowedChain::default());
        let (shared_frontier, shared_metrics) = (Arc::clone(&frontier), Arc::clone(&metrics));
        let cache = Cache::new(
            &config,
            shared_frontier,
            pool,
            Arc::clone(&followed),
            shared_metrics,
            tasks.clone(),
            None,
        );
        for (c, slot) in Commitment::ALL.into_iter().zip([FIRST, FIRST - 2, FIRST - 32]) {
            frontier.probed(frontier.era(), 0, c, slot, Instant::now());
        }
        let (calls, waiting, answered) = (Vec::new(), Vec::new(), Arc::default());
        let (generation, step) = (0, 0);
        Self {
            frontier,
            calls,
            generation,
            step,
            followed,
            cache,
            metrics,
            tasks,
            requests,
            waiting,
            answered,
        }
    }

    /// Returns the slot that is `behind` slots below the newest known slot of a commitment.
    pub(super) fn slot_behind(&self, commitment: Commitment, behind: i64) -> Slot {
        self.frontier.slot(commitment).saturating_add_signed(-behind)
    }

    pub(super) fn advance_frontier(&self, commitment: Commitment, slots: Slot) {
        let slot = self.frontier.slot(commitment) + slots;
        self.frontier.probed(self.frontier.era(), 0, commitment, slot, Instant::now());
    }

    /// Starts a caller's call to the cache. `call` is the test's own description of it.
    pub(super) fn ask(&mut self, call: W, query: Query, (options, seen): (CallOptions, SeenSlot)) {
        let min_context_slot = query.min_context_slot();
        let min_slot = min_context_slot.max(seen.0);
        let (cache, answered) = (Arc::clone(&self.cache), Arc::clone(&self.answered));
        let task = self.tasks.spawn(async move {
            let answer = cache.answer(&query, options, &Charge::free(), &seen).await;
            (answered.fetch_add(1, Ordering::Relaxed), answer)
        });
        let (asked_at, generation, asked_in) = (Instant::now(), self.generation, self.step);
        let caller = TestCaller { call, min_context_slot, min_slot, asked_at, generation, asked_in };
        self.waiting.push(WaitingCaller { caller, task });
    }

    /// Takes every permit to write a long answer. Each long answer waits until the returned permits are
    /// dropped.
    pub(super) async fn take_render_permits(&self) -> OwnedSemaphorePermit {
        self.cache.renderer.take_all_permits().await
    }

    /// Returns the highest slot at which one of the accounts of `query` was shown, or 0.
    pub(super) fn floor(&self, query: &Query) -> Slot {
        let plan = self.cache.lookup.plan(query);
        self.cache.lookup.floor(&plan.key, Instant::now())
    }

    /// Returns the number of answers for accounts at confirmed that were carried. In shadow mode, the number of
    /// those that would have been carried.
    pub(super) fn carried_accounts(&self) -> u64 {
        let labels = (Method::GetAccountInfo, Some(Commitment::Confirmed));
        self.metrics.follow_carried.at(labels).get()
    }

    /// Returns how many times the cache went back: it served an account below a slot at which the account was
    /// shown, or replaced an entry of a higher slot.
    pub(super) fn floor_resets(&self) -> u64 {
        self.metrics.cache_floor_resets.at(()).get()
    }

    /// Removes all entries.
    pub(super) fn purge_all(&mut self) {
        self.generation += 1;
        self.cache.purger().clear();
    }

    /// Removes the entries that show `account`.
    pub(super) fn purge_account(&mut self, account: Pubkey) {
        self.generation += 1;
        self.cache.purger().purge(&Filter { account: Some(account), ..Filter::default() });
    }

    /// Returns the numbers of the upstream calls that have not ended.
    pub(super) fn calls_under_way(&self) -> Vec<usize> {
        (0..self.calls.len()).filter(|number| self.calls[*number].reply_sender.is_some()).collect()
    }

    /// Returns the number of an upstream call under way. Any value of `choice` picks one. `None` if no call
    /// is under way.
    pub(super) fn call_under_way(&self, choice: usize) -> Option<usize> {
        let under_way = self.calls_under_way();
        under_way.get(choice % under_way.len().max(1)).copied()
    }

    /// Returns the numbers of the upstream calls under way that were sent at the present time of the clock.
    pub(super) fn calls_sent_now(&self) -> Vec<usize> {
        let now = Instant::now();
        self.calls_under_way().into_iter().filter(|number| self.calls[*number].sent_at == now).collect()
    }

    /// Answers the upstream call of this number with `body` at `slot`.
    pub(super) fn answer_call(&mut self, number: usize, body: NodeReply, slot: Slot) {
        let is_short = matches!(&body, NodeReply::Result(text) if text.as_ref() == b"null");
        let reply = PoolReply {
            node: 0,
            body,
            sent_at: self.calls[number].sent_at,
            slot,
            finalized: Slot::MAX,
            is_short,
            blocks: None,
        };
        self.end_call(number, Some(reply));
    }

    /// Ends the upstream call of this number with a failure of the node.
    pub(super) fn fail_call(&mut self, number: usize) {
        self.end_call(number, None);
    }

    fn end_call(&mut self, number: usize, reply: Option<PoolReply>) {
        let call = &mut self.calls[number];
        let Some(reply_sender) = call.reply_sender.take() else { return };
        (call.answered_at, call.answered_in) = (Some(Instant::now()), Some(self.step));
        call.answer = reply.as_ref().map(|PoolReply { body, slot, .. }| {
            let query = &call.request.query;
            let commitment = query.commitment().filter(|_| query.has_context());
            let is_believed =
                commitment.is_none_or(|c| *slot <= bounds::highest_believed(self.frontier.slot(c)));
            let may_be_stored = is_believed && call.generation == self.generation;
            NodeAnswer { body: body.clone(), slot: *slot, may_be_stored }
        });
        // If a caller who bypasses the cache has given up, nobody receives the answer to its upstream call.
        if reply_sender.send(reply.ok_or_else(|| Error::NoUpstream(Vec::new()))).is_err() {
            call.answer = None;
        }
    }

    /// Runs all tasks until they wait for time or a node, and ends the step. Returns the callers who got an
    /// answer, in the order in which they got it.
    pub(super) async fn settle(&mut self) -> Vec<AnsweredCaller<W>> {
        // Tasks wake each other in chains: caller, shared fetch, caller, a second fetch, a third. No chain
        // has as many links as this loop has rounds.
        for _ in 0..24 {
            tokio::task::yield_now().await;
        }
        while let Ok((request, reply_sender)) = self.requests.try_recv() {
            self.calls.push(SentCall {
                request,
                sent_at: Instant::now(),
                generation: self.generation,
                reply_sender: Some(reply_sender),
                answer: None,
                answered_at: None,
                answered_in: None,
            });
        }
        self.step += 1;
        let mut answered = Vec::new();
        for WaitingCaller { caller, task } in std::mem::take(&mut self.waiting) {
            if task.is_finished() {
                let (order, answer) = task.await.unwrap();
                answered.push((order, AnsweredCaller { caller, answer }));
            } else {
                self.waiting.push(WaitingCaller { caller, task });
            }
        }
        answered.sort_by_key(|(order, _)| *order);
        answered.into_iter().map(|(_, caller)| caller).collect()
    }

    pub(super) fn has_waiting_callers(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// Runs a test on a clock that only the test moves.
pub(super) fn on_a_stepped_clock<T>(case: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // The clock starts at ten minutes, so that an answer can be older than the beginning of the test.
    runtime.block_on(async {
        advance(Duration::from_mins(10)).await;
        case.await
    })
}

/// A caller whose key has seen this slot.
pub(super) struct SeenSlot(Option<Slot>);

impl Conditions for SeenSlot {
    fn known_slot(&self) -> Option<Slot> {
        self.0
    }

    fn reserve_memory(&self, _: usize) -> Option<MemoryPermit> {
        Some(Box::new(()))
    }
}

/// Returns the options of a call with the default deadline, and the slot that its key has seen.
pub(super) fn options(bypass: bool, known_slot: Option<Slot>) -> (CallOptions, SeenSlot) {
    let (asked_at, timeout) = (Instant::now(), bounds::request_timeout());
    let (caller, trace) = (crate::pool::CallerId::default(), Trace::default());
    (CallOptions { bypass, asked_at, timeout, coding: None, caller, trace }, SeenSlot(known_slot))
}
