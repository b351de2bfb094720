//! Comparisons of cached answers with a node's later answers, in production.
//!
//! A sample of hits is fetched again and compared (`verify.sample`). While the chain is followed, a small share of the
//! carried hits is sampled in any case. An account that was carried for `follow.max_carry` is fetched again, and
//! compared, too. In mode `shadow` these are all accounts that mode `on` would have carried.
//!
//! No caller waits for a comparison. A mismatch is counted and logged for an operator. If an account has changed
//! although no followed block wrote it, the account is fetched once more. If that answer differs from the cached one,
//! too, the blocks do not list all writes, so answers are not carried any more until a restart. The result `moved`
//! counts answers that prove nothing, and nodes that do not answer.

mod compare;

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use compare::{compare_states, is_same_state};

use super::entry::{Class, Entry, Payload};
use super::follow_stamp::{FollowStamp, StampInput, Stamper};
use super::lookup::Lookup;
use super::render::write_for;
use crate::config;
use crate::follow::Chain;
use crate::methods::{AccountEncoding, BlockQuery, Commitment, Method, Query, Slot};
use crate::node::{Contextual, NodeReply};
use crate::pool::{CallContext, Pool, PoolReply, UpstreamRequest};
use crate::telemetry::VerifyResult;

/// The maximum number of sampled hits that are compared at once. More would put load on the nodes.
const AT_ONCE: usize = 4;
/// The maximum number of refetched accounts that are compared at once. They cost nodes no calls.
const REFETCHED_AT_ONCE: usize = 64;
/// The share of carried hits that is compared if `verify.sample` is not set.
const CARRIED_SAMPLE: f64 = 0.001;
/// The shortest time between two such comparisons.
const CARRIED_PAUSE: Duration = Duration::from_secs(1);
/// The time limit for the followed chain to reach the slot of an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Picks hits and compares them with a node's answer.
pub(super) struct Verifier {
    /// The highest random number with which a hit is verified. If the threshold is 0, no hit is verified.
    threshold: u64,
    /// If set, only carried hits are verified, and none before this time.
    next_carried: Option<Mutex<Instant>>,
    hasher: RandomState,
    permits: Arc<Semaphore>,
    refetched_permits: Arc<Semaphore>,
    lookup: Arc<Lookup>,
    pool: Arc<Pool>,
    tasks: TaskTracker,
}

#[derive(Clone)]
struct CachedAnswer {
    query: Query,
    class: Class,
    payload: Payload,
    slot: Slot,
    /// The stamp that allows the answer to be carried. `None` if it is not carried.
    stamp: Option<Arc<FollowStamp>>,
}

impl Verifier {
    /// Creates a verifier, whose comparisons run as tasks of `tasks`.
    pub(super) fn new(
        config: &config::Config,
        lookup: Arc<Lookup>,
        pool: Arc<Pool>,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        let sample = config.verify.sample;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of all draws, which ends at the highest"
        )]
        let threshold = (sample.unwrap_or(CARRIED_SAMPLE) * u64::MAX as f64) as u64;
        // The alert on mismatches would miss the first one of a series that does not start at zero.
        for method in Method::ALL {
            lookup.metrics.verify.at((method, VerifyResult::Mismatch));
        }
        Arc::new(Self {
            threshold,
            next_carried: sample.is_none().then(|| Mutex::new(Instant::now())),
            hasher: RandomState::new(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            refetched_permits: Arc::new(Semaphore::new(REFETCHED_AT_ONCE)),
            lookup,
            pool,
            tasks,
        })
    }

    /// Returns true if the present hit is to be verified. Draws nothing if such hits are not verified.
    fn picks(&self, is_carried: bool) -> bool {
        thread_local!(static DRAWS: Cell<u64> = const { Cell::new(0) });
        let is_verified = self.threshold > 0 && (is_carried || self.next_carried.is_none());
        is_verified && self.hasher.hash_one(DRAWS.replace(DRAWS.get() + 1)) <= self.threshold && self.is_due()
    }

    /// Returns true if the limit on the rate of comparisons, if there is one, allows one more now.
    fn is_due(&self) -> bool {
        let Some(next) = &self.next_carried else { return true };
        let (mut next, now) = (next.lock(), Instant::now());
        let is_due = *next <= now;
        if is_due {
            *next = now + CARRIED_PAUSE;
        }
        is_due
    }

    /// Starts the comparison of a hit if it is picked and a permit is free. `delivered` is the payload that
    /// the caller of `query` got from `entry`. Returns at once.
    pub(super) fn sample(self: &Arc<Self>, query: &Query, entry: &Entry, delivered: &Payload) {
        if !self.picks(entry.meta.carried) {
            return;
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return };
        let stamp = entry.stamp.clone().filter(|_| entry.meta.carried);
        let (class, slot) = (entry.meta.class, entry.meta.slot);
        let hit = CachedAnswer { query: query.clone(), class, payload: delivered.clone(), slot, stamp };
        let verifier = Arc::clone(self);
        self.tasks.spawn(async move {
            match verifier.ask(&hit, hit.slot, true).await {
                Some(again) => verifier.verify(hit, again).await,
                None => verifier.count(&hit, VerifyResult::Moved),
            }
            drop(permit);
        });
    }

    /// Starts the comparison of `stored`, which may be carried, with `again`, a node's later answer to `query`. Returns
    /// at once.
    pub(super) fn compare_refetched(self: &Arc<Self>, query: &Query, stored: Arc<Entry>, again: &PoolReply) {
        let Ok(permit) = Arc::clone(&self.refetched_permits).try_acquire_owned() else { return };
        let (verifier, query, again) = (Arc::clone(self), query.clone(), again.clone());
        self.tasks.spawn(async move {
            let (class, slot, stamp) = (stored.meta.class, stored.meta.slot, stored.stamp.clone());
            let form = query.clone();
            let written = tokio::task::spawn_blocking(move || write_for(&form, &stored));
            if let Ok(Ok((payload, _))) = written.await {
                verifier.verify(CachedAnswer { query, class, payload, slot, stamp }, again).await;
            }
            drop(permit);
        });
    }

    /// Compares a cached answer with a node's later answer, and counts the result. Logs a mismatch.
    async fn verify(&self, cached: CachedAnswer, again: PoolReply) {
        let result = self.compare(&cached, &again).await;
        self.count(&cached, result);
        if result == VerifyResult::Mismatch {
            self.report(
                &cached,
                &again,
                "a cached answer and a node's later answer to the same call contradict each other: \
                 purge the cached answer, and ask every node to find out which answer is wrong",
            );
            if cached.stamp.is_some() {
                self.confirm(&cached, again.slot).await;
            }
        }
    }

    /// Fetches a carried answer once more, at `slot` or above, because an answer at this slot contradicts it. If the new
    /// answer does so, too, nothing is carried any more.
    async fn confirm(&self, cached: &CachedAnswer, slot: Slot) {
        let Some(third) = self.ask(cached, slot, false).await else { return };
        if self.compare(cached, &third).await == VerifyResult::Mismatch {
            self.lookup.carrier.followed.contradict();
            self.report(
                cached,
                &third,
                "an account has changed although no followed block has written it: \
                 until a restart, cached answers are no longer served at newer slots",
            );
        }
    }

    fn report(&self, cached: &CachedAnswer, again: &PoolReply, what: &str) {
        tracing::error!(
            rpc.method = cached.query.method().as_str(),
            rpc.params = cached.query.params_json(),
            cache.slot = cached.slot,
            upstream.slot = again.slot,
            upstream.name = self.pool.name_of(again.node),
            "{what}"
        );
    }

    /// Compares a cached answer with a node's later answer. Answers of different states of the cluster contradict each
    /// other only if no followed block has written the accounts in between.
    async fn compare(&self, cached: &CachedAnswer, again: &PoolReply) -> VerifyResult {
        let (ours, theirs) = (cached.clone(), again.body.clone());
        // Parsing a block takes megabytes and blocks a worker.
        let compared = tokio::task::spawn_blocking(move || {
            compare_states(&ours.query, ours.class, &ours.payload, &theirs)
        });
        // The task fails only when the process ends.
        match compared.await.unwrap_or(VerifyResult::Moved) {
            VerifyResult::Mismatch
                if !is_same_state(cached.class, cached.slot, again.slot)
                    && !self.is_unwritten(cached, again).await =>
            {
                VerifyResult::Moved
            }
            result => result,
        }
    }

    /// Returns true if the followed chain proves that no block between the slots of two answers has written their
    /// accounts. Waits for the chain to reach both slots.
    async fn is_unwritten(&self, cached: &CachedAnswer, again: &PoolReply) -> bool {
        let (Some(stamp), NodeReply::Result(result)) = (&cached.stamp, &again.body) else { return false };
        let encoding = match &cached.query {
            Query::Account(query) => query.form.encoding,
            Query::Accounts(query) => query.form.encoding,
            _ => AccountEncoding::Base64,
        };
        // Nodes of different versions may parse the data of a program differently.
        if encoding == AccountEncoding::JsonParsed || !self.pool.is_followable(again.node) {
            return false;
        }
        let followed = Arc::clone(&self.lookup.carrier.followed);
        let input = StampInput { followed, chain: stamp.chain, confirmed: 0, read_at: again.sent_at };
        let Some(stamper) = Contextual::split(result).and_then(|parts| Stamper::new(&input, &parts.context))
        else {
            return false;
        };
        // At finalized, old nodes may show data of a slot above that of the answer.
        let is_final = cached.class == Class::Account(Commitment::Finalized);
        if is_final && (stamp.may_be_newer || stamper.may_be_newer()) {
            return false;
        }
        let (from, to) = (cached.slot.min(again.slot), cached.slot.max(again.slot));
        let reached = timeout(PATIENCE, input.followed.reached(stamp.chain, to)).await;
        let is_unwritten =
            |chain: Arc<Chain>| stamp.buckets.iter().all(|bucket| chain.last_write(*bucket) <= from);
        reached.ok().flatten().is_some_and(is_unwritten)
    }

    /// Asks nodes for another answer to the query of `cached`. Accounts, fees and votes are requested at `slot` or
    /// above, final blocks and skipped slots at finalized. `None` if no node answers.
    async fn ask(&self, cached: &CachedAnswer, slot: Slot, one_node: bool) -> Option<PoolReply> {
        let min_slot =
            matches!(cached.class, Class::Account(_) | Class::Fee(_) | Class::Votes(_)).then_some(slot);
        let query = match (&cached.query, cached.class) {
            (Query::Block(block), Class::BlockFinal | Class::Skipped | Class::SkippedUnconfirmed) => {
                Query::Block(BlockQuery { commitment: Commitment::Finalized, ..*block })
            }
            (query, _) => query.clone().with_min_context_slot(min_slot),
        };
        let context = CallContext::own(Instant::now() + self.pool.time_of(query.method().into()));
        self.pool.call(&UpstreamRequest { query, min_slot, prefer: None, one_node, context }).await.ok()
    }

    fn count(&self, cached: &CachedAnswer, result: VerifyResult) {
        self.lookup.metrics.verify.at((cached.query.method(), result)).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use bytes::Bytes;
    use parking_lot::Mutex;

    use super::super::Cache;
    use super::super::entry::{EntryBody, EntryMeta, TextParts};
    use super::*;
    use crate::config::Config;
    use crate::follow::FollowedChain;
    use crate::frontier::Frontier;
    use crate::telemetry::Metrics;

    /// The log of a test.
    #[derive(Clone, Default)]
    struct LogOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for LogOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the verifier of a cache in front of a pool whose calls the test answers.
    fn verifier(sample: Option<f64>) -> Arc<Verifier> {
        let any = ([127, 0, 0, 1], 0).into();
        let mut config = Config::dev(any, any, Vec::new());
        config.verify.sample = sample;
        let (frontier, metrics) = (Arc::new(Frontier::new(0)), Metrics::new());
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).unwrap());
        let (followed, tasks) = (Arc::<FollowedChain>::default(), TaskTracker::new());
        let (pool_of_cache, metrics_of_cache) = (Arc::clone(&pool), Arc::clone(&metrics));
        let cache =
            Cache::new(&config, frontier, pool_of_cache, followed, metrics_of_cache, tasks.clone(), None);
        Verifier::new(&config, Arc::clone(&cache.lookup), pool, tasks)
    }

    #[tokio::test(start_paused = true)]
    async fn picks_about_the_configured_share() {
        for (sample, is_carried, at_least, at_most) in [
            (Some(0.0), true, 0, 0),
            (Some(0.1), false, 700, 1_300),
            (Some(1.0), true, 10_000, 10_000),
            (None, false, 0, 0),
            // The clock stands still, and one carried hit a second is verified.
            (None, true, 1, 1),
        ] {
            let verifier = verifier(sample);
            let picked = (0..10_000).filter(|_| verifier.picks(is_carried)).count();
            assert!((at_least..=at_most).contains(&picked), "{picked} at {sample:?}");
        }
    }

    #[tokio::test]
    async fn only_mismatches_are_logged() {
        let verifier = verifier(Some(1.0));
        let (fake_node, mut calls) = tokio::sync::mpsc::unbounded_channel();
        verifier.pool.fake_node.set(fake_node).unwrap();
        let log = LogOutput::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let _guard = tracing::subscriber::set_default(subscriber);

        let block = |height: u64| Bytes::from(format!(r#"{{"blockHeight":{height}}}"#));
        let params = crate::jsonrpc::Params::Array(Bytes::from_static(b"[7]"));
        let query =
            Query::parse(crate::methods::Method::GetBlock, &params, crate::methods::Profile::Node).unwrap();
        let delivered = Payload::Result(TextParts::One(block(1)));
        let (class, sent_at) = (Class::BlockFinal, Instant::now());
        let meta = EntryMeta { slot: 7, sent_at, class, derived: false, carried: false, node: None };
        let body = EntryBody::Verbatim(delivered.clone());
        let entry = Entry::new(body, meta, None);
        for (height, result, is_logged) in
            [(1, VerifyResult::Equal, false), (2, VerifyResult::Mismatch, true)]
        {
            verifier.sample(&query, &entry, &delivered);
            let (_, reply_sender) = calls.recv().await.unwrap();
            let body = NodeReply::Result(block(height));
            let reply = PoolReply {
                node: 0,
                body,
                sent_at: Instant::now(),
                slot: 7,
                finalized: Slot::MAX,
                is_short: false,
                blocks: None,
            };
            assert!(reply_sender.send(Ok(reply)).is_ok());
            verifier.tasks.close();
            verifier.tasks.wait().await;
            verifier.tasks.reopen();
            assert_eq!(verifier.lookup.metrics.verify.at((query.method(), result)).get(), 1, "{result:?}");
            let text = String::from_utf8(log.0.lock().clone()).unwrap();
            assert_eq!(text.contains("contradict each other"), is_logged, "{result:?}: {text}");
        }
    }
}
