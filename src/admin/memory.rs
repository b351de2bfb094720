//! What the status page shows of the time before it was opened: fifteen minutes by the second, and the events of which
//! nobody else tells.
//!
//! A task looks once a second. It notes the nodes that have begun or ceased to get calls, and the keys that have used up
//! 80 % or all of a quota.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{AdminState, nodes};
use crate::methods::{PerCommitment, Slot};
use crate::telemetry::events::EventKind;
use crate::telemetry::totals::outcomes;
use crate::telemetry::{Metrics, Unusable};

/// The number of seconds that are kept: fifteen minutes.
const SECONDS: usize = 900;
/// The shares of a quota of which operators are told, lowest first.
const SHARES: [f64; 2] = [0.8, 1.0];

/// One second.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Second {
    at_ms: i64,
    slots: PerCommitment<Option<Slot>>,
    /// The calls that ended in this second, by outcome. Those without calls are left out.
    outcomes: BTreeMap<&'static str, u64>,
    /// The attempts on nodes in this second.
    upstream_calls: u64,
}

/// The newest seconds, oldest first.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<VecDeque<Second>>);

impl Memory {
    pub(super) fn all(&self) -> Vec<Second> {
        self.0.lock().iter().cloned().collect()
    }

    fn add(&self, second: Second) {
        let mut seconds = self.0.lock();
        if seconds.len() == SECONDS {
            seconds.pop_front();
        }
        seconds.push_back(second);
    }
}

/// What the last look has seen.
struct Seen {
    outcomes: BTreeMap<&'static str, u64>,
    upstream_calls: u64,
    /// The nodes that get no calls.
    out: HashMap<String, Unusable>,
    /// The number of [`SHARES`] that each key has used up, of the day and of the month.
    quotas: HashMap<String, [usize; 2]>,
}

impl Seen {
    fn begin(metrics: &Metrics) -> Self {
        let (outcomes, upstream_calls) = outcomes(metrics);
        Self { outcomes, upstream_calls, out: HashMap::new(), quotas: HashMap::new() }
    }

    fn look(&mut self, state: &AdminState) {
        let (front, now) = (&state.front, Instant::now());
        let (outcomes, upstream_calls) = outcomes(&front.metrics);
        let grown = |(name, count): (&&'static str, &u64)| {
            let more = count.saturating_sub(*self.outcomes.get(name).unwrap_or(&0));
            (more > 0).then_some((*name, more))
        };
        state.memory.add(Second {
            at_ms: Timestamp::now().as_millisecond(),
            slots: nodes::frontier(front),
            outcomes: outcomes.iter().filter_map(grown).collect(),
            upstream_calls: upstream_calls.saturating_sub(self.upstream_calls),
        });
        (self.outcomes, self.upstream_calls) = (outcomes, upstream_calls);
        self.note_nodes(state, now);
        self.note_quotas(state);
    }

    fn note_nodes(&mut self, state: &AdminState, now: Instant) {
        let (front, events) = (&state.front, &state.front.metrics.events);
        let standing = front.pool.standing(now);
        // A node at its limit is well, and one that nobody has asked yet is not down.
        let is_out = |why: &Unusable| !matches!(why, Unusable::Busy | Unusable::Quiet | Unusable::Unprobed);
        for (member, unusable) in &standing {
            let why = unusable.filter(is_out);
            if why == self.out.get(&member.name).copied() {
                continue;
            }
            if let Some(why) = why {
                let text = format!("{}: {}", member.name, nodes::describe(front, member, why));
                events.note(EventKind::NodeDown, text);
                self.out.insert(member.name.clone(), why);
            } else {
                events.note(EventKind::NodeUp, format!("{} gets calls again", member.name));
                self.out.remove(&member.name);
            }
        }
        self.out.retain(|name, _| standing.iter().any(|(member, _)| member.name == *name));
    }

    fn note_quotas(&mut self, state: &AdminState) {
        let used = state.front.gateway.quotas_used(SHARES[0]);
        let mut quotas = HashMap::with_capacity(used.len());
        for (id, name, shares) in used {
            let reached = shares.map(|used| SHARES.iter().filter(|share| used >= **share).count());
            let before = self.quotas.get(&id).copied().unwrap_or_default();
            for (at, window) in ["day", "month"].into_iter().enumerate() {
                if reached[at] > before[at] {
                    let percent = (100.0 * SHARES[reached[at] - 1]).round();
                    let text = format!("{name} ({id}) has used {percent} % of its quota of the {window}");
                    tracing::warn!(
                        key.id = id,
                        key.name = name,
                        percent,
                        window,
                        "a key comes to the end of its quota"
                    );
                    state.front.metrics.events.note(EventKind::Quota, text);
                }
            }
            quotas.insert(id, reached);
        }
        self.quotas = quotas;
    }
}

/// Starts the task that looks once a second, until `stop`.
pub(super) fn watch(state: Arc<AdminState>, tasks: &TaskTracker, stop: &CancellationToken) {
    let stop = stop.clone();
    let version = env!("CARGO_PKG_VERSION");
    state.front.metrics.events.note(EventKind::Start, format!("slotfront {version} has started"));
    tasks.spawn(async move {
        let mut seen = Seen::begin(&state.front.metrics);
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks.tick().await;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            seen.look(&state);
        }
    });
}
