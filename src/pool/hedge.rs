//! Hedging: a second attempt beside a slow first one. The first good answer wins, and the other attempt is given
//! up.
//!
//! Hedging is off by default. The number of hedges is limited to a share of all calls, so that a slow pool does
//! not get twice the load. These calls are not hedged:
//!
//! - Passthrough calls.
//! - Calls whose answer has begun to arrive.
//! - Calls that stay with one node, because each node has its own view.
//! - Calls that no other node could answer better, such as those with a minContextSlot above the newest known slot.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Pool;
use super::attempt::attempt;
use super::member::Member;
use super::upstream_call::{MinSlotUse, UpstreamCall};
use super::verdict::{AttemptOutcome, Verdict};
use crate::telemetry::HedgeResult;

/// An attempt that has ended, and its node.
pub(super) type FinishedAttempt = (Arc<Member>, AttemptOutcome);

/// Sends `call` to `member`. If `may_hedge`, also sends it to another node once the call takes longer than
/// most calls of its method (`pool.hedge.quantile`). Returns the attempts in the order in which they ended.
/// An attempt that was given up is not returned.
pub(super) async fn attempt_hedged<C: UpstreamCall>(
    pool: &Pool,
    call: &C,
    member: &Arc<Member>,
    may_hedge: bool,
) -> Vec<FinishedAttempt> {
    let started = Instant::now();
    let heard = AtomicBool::new(false);
    let mut first = pin!(attempt(pool, call, member, MinSlotUse::Sent, &heard));
    let ended = |outcome| (Arc::clone(member), outcome);
    if let Some(patience) = patience(pool, call).filter(|_| may_hedge) {
        if let Ok(outcome) = tokio::time::timeout(patience, &mut first).await {
            return vec![ended(outcome)];
        }
        if let Some(other) = pick_second(pool, call, member, &heard) {
            // The second attempt is boxed, because few calls are hedged. Otherwise the future of every call would
            // be twice as large.
            let unheard = AtomicBool::new(false);
            let mut second = Box::pin(attempt(pool, call, &other, MinSlotUse::Sent, &unheard));
            let (by_second, outcome) = tokio::select! {
                biased;
                outcome = &mut first => (false, outcome),
                outcome = &mut second => (true, outcome),
            };
            let count = |result| pool.metrics.upstream_hedges.at(result).inc();
            if is_good(&outcome) {
                count(if by_second { HedgeResult::Won } else { HedgeResult::Lost });
                if !by_second {
                    return vec![ended(outcome)];
                }
                // An attempt that is given up is not a failure, but the next choice must know that the node
                // was slow.
                let now = Instant::now();
                member.took_at_least(now.duration_since(started), now);
                return vec![(Arc::clone(&other), outcome)];
            }
            let (one, two) = if by_second {
                ((Arc::clone(&other), outcome), ended(first.await))
            } else {
                (ended(outcome), (Arc::clone(&other), second.await))
            };
            count(match (is_good(&two.1), by_second) {
                (true, true) => HedgeResult::Lost,
                (true, false) => HedgeResult::Won,
                (false, _) => HedgeResult::Failed,
            });
            return vec![one, two];
        }
    }
    vec![ended(first.await)]
}

fn is_good(outcome: &AttemptOutcome) -> bool {
    matches!(outcome, Ok((Verdict::Answer, _)))
}

/// Returns the time after which the second attempt starts. `None` if the call is not hedged.
fn patience<C: UpstreamCall>(pool: &Pool, call: &C) -> Option<Duration> {
    let hedge = pool.nodes.load().settings.hedge?;
    if !C::WEIGHT_IS_KNOWN || call.is_for_one_node() || call.is_sticky() {
        return None;
    }
    pool.latencies.quantile(call.own_method()?, hedge.quantile)
}

/// Picks the node for the second attempt, and takes a token of the hedge budget. `None` if there is no second
/// attempt.
fn pick_second<C: UpstreamCall>(
    pool: &Pool,
    call: &C,
    first: &Member,
    heard: &AtomicBool,
) -> Option<Arc<Member>> {
    let now = Instant::now();
    if heard.load(Ordering::Relaxed)
        || now >= call.context().deadline
        || !pool.nodes.another_usable(call, first)
    {
        return None;
    }
    if !pool.hedges.withdraw(now) {
        pool.metrics.upstream_hedges.at(HedgeResult::OverBudget).inc();
        return None;
    }
    let other = pool.selector.pick(&pool.nodes, call, &[first.id], None).ok();
    if other.is_none() {
        pool.hedges.give_back(now);
    }
    other
}
