//! The standing of each node and the last choices, as the admin listener shows them.

use tokio::time::Instant;

use super::status::{breaker, per_commitment};
use crate::admin::upstreams::{Candidate, Choice, Failure, Standing, Upstreams};
use crate::http::Front;
use crate::methods::{Commitment, Method, Slot};
use crate::pool::health::Health;
use crate::pool::member::Member;
use crate::pool::select::Unusable;

/// How things stand now.
pub(super) fn upstreams(front: &Front) -> Upstreams {
    let now = Instant::now();
    let known = |slot: Slot| (slot > 0).then_some(slot);
    Upstreams {
        frontier: per_commitment(|c| known(front.frontier.slot(c))),
        upstreams: front.pool.members().iter().map(|member| standing(front, member, now)).collect(),
        choices: Method::ALL.iter().filter_map(|method| choice(front, *method, now)).collect(),
    }
}

fn standing(front: &Front, member: &Member, now: Instant) -> Standing {
    let (requests, failures) = member.counts();
    let reasons = front.pool.reasons(member, now);
    let age_ms =
        |at: Instant| u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
    Standing {
        name: member.name.clone(),
        tier: member.tier,
        usable: reasons.is_empty(),
        reasons: reasons.iter().map(|reason| words(front, member, *reason, now)).collect(),
        slots: per_commitment(|c| member.slot(c)),
        lag_slots: per_commitment(|c| front.frontier.lag(member.id, c)),
        version: member.version().map(|version| version.to_string()),
        first_available_block: member.first_available(),
        breaker: breaker(member.breaker(now)),
        in_flight: member.in_flight(),
        max_in_flight: member.max_in_flight(),
        latency_ms: member.latency().as_secs_f64() * 1000.0,
        rps_left: member.rate_left(now).map(f64::floor),
        lacks: Method::ALL.iter().filter(|m| member.lacks(**m)).map(|m| m.as_str()).collect(),
        drained: member.is_drained(),
        requests,
        failures,
        last_failure: member
            .last_failure()
            .map(|(kind, at)| Failure { kind: kind.as_str(), age_ms: age_ms(at) }),
    }
}

/// Why a node is not usable, with what is known of it.
pub(super) fn words(front: &Front, member: &Member, reason: Unusable, now: Instant) -> String {
    match (reason, &*member.health()) {
        (Unusable::Unhealthy, Health::Unhealthy(why)) => format!("unhealthy: {why}"),
        (Unusable::Unreachable, Health::Unreachable(why)) => format!("does not answer: {why}"),
        (Unusable::Foreign, Health::Foreign { theirs, ours }) => {
            format!("of another cluster: genesis {theirs}, the pool's is {ours}")
        }
        (Unusable::Unidentified, Health::Silent) => {
            "does not tell its genesis hash, and the pool's is known; if it is of \
             the pool's cluster, set genesis = \"unchecked\" for it"
                .to_owned()
        }
        (Unusable::Unidentified, _) => "has not shown the pool's genesis hash yet".to_owned(),
        (Unusable::Unprobed, _) => "has not answered a probe yet".to_owned(),
        (Unusable::Lagging, _) => {
            let lag = front.frontier.lag(member.id, Commitment::Processed).unwrap_or_default();
            let seconds = front.frontier.time_of(lag).as_secs_f64();
            format!("{lag} slots ({seconds:.1} s) behind the frontier, more than pool.max_slot_lag")
        }
        (Unusable::BreakerOpen, _) => "its circuit breaker is open".to_owned(),
        (Unusable::Quiet, _) => {
            let left = member.quiet_left(now).unwrap_or_default().as_millis();
            format!("asked to be left alone for {left} ms more")
        }
        (Unusable::Busy, _) => format!("at its limit of {} calls in flight", member.max_in_flight()),
        (Unusable::Drained, _) => "drained by an operator".to_owned(),
        (other, _) => other.as_str().replace('_', " "),
    }
}

fn choice(front: &Front, method: Method, now: Instant) -> Option<Choice> {
    let choice = front.pool.last_choice(method)?;
    let age = now.saturating_duration_since(choice.at).as_millis();
    Some(Choice {
        method: method.as_str(),
        age_ms: u64::try_from(age).unwrap_or(u64::MAX),
        chosen: choice.candidates[choice.node].0.clone(),
        why: choice.why(),
        candidates: choice
            .candidates
            .into_iter()
            .map(|(name, candidate)| Candidate {
                name,
                unusable: candidate.unusable.map(Unusable::as_str),
                near: candidate.near,
                tier: candidate.tier,
                load: candidate.load * 1000.0,
            })
            .collect(),
    })
}
