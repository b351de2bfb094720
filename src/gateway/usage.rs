//! What the owner of a key may see of it: `GET /v3/<API_KEY>/usage`.

use serde::Serialize;
use tokio::time::Instant;

use super::principal::{Principal, seconds, to_f64};
use super::quota::Period;

/// A key's plan, limits, and what is left of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// The key's id.
    pub id: String,
    /// Its plan.
    pub plan: String,
    /// Calls.
    pub rate: Rate,
    /// Units in this UTC day.
    pub day: Units,
    /// Units in this UTC month.
    pub month: Units,
}

/// Calls a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// On average.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
    /// At once now.
    pub left: u32,
}

/// Units in one window.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Units {
    /// Used so far.
    pub used: f64,
    /// At most; `null` is no limit.
    pub quota: Option<u64>,
    /// Of these, left.
    pub left: Option<f64>,
    /// Until the window ends, in seconds.
    pub ends_in_seconds: u64,
}

impl Usage {
    /// The usage of `principal` at `now`. `None` for a caller without a plan, whom nothing counts.
    pub fn of(principal: &Principal, now: Instant) -> Option<Self> {
        let limits = principal.limits.as_ref()?;
        let plan = &limits.terms.plan;
        limits.used().wanted();
        let wall = principal.clock.wall(now);
        let (day, month) = limits.used().units(Period::of(wall));
        let (day_ends, month_ends) = Period::ends_in(wall);
        let units = |used, quota: Option<u64>, ends| Units {
            used,
            quota,
            left: quota.map(|quota| (to_f64(quota) - used).max(0.0)),
            ends_in_seconds: seconds(ends),
        };
        Some(Self {
            id: principal.id().to_owned(),
            plan: limits.terms.name.clone(),
            rate: Rate {
                per_second: plan.rps,
                burst: plan.burst,
                left: limits.left(principal.clock.steady(now)).calls,
            },
            day: units(day, plan.daily_units, day_ends),
            month: units(month, plan.monthly_units, month_ends),
        })
    }
}
