//! Proof in production: a share of hits is asked of a node again, after they were answered, and compared.
//!
//! Never in a caller's way and never a load: nothing waits for it, each picked hit costs one call to one node, and no
//! more than four are under way; a hit that is picked past that is let go. It corrects nothing: a mismatch is
//! counted and logged for a person to look at. What proves nothing, a node that does not answer included, is `moved`.

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
use crate::pool::{Caller, Pool, UpstreamRequest};
use crate::telemetry::{Metrics, Trace, VerifyResult};

/// Comparisons under way at once; more would be felt by the nodes.
const AT_ONCE: usize = 4;

/// Picks hits and compares them with what a node says.
pub struct Verifier {
    /// The highest draw that is picked; 0 picks none.
    threshold: u64,
    draws: AtomicU64,
    hasher: RandomState,
    places: Arc<Semaphore>,
    /// How long a node may take.
    patience: Duration,
    metrics: Arc<Metrics>,
}

/// A hit as it was served.
struct Hit {
    query: Query,
    class: Class,
    payload: Payload,
    slot: Slot,
}

impl Verifier {
    /// Compares the share `sample` of hits, from 0.0 to 1.0; gives a node `patience` to answer.
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
            places: Arc::new(Semaphore::new(AT_ONCE)),
            patience,
            metrics,
        })
    }

    /// Whether this hit is one of the sample: a draw without a lock, and none at all where nothing is sampled.
    pub fn picks(&self) -> bool {
        self.threshold > 0
            && self.hasher.hash_one(self.draws.fetch_add(1, Ordering::Relaxed)) <= self.threshold
    }

    /// Compares a hit if it is picked and there is room: `delivered` is what the caller of `query` got of an entry of this
    /// `stamp`. Returns at once; the comparison is one of `tasks`.
    pub fn maybe(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        tasks: &TaskTracker,
        query: &Query,
        stamp: &EntryMeta,
        delivered: &Payload,
    ) {
        if !self.picks() {
            return;
        }
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return };
        let (verifier, pool) = (Arc::clone(self), Arc::clone(pool));
        let (query, payload) = (query.clone(), delivered.clone());
        let hit = Hit { query, class: stamp.class, payload, slot: stamp.slot };
        tasks.spawn(async move {
            verifier.verify(&pool, hit).await;
            drop(place);
        });
    }

    /// Asks one node what the hit answered, compares, counts, and logs a mismatch.
    async fn verify(&self, pool: &Pool, hit: Hit) {
        let method = hit.query.method();
        let count = |result| self.metrics.verify.at((Some(method), result)).inc();
        let Ok(again) = pool.call(&ask(&hit, Instant::now() + self.patience)).await else {
            return count(VerifyResult::Moved);
        };
        // A block is megabytes to read into trees, and nobody waits.
        let compared = tokio::task::spawn_blocking(move || {
            let Hit { query, class, payload, slot } = &hit;
            (compare(query, *class, payload, *slot, &again.body, again.slot), hit, again)
        });
        // Ends early only with the process.
        let Ok((result, hit, again)) = compared.await else { return };
        count(result);
        if result == VerifyResult::Mismatch {
            tracing::error!(
                rpc.method = method.as_str(),
                rpc.params = hit.query.params_json(),
                cache.slot = hit.slot,
                upstream.slot = again.slot,
                upstream.name = pool.name_of(again.node),
                "a hit differs from what a node says of the same: purge it, and find out which of the two is wrong"
            );
        }
    }
}

/// The caller's own call once more, as the hit was fetched: at its slot at least, a final block at finalized.
fn ask(hit: &Hit, deadline: Instant) -> UpstreamRequest {
    let floor = matches!(hit.class, Class::Account(_) | Class::Fee(_) | Class::Votes(_)).then_some(hit.slot);
    let query = match (&hit.query, hit.class) {
        (Query::Block(block), Class::BlockFinal | Class::Skipped | Class::SkippedUnconfirmed) => {
            Query::Block(BlockQuery { commitment: Commitment::Finalized, ..*block })
        }
        (query, _) => query.clone().with_min_context_slot(floor),
    };
    UpstreamRequest {
        query,
        floor,
        prefer: None,
        alone: true,
        deadline,
        caller: Caller::default(),
        trace: Trace::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_the_share_that_was_asked_for_is_picked() {
        for (sample, at_least, at_most) in [(0.0, 0, 0), (0.1, 700, 1_300), (1.0, 10_000, 10_000)] {
            let verifier = Verifier::new(sample, Duration::ZERO, Metrics::new());
            let picked = (0..10_000).filter(|_| verifier.picks()).count();
            assert!((at_least..=at_most).contains(&picked), "{picked} at {sample}");
        }
    }
}
