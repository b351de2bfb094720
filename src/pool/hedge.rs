//! A second call beside a slow first one: the first good answer wins, and the other is given up.
//!
//! Off by default. Bounded as a share of all calls, so that a pool that has become slow as a whole is not asked twice
//! as much. Not for a caller's own condition, which is one node's to judge, nor for what is a node's own view; and not
//! once an answer is arriving, since another would come later.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use super::attempt::Floor;
use super::call::Outcome;
use super::member::Member;
use super::pick::is_sticky;
use super::verdict::Verdict;
use super::{Ask, Pool};
use crate::config;
use crate::telemetry::HedgeResult;

/// An attempt that has ended, and whose it was.
pub(super) type Ended = (Arc<Member>, Outcome);

/// How many hedges a call pays for.
pub(super) fn share(settings: &config::Pool) -> f64 {
    settings.hedge.map_or(0.0, |hedge| hedge.budget)
}

fn is_good(outcome: &Outcome) -> bool {
    matches!(outcome, Ok((Verdict::Answer, _)))
}

impl Pool {
    /// One try at `member`, and past the method's quantile another beside it if `may_hedge`. All that have ended, in
    /// this order; one that was given up is not among them.
    pub(super) async fn attempt_hedged(
        &self,
        member: &Arc<Member>,
        ask: &Ask,
        may_hedge: bool,
    ) -> Vec<Ended> {
        let started = Instant::now();
        let heard = AtomicBool::new(false);
        let mut first = pin!(self.attempt(member, ask, Floor::Sent, &heard));
        let ended = |outcome| (Arc::clone(member), outcome);
        if let Some(patience) = self.patience(ask).filter(|_| may_hedge) {
            if let Ok(outcome) = tokio::time::timeout(patience, &mut first).await {
                return vec![ended(outcome)];
            }
            if let Some(other) = self.hedge(ask, member, &heard) {
                // Boxed, since few calls are hedged and every call would be twice as large.
                let unheard = AtomicBool::new(false);
                let mut second = Box::pin(self.attempt(&other, ask, Floor::Sent, &unheard));
                let (by_second, outcome) = tokio::select! {
                    biased;
                    outcome = &mut first => (false, outcome),
                    outcome = &mut second => (true, outcome),
                };
                let count = |result| self.metrics.upstream_hedges.at(result).inc();
                if is_good(&outcome) {
                    count(if by_second { HedgeResult::Won } else { HedgeResult::Lost });
                    if !by_second {
                        return vec![ended(outcome)];
                    }
                    // Given up is no failure, but the next choice should know that it was slow.
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

    /// How long the first attempt is waited for alone; `None` where there is no second.
    fn patience(&self, ask: &Ask) -> Option<std::time::Duration> {
        let hedge = self.members.load().settings.hedge?;
        let alone = ask.alone || is_sticky(&ask.query);
        if alone { None } else { self.quantile(ask.query.method(), hedge.quantile) }
    }

    /// Who is asked beside `first`, if that is worth it and there is budget for it.
    fn hedge(&self, ask: &Ask, first: &Member, heard: &AtomicBool) -> Option<Arc<Member>> {
        let now = Instant::now();
        if heard.load(Ordering::Relaxed) || now >= ask.deadline || !self.another_usable(ask, first) {
            return None;
        }
        if !self.hedges.withdraw(now) {
            self.metrics.upstream_hedges.at(HedgeResult::OverBudget).inc();
            return None;
        }
        let other = self.pick(ask, &[first.id], None).ok();
        if other.is_none() {
            self.hedges.give_back(now);
        }
        other
    }
}
