//! Verification of hits in production: a sample of hits is fetched again from a node and compared
//! (`verify.sample`).
//!
//! No caller waits for a verification. Each picked hit costs one call to one node. At most four comparisons
//! run at a time. While four run, picked hits are skipped. A mismatch is counted and logged for an operator,
//! and nothing is corrected. The result `moved` counts answers that prove nothing, and nodes that do not
//! answer.

mod compare;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub use compare::compare;

use super::class::Class;
use super::entry::{EntryMeta, Payload};
use crate::methods::{BlockQuery, Commitment, Query, Slot};
use crate::pool::{CallContext, Pool, UpstreamRequest};
use crate::telemetry::{Metrics, VerifyResult};

/// The maximum number of comparisons that run at once. More would put load on the nodes.
const AT_ONCE: usize = 4;

/// Picks hits and compares them with a node's answer.
pub struct Verifier {
    /// The highest random number with which a hit is verified. If the threshold is 0, no hit is verified.
    threshold: u64,
    draws: AtomicU64,
    hasher: RandomState,
    permits: Arc<Semaphore>,
    /// The longest wait for the node's answer.
    patience: Duration,
    metrics: Arc<Metrics>,
}

/// A hit to verify: the query, and the answer that the caller got.
struct SampledHit {
    query: Query,
    class: Class,
    payload: Payload,
    slot: Slot,
}

impl Verifier {
    /// Creates a verifier of the share `sample` of hits, from 0.0 to 1.0. A node gets `patience` to answer.
    pub fn new(sample: f64, patience: Duration, metrics: Arc<Metrics>) -> Arc<Self> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of all draws, which ends at the highest"
        )]
        let threshold = (sample * u64::MAX as f64) as u64;
        let (draws, hasher) = (AtomicU64::new(0), RandomState::new());
        Arc::new(Self {
            threshold,
            draws,
            hasher,
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            patience,
            metrics,
        })
    }

    /// Draws a random number, and returns true if the present hit is to be verified. Takes no lock. Draws
    /// nothing if verification is off.
    pub fn picks(&self) -> bool {
        self.threshold > 0
            && self.hasher.hash_one(self.draws.fetch_add(1, Ordering::Relaxed)) <= self.threshold
    }

    /// Starts the comparison of a hit if it is picked and a permit is free. `delivered` is the payload that
    /// the caller of `query` got from an entry with this `meta`. Returns at once. The comparison runs as one
    /// of `tasks`.
    pub fn sample(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        tasks: &TaskTracker,
        query: &Query,
        meta: &EntryMeta,
        delivered: &Payload,
    ) {
        if !self.picks() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return };
        let (verifier, pool) = (Arc::clone(self), Arc::clone(pool));
        let (query, payload) = (query.clone(), delivered.clone());
        let hit = SampledHit { query, class: meta.class, payload, slot: meta.slot };
        tasks.spawn(async move {
            verifier.verify(&pool, hit).await;
            drop(permit);
        });
    }

    /// Asks one node the same question, compares the answers, counts the result, and logs a mismatch.
    async fn verify(&self, pool: &Pool, hit: SampledHit) {
        let method = hit.query.method();
        let count = |result| self.metrics.verify.at((Some(method), result)).inc();
        let Ok(again) = pool.call(&upstream_request(&hit, Instant::now() + self.patience)).await else {
            return count(VerifyResult::Moved);
        };
        // Parsing a block takes megabytes and blocks a worker.
        let compared = tokio::task::spawn_blocking(move || {
            let SampledHit { query, class, payload, slot } = &hit;
            (compare(query, *class, payload, *slot, &again.body, again.slot), hit, again)
        });
        // The task fails only when the process ends.
        let Ok((result, hit, again)) = compared.await else { return };
        count(result);
        if result == VerifyResult::Mismatch {
            tracing::error!(
                rpc.method = method.as_str(),
                rpc.params = hit.query.params_json(),
                cache.slot = hit.slot,
                upstream.slot = again.slot,
                upstream.name = pool.name_of(again.node),
                "a cached answer and a node's later answer to the same call contradict each other: \
                 purge the cached answer, and ask every node to find out which answer is wrong"
            );
        }
    }
}

/// Returns the upstream call whose answer is compared with `hit`. Accounts, fees and votes are requested at
/// the hit's slot or above. Final blocks and skipped slots are requested at finalized.
fn upstream_request(hit: &SampledHit, deadline: Instant) -> UpstreamRequest {
    let min_slot =
        matches!(hit.class, Class::Account(_) | Class::Fee(_) | Class::Votes(_)).then_some(hit.slot);
    let query = match (&hit.query, hit.class) {
        (Query::Block(block), Class::BlockFinal | Class::Skipped | Class::SkippedUnconfirmed) => {
            Query::Block(BlockQuery { commitment: Commitment::Finalized, ..*block })
        }
        (query, _) => query.clone().with_min_context_slot(min_slot),
    };
    UpstreamRequest { query, min_slot, prefer: None, one_node: true, context: CallContext::own(deadline) }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::super::entry::TextParts;
    use super::*;
    use crate::config::Config;
    use crate::frontier::Frontier;
    use crate::node::NodeReply;
    use crate::pool::PoolReply;

    /// The log of a test.
    #[derive(Clone, Default)]
    struct LogOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for LogOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn picks_about_the_configured_share() {
        for (sample, at_least, at_most) in [(0.0, 0, 0), (0.1, 700, 1_300), (1.0, 10_000, 10_000)] {
            let verifier = Verifier::new(sample, Duration::ZERO, Metrics::new());
            let picked = (0..10_000).filter(|_| verifier.picks()).count();
            assert!((at_least..=at_most).contains(&picked), "{picked} at {sample}");
        }
    }

    #[tokio::test]
    async fn only_mismatches_are_logged() {
        let any = ([127, 0, 0, 1], 0).into();
        let config = Config::dev(any, any, Vec::new());
        let (frontier, metrics) = (Arc::new(Frontier::new(0)), Metrics::new());
        let pool = Arc::new(Pool::new(&config, frontier, Arc::clone(&metrics)).unwrap());
        let (fake_node, mut calls) = tokio::sync::mpsc::unbounded_channel();
        pool.fake_node.set(fake_node).unwrap();
        let verifier = Verifier::new(1.0, Duration::from_mins(1), Arc::clone(&metrics));
        let log = LogOutput::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let _guard = tracing::subscriber::set_default(subscriber);

        let block = |height: u64| Bytes::from(format!(r#"{{"blockHeight":{height}}}"#));
        let params = crate::jsonrpc::Params::Array(Bytes::from_static(b"[7]"));
        let query =
            Query::parse(crate::methods::Method::GetBlock, &params, crate::methods::Profile::Node).unwrap();
        let delivered = Payload::Result(TextParts::One(block(1)));
        let meta = EntryMeta {
            slot: 7,
            sent_at: Instant::now(),
            class: Class::BlockFinal,
            derived: false,
            carried: false,
        };
        for (height, result, is_logged) in
            [(1, VerifyResult::Equal, false), (2, VerifyResult::Mismatch, true)]
        {
            let tasks = TaskTracker::new();
            verifier.sample(&pool, &tasks, &query, &meta, &delivered);
            let (_, reply_sender) = calls.recv().await.unwrap();
            let body = NodeReply::Result(block(height));
            let reply = PoolReply { node: 0, body, sent_at: Instant::now(), slot: 7, is_settled: true };
            assert!(reply_sender.send(Ok(reply)).is_ok());
            tasks.close();
            tasks.wait().await;
            assert_eq!(metrics.verify.at((Some(query.method()), result)).get(), 1, "{result:?}");
            let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            assert_eq!(text.contains("contradict each other"), is_logged, "{result:?}: {text}");
        }
    }
}
