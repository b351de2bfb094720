//! The task that follows one chain after another, and stops while nobody asks for accounts.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::FollowedChain;
use super::fetch::{BlockNode, BlockNodes};
use super::reader::{Reader, ReaderSettings};
use super::shared_blocks::{SharedBlocks, StoredBlocks};
use super::state::{FollowEnd, FollowState, PauseReason};
use crate::config::FollowSettings;
use crate::frontier::Frontier;
use crate::node::{Fault, NodeReply};
use crate::pool::{FollowedNode, Pool};
use crate::redis_store::Store;
use crate::redis_store::mac::StoreMac;
use crate::telemetry::{Metrics, RestartReason};

/// The time without calls for accounts after which following stops.
const IDLE_AFTER: Duration = Duration::from_mins(5);
/// The interval at which the follower checks whether accounts were asked for.
const IDLE_CHECK: Duration = Duration::from_secs(1);
/// The shortest time between the beginnings of two chains. Doubled while chains end young, up to [`LONG_PAUSE`].
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// The time after the start of following in which a lack of usable nodes causes no pause. The first probes of
/// nodes may still be running.
const FIRST_PROBES: Duration = Duration::from_secs(5);
/// The pause while no node can be asked for blocks. Also the first pause if the nodes that were asked do not help.
const NODE_PAUSE: Duration = Duration::from_secs(2);
/// The pause if a block cannot be understood, or if blocks have no fee rewards. Also the first pause if
/// blocks come too slowly, and the longest one if chains end young.
const LONG_PAUSE: Duration = Duration::from_mins(1);
/// The longest pause while blocks come too slowly. Each attempt takes bandwidth from callers.
const LONGEST_PAUSE: Duration = Duration::from_mins(16);
/// The age from which a chain does not end young. After such a chain, pauses begin with their first length again.
const STEADY_AFTER: Duration = Duration::from_mins(10);

/// The task that reads the new blocks of the Solana cluster, to know which accounts did not change.
pub struct Follower {
    followed: Arc<FollowedChain>,
    pool: Arc<Pool>,
    frontier: Arc<Frontier>,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    settings: FollowSettings,
    shared: SharedBlocks<StoredBlocks>,
}

impl Follower {
    /// Creates the follower, which publishes its chains in `followed`. `store` holds two values: the shared
    /// store, and the MAC that signs the blocks in it. Replicas share blocks only if `store` is given and the
    /// setting `follow.share` is on.
    pub fn new(
        followed: Arc<FollowedChain>,
        pool: Arc<Pool>,
        frontier: Arc<Frontier>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
        settings: FollowSettings,
        store: Option<(Arc<Store>, StoreMac)>,
    ) -> Self {
        let stored = |(store, mac)| StoredBlocks { store, mac, pool: Arc::clone(&pool) };
        let shared = SharedBlocks::new(store.filter(|_| settings.share).map(stored));
        Self { followed, pool, frontier, metrics, tasks, settings, shared }
    }

    /// Reads new blocks until `stop`. While nobody asks for accounts, no blocks are read.
    pub async fn run(self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.follow_while_used()).await;
        self.followed.set_state(FollowState::Off);
    }

    async fn follow_while_used(&self) -> Infallible {
        loop {
            self.followed.set_state(FollowState::Starting);
            tokio::select! {
                never = self.follow_chains() => match never {},
                () = self.idle() => {}
            }
            tracing::info!(
                "no account was asked for in five minutes: the chain is not followed until the next call for an account"
            );
            self.followed.set_state(FollowState::Parked);
            self.followed.touched().await;
        }
    }

    async fn idle(&self) {
        let mut used_at = Instant::now();
        while used_at.elapsed() < IDLE_AFTER {
            sleep(IDLE_CHECK).await;
            if self.followed.take_touched() {
                used_at = Instant::now();
            }
        }
    }

    async fn follow_chains(&self) -> Infallible {
        let started = Instant::now();
        let (mut clusters, mut reloaded) = (self.pool.clusters(), self.pool.reloaded());
        let Self { followed, frontier, metrics, tasks, settings, shared, .. } = self;
        let nodes = PoolNodes { pool: &self.pool, names: &settings.upstreams };
        let settings = ReaderSettings { poll: settings.poll, max_gap: settings.max_gap };
        let reader = Reader { nodes, shared, frontier, followed, metrics, tasks, settings };
        let mut pauses = Pauses::default();
        loop {
            let began = Instant::now();
            clusters.mark_unchanged();
            reloaded.mark_unchanged();
            let end = tokio::select! {
                end = reader.follow() => end,
                // The sender lives as long as the pool, so this cannot fail.
                _ = clusters.changed() => RestartReason::Cluster.into(),
            };
            let has_nodes = !reader.nodes.usable().is_empty();
            let next = match end {
                FollowEnd::Restart(reason) => {
                    metrics.follow_restarts.at(reason).inc();
                    tracing::info!(
                        %reason,
                        "slotfront follows a new run of blocks: each account is fetched once more when it is next requested"
                    );
                    followed.set_state(FollowState::Starting);
                    began + pauses.after(end, began.elapsed())
                }
                FollowEnd::Pause(_) if !has_nodes && started.elapsed() < FIRST_PROBES => {
                    Instant::now() + settings.poll
                }
                FollowEnd::Pause(reason) => {
                    let state = FollowState::Paused(reason);
                    if followed.set_state(state) != state {
                        let reason = reason.as_str();
                        tracing::warn!(
                            reason,
                            "the chain cannot be followed for now: accounts are served as with follow.mode = \"off\""
                        );
                    }
                    let pause = if has_nodes { pauses.after(end, began.elapsed()) } else { NODE_PAUSE };
                    Instant::now() + pause
                }
            };
            // The pause ends when the cluster or the nodes change, because the new nodes may be better.
            tokio::select! {
                () = sleep_until(next) => {}
                _ = clusters.changed() => pauses = Pauses::default(),
                _ = reloaded.changed() => pauses = Pauses::default(),
            }
        }
    }
}

/// Computes the length of each pause in following the chain. A node that cannot be followed must not be asked for
/// whole blocks all the time, so the pauses double as long as chains end young.
#[derive(Default)]
struct Pauses {
    /// The length of the next pause, unless its reason has a longer first or a shorter longest one.
    next: Duration,
}

impl Pauses {
    /// Returns the length of the pause after a chain that ended for the reason `end` at the age of `lasted`.
    fn after(&mut self, end: FollowEnd, lasted: Duration) -> Duration {
        let (first, longest) = match end {
            // No chain outlives its epoch.
            FollowEnd::Restart(RestartReason::Epoch) => return RESTART_PAUSE,
            FollowEnd::Restart(_) => (RESTART_PAUSE, LONG_PAUSE),
            FollowEnd::Pause(PauseReason::NoNode | PauseReason::NoEpochs) => (NODE_PAUSE, LONG_PAUSE),
            FollowEnd::Pause(PauseReason::UnknownForm | PauseReason::NoFees) => (LONG_PAUSE, LONG_PAUSE),
            FollowEnd::Pause(PauseReason::TooSlow) => (LONG_PAUSE, LONGEST_PAUSE),
        };
        let next = if lasted < STEADY_AFTER { self.next } else { Duration::ZERO };
        let pause = next.clamp(first, longest);
        self.next = pause * 2;
        pause
    }
}

struct PoolNodes<'a> {
    pool: &'a Arc<Pool>,
    names: &'a [String],
}

impl BlockNodes for PoolNodes<'_> {
    type Node = FollowedNode;

    fn usable(&self) -> Vec<FollowedNode> {
        self.pool.block_nodes(self.names)
    }
}

impl BlockNode for FollowedNode {
    fn id(&self) -> usize {
        self.member.id
    }

    fn tier(&self) -> u8 {
        self.member.upstream.tier
    }

    async fn ask(&self, method: &'static str, params: Value, timeout: Duration) -> Result<NodeReply, Fault> {
        self.ask(method, params, timeout).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, FollowMode};

    fn follower(followed: &Arc<FollowedChain>) -> Follower {
        let any = ([127, 0, 0, 1], 0).into();
        let mut config = Config::dev(any, any, Vec::new());
        config.follow.mode = FollowMode::On;
        let (frontier, metrics) = (Arc::new(Frontier::new(0)), Metrics::new());
        let pool = Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).unwrap();
        let tasks = TaskTracker::new();
        Follower::new(Arc::clone(followed), Arc::new(pool), frontier, metrics, tasks, config.follow, None)
    }

    #[test]
    fn pauses_grow_while_chains_end_young() {
        let mut pauses = Pauses::default();
        let (short, long) = (Duration::from_secs(20), Duration::from_mins(11));
        let epoch = FollowEnd::Restart(RestartReason::Epoch);
        for (end, lasted, seconds) in [
            (FollowEnd::GAP, short, 1),
            (FollowEnd::GAP, short, 2),
            (FollowEnd::FORK, short, 4),
            (epoch, short, 1),
            (FollowEnd::Pause(PauseReason::NoNode), short, 8),
            (FollowEnd::GAP, short, 16),
            (FollowEnd::GAP, short, 32),
            (FollowEnd::GAP, short, 60),
            (FollowEnd::GAP, short, 60),
            (FollowEnd::GAP, long, 1),
            (FollowEnd::Pause(PauseReason::NoFees), short, 60),
            (FollowEnd::Pause(PauseReason::NoNode), short, 60),
            (FollowEnd::Pause(PauseReason::TooSlow), long, 60),
            (FollowEnd::Pause(PauseReason::TooSlow), short, 120),
            (FollowEnd::Pause(PauseReason::TooSlow), short, 240),
            (FollowEnd::Pause(PauseReason::TooSlow), short, 480),
            (FollowEnd::Pause(PauseReason::TooSlow), short, 960),
            (FollowEnd::Pause(PauseReason::TooSlow), short, 960),
            (FollowEnd::GAP, short, 60),
            (FollowEnd::Pause(PauseReason::NoEpochs), long, 2),
        ] {
            assert_eq!(pauses.after(end, lasted).as_secs(), seconds, "{end:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn follower_parks_without_calls_for_accounts() {
        let followed = Arc::<FollowedChain>::default();
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(follower(&followed).run(stop.clone()));
        let paused = FollowState::Paused(PauseReason::NoNode);
        for (seconds, touch, expected) in [
            (1, false, FollowState::Starting),
            // The pool has no node, so following pauses.
            (9, true, paused),
            (299, false, paused),
            (4, false, FollowState::Parked),
            (3_600, true, FollowState::Parked),
            (1, false, FollowState::Starting),
            (298, true, paused),
            (299, false, paused),
            (4, false, FollowState::Parked),
        ] {
            sleep(Duration::from_secs(seconds)).await;
            assert_eq!(followed.state(), expected, "after {seconds} s");
            if touch {
                followed.touch();
            }
        }
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!(followed.state(), FollowState::Off);
    }
}
