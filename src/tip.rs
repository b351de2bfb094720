//! The tip: the highest slot that anybody was shown, at each commitment, and the reads that may never go back.
//!
//! A wallet asks one node for the height of the chain and another one for the status of its payment. If these two are at
//! different slots, a payment that has landed looks expired. So whatever somebody was shown at a slot, no later answer
//! comes from below it, and a caller is shown a height only once each signature that he watches was asked for at its slot,
//! and what has landed was told.
//!
//! The tip is everybody's, not each key's: a key may belong to a balancer in front of many callers.
//!
//! `read` answers what one state says, `statuses` merges the questions for statuses, `watch` has the signatures that are
//! watched, and `look` asks for them.

mod look;
mod read;
mod statuses;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{Error, FailedAttempt};
use crate::fair::Watcher;
use crate::follow::FollowedChain;
use crate::frontier::Frontier;
use crate::methods::{Commitment, Signature, Slot, TipQuery};
use crate::node::NodeReply;
use crate::pool::{CallContext, Pool, PoolReply, TipRequest};
use crate::telemetry::{AttemptResult, Trace};
use read::LastReads;
pub use read::TipAnswer;
use statuses::Merger;
use watch::Watches;
pub use watch::{Landed, Unserved, Watch};

/// The part of a slot for which a read pauses if no node has reached the tip.
const PAUSE_PART: u32 = 4;
/// The longest wait for a node that has reached the tip, or for the signatures that are watched. A caller who polls asks
/// again before that.
const PATIENCE: Duration = Duration::from_secs(5);

fn own_context(trace: Trace) -> CallContext {
    CallContext { is_background: false, trace, ..CallContext::own(Instant::now() + PATIENCE) }
}

/// The tip of the cluster as callers have seen it.
pub struct Tip {
    pool: Arc<Pool>,
    frontier: Arc<Frontier>,
    followed: Arc<FollowedChain>,
    /// The highest slot that was shown at each commitment, by [`Commitment::index`]. 0 before the first.
    shown: [AtomicU64; 3],
    /// The newest known slot at each commitment that the tip has seen. If it is lower now, no node reaches it any more.
    known: [AtomicU64; 3],
    reads: LastReads,
    merger: Merger,
    watches: Arc<Watches>,
}

impl Tip {
    pub fn new(pool: Arc<Pool>, frontier: Arc<Frontier>, followed: Arc<FollowedChain>) -> Arc<Self> {
        Arc::new(Self {
            pool,
            frontier,
            followed,
            shown: Default::default(),
            known: Default::default(),
            reads: LastReads::default(),
            merger: Merger::default(),
            watches: Arc::default(),
        })
    }

    /// Returns the highest slot that an answer of the set has shown to anybody, at this commitment. 0 before the first.
    pub fn slot(&self, commitment: Commitment) -> Slot {
        self.follow_falls();
        self.shown[commitment.index()].load(Ordering::Acquire)
    }

    /// Notes that a caller is shown `slot`, and returns the highest slot that was shown before. A slot that is confirmed is
    /// processed, too, so the tip rises at all weaker commitments. A slot that a single node invents would stop all answers,
    /// so it does not count.
    pub fn raise(&self, commitment: Commitment, slot: Slot) -> Slot {
        self.follow_falls();
        self.lift(commitment, slot)
    }

    /// Raises the tip without a look at the frontier, for whoever holds the lock of the watches: a fall needs it, too.
    fn lift(&self, commitment: Commitment, slot: Slot) -> Slot {
        let mut before = 0;
        if self.frontier.believes(commitment, slot) {
            for shown in &self.shown[..=commitment.index()] {
                before = shown.fetch_max(slot, Ordering::AcqRel);
            }
        }
        before
    }

    /// Returns true if the blocks of the chain are followed.
    pub fn follows(&self) -> bool {
        self.followed.current().is_some()
    }

    /// Waits for the end of a signature: until it is at `commitment`. Dropping the watch ends it. One node call a slot
    /// for each 256 watched signatures, whoever watches. An already landed signature is reported at once. No height is shown
    /// to `watcher` before a watch of its own that has ended is dropped.
    pub fn watch(&self, signature: Signature, commitment: Commitment, watcher: Option<Watcher>) -> Watch {
        self.watches.add(signature, commitment, watcher)
    }

    fn floors(&self) -> [Slot; 3] {
        Commitment::ALL.map(|commitment| self.slot(commitment))
    }

    /// Lowers the tip with a frontier that has fallen, as after the restart of a cluster: no node could answer otherwise.
    fn follow_falls(&self) {
        for commitment in Commitment::ALL {
            let at = commitment.index();
            let before = self.known[at].fetch_max(self.frontier.slot(commitment), Ordering::AcqRel);
            // Read again, because another thread may have seen a newer slot than this one.
            let now = self.frontier.slot(commitment);
            if now < before {
                self.known[at].store(now, Ordering::Release);
                self.shown[at].fetch_min(now, Ordering::AcqRel);
                self.watches.ask_anew(commitment);
                // Another cluster may have another one.
                self.reads.window.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Asks nodes until one answers at or above the tip.
    ///
    /// # Errors
    /// No node has reached the tip in time, or none answers.
    async fn ask(&self, query: &TipQuery, context: &CallContext) -> Result<PoolReply, Error> {
        let until = context.deadline.min(Instant::now() + PATIENCE);
        let commitment = query.commitment().unwrap_or(Commitment::Processed);
        let is_current = |reply: &PoolReply, era| {
            let is_result = matches!(reply.body, NodeReply::Result(_));
            let is_believed = self.frontier.believes(commitment, reply.slot);
            !is_result || era == self.frontier.era() && reply.slot >= self.slot(commitment) && is_believed
        };
        let is_behind = |attempt: &FailedAttempt| attempt.is(AttemptResult::Behind);
        loop {
            let (floors, era) = (self.floors(), self.frontier.era());
            let request = TipRequest { query: query.clone(), floors, context: context.clone() };
            let answer = self.pool.read_tip(&request).await;
            let error = match answer {
                Ok(reply) if is_current(&reply, era) => return Ok(reply),
                // The cluster has changed meanwhile, or the tip has risen.
                Ok(_) => Error::NoUpstream(Vec::new()),
                Err(Error::NoUpstream(attempts)) if attempts.iter().any(is_behind) => {
                    Error::NoUpstream(attempts)
                }
                Err(error) => return Err(error),
            };
            if Instant::now() >= until {
                return Err(error);
            }
            sleep(self.pause()).await;
        }
    }

    fn pause(&self) -> Duration {
        self.frontier.slot_time() / PAUSE_PART
    }
}

/// Returns a watch of `signature`, and a function that tells whether it is dropped, for tests of other parts.
#[cfg(test)]
pub(crate) fn watch_alone(signature: Signature) -> (Watch, impl Fn() -> bool) {
    let watches = Arc::<Watches>::default();
    let watch = watches.add(signature, Commitment::Confirmed, None);
    (watch, move || Arc::strong_count(&watches) == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Secret, Upstream};
    use crate::telemetry::Metrics;
    use Commitment::{Confirmed, Finalized, Processed};

    fn slots(tip: &Tip) -> [Slot; 3] {
        Commitment::ALL.map(|commitment| tip.slot(commitment))
    }

    fn tip_of_two() -> (Arc<Tip>, Arc<Frontier>) {
        let any = ([127, 0, 0, 1], 0).into();
        let upstreams =
            ["a", "b"].map(|name| Upstream::plain(name.to_owned(), Secret::new("http://node.invalid")));
        let config = Config::dev(any, any, upstreams.into());
        let frontier = Arc::new(Frontier::new(2));
        let pool = Pool::new(&config, Arc::clone(&frontier), Metrics::new()).unwrap();
        let tip = Tip::new(Arc::new(pool), Arc::clone(&frontier), Arc::default());
        (tip, frontier)
    }

    /// Lets both nodes be at `slot`.
    fn report(frontier: &Frontier, slot: Slot) {
        for (node, commitment) in [0, 1].into_iter().flat_map(|node| Commitment::ALL.map(|c| (node, c))) {
            frontier.set_usable(node, true, Instant::now());
            frontier.probed(frontier.era(), node, commitment, slot, Instant::now());
        }
    }

    #[tokio::test]
    async fn tip_rises_with_what_is_shown_and_falls_with_the_frontier() {
        let (tip, frontier) = tip_of_two();
        let report = |slot| report(&frontier, slot);
        report(1_000);
        assert_eq!(slots(&tip), [0; 3], "nothing was shown");
        tip.raise(Confirmed, 1_001);
        assert_eq!(slots(&tip), [1_001, 1_001, 0], "what is confirmed is processed");
        tip.raise(Processed, 999);
        tip.raise(Finalized, 990);
        assert_eq!(slots(&tip), [1_001, 1_001, 990]);
        tip.raise(Processed, 1_000_000);
        assert_eq!(slots(&tip), [1_001, 1_001, 990], "a slot that one node invents");
        report(1_001);
        assert_eq!(slots(&tip), [1_001, 1_001, 990]);
        frontier.forget();
        assert_eq!(slots(&tip), [0; 3]);
        report(500);
        tip.raise(Confirmed, 500);
        assert_eq!(slots(&tip), [500, 500, 0], "a cluster at lower slots");
    }

    #[tokio::test]
    async fn a_transaction_may_land_while_the_frontier_falls() {
        let (tip, frontier) = tip_of_two();
        report(&frontier, 1_000);
        tip.raise(Confirmed, 1_000);
        let mut watch = tip.watch(Signature([7; 64]), Confirmed, None);
        frontier.forget();
        let status = r#"{"slot":400,"confirmations":1,"err":null,"confirmationStatus":"confirmed"}"#;
        let statuses =
            statuses::Statuses { slot: 500, context: "{}".into(), each: vec![status.into()], node: 0 };
        // Sent after the fall, which nobody has noticed yet.
        let sent_at = Instant::now() + PATIENCE;
        // A thread of its own, because it would wait for ever for a lock that it holds.
        let (done, noted) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            tip.note(&[Signature([7; 64])], &statuses, sent_at);
            done.send(())
        });
        assert_eq!(tokio::time::timeout(PATIENCE, noted).await, Ok(Ok(())));
        assert_eq!(watch.landed().await.unwrap().slot, 400);
    }
}
