//! The usage of a key as its owner sees it: `GET /v3/<API_KEY>/usage`.

use serde::Serialize;
use tokio::time::Instant;

use super::principal::{Principal, seconds, to_f64};
use super::quota::Period;

/// The plan of a key, its limits, and the rest of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// The key's id.
    pub id: String,
    /// The name of the plan.
    pub plan: String,
    /// The rate.
    pub rate: RateUsage,
    /// The units of this UTC day.
    pub day: UnitUsage,
    /// The units of this UTC month.
    pub month: UnitUsage,
}

/// The rate in calls a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateUsage {
    /// The average number of calls a second.
    pub per_second: u32,
    /// The most calls at once.
    pub burst: u32,
    /// The calls that would pass at once now.
    pub left: u32,
}

/// The units of one window.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitUsage {
    /// The units used so far.
    pub used: f64,
    /// The most units; `null` means no limit.
    pub quota: Option<u64>,
    /// The units left; `null` without a limit.
    pub left: Option<f64>,
    /// The time until the window ends, in seconds.
    pub ends_in_seconds: u64,
}

impl Usage {
    /// Returns the usage of `principal` at `now`. `None` for a caller without a plan.
    pub fn of(principal: &Principal, now: Instant) -> Option<Self> {
        let limits = principal.limits.as_ref()?;
        let plan = &limits.terms.plan;
        limits.used().wanted();
        let wall = principal.clock.wall(now);
        let (day, month) = limits.used().units(Period::of(wall));
        let (day_ends, month_ends) = Period::ends_in(wall);
        let units = |used, quota: Option<u64>, ends| UnitUsage {
            used,
            quota,
            left: quota.map(|quota| (to_f64(quota) - used).max(0.0)),
            ends_in_seconds: seconds(ends),
        };
        Some(Self {
            id: principal.id().to_owned(),
            plan: limits.terms.name.clone(),
            rate: RateUsage {
                per_second: plan.rps,
                burst: plan.burst,
                left: limits.left(principal.clock.steady(now)).calls,
            },
            day: units(day, plan.daily_units, day_ends),
            month: units(month, plan.monthly_units, month_ends),
        })
    }
}
