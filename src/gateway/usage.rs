//! What a caller is told of its limits: by the headers of answers, and by `GET /v3/<API_KEY>/usage`.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use super::clock::Period;
use super::principal::{Principal, ceiling, seconds};

/// The plan of a key, its limits, and how much of them is left.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub id: String,
    pub name: String,
    pub plan: String,
    /// The limit on calls a second.
    pub rate: RateUsage,
    pub day: UnitUsage,
    pub month: UnitUsage,
}

/// The limit on calls a second, and how much of it is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RateUsage {
    /// The maximum number of calls a second, on average.
    pub per_second: u32,
    /// The maximum number of calls in one burst.
    pub burst: u32,
    /// The number of calls that would pass now.
    pub left: u32,
}

/// The units of one quota window: a day or a month.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitUsage {
    /// The units used in the window so far, rounded up.
    pub used: u64,
    /// The quota. `None` (`null`) if there is none.
    pub quota: Option<u64>,
    /// The units left, without those that calls in flight have reserved. `None` (`null`) without a quota.
    pub left: Option<u64>,
    /// The time until the window ends, in seconds.
    pub ends_in_seconds: u64,
    /// The time at which the window ends, and all of the quota is free again.
    pub resets: String,
}

/// Returns a time in whole seconds.
fn whole(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

impl Principal {
    /// Returns the value of the header `RateLimit-Policy`. `None` for a caller without a plan.
    pub fn policy(&self) -> Option<&str> {
        self.limits.as_ref().map(|limits| &*limits.terms.policy)
    }

    /// Appends the value of the header `RateLimit` to `out`, such as `"rate";r=199;t=1, "day";r=999990;t=3600`. `r` is
    /// the part of a limit that is left at `now`, without the units that calls in flight have reserved. `t` is the number of seconds until the whole limit is free again.
    pub fn write_left(&self, out: &mut Vec<u8>, now: Instant) {
        let Some(limits) = &self.limits else { return };
        let mut write = |before: &str, left: u64, until: Duration| {
            out.extend_from_slice(before.as_bytes());
            out.extend_from_slice(itoa::Buffer::new().format(left).as_bytes());
            out.extend_from_slice(b";t=");
            out.extend_from_slice(itoa::Buffer::new().format(seconds(until)).as_bytes());
        };
        let rate = limits.rate.left();
        write("\"rate\";r=", rate.calls.into(), rate.full_in);
        let Some(quotas) = limits.quotas() else { return };
        let wall = self.context.clock.wall(now);
        let (used, ends) = (limits.used.units(Period::of(wall)), Period::ends_in(wall));
        let reserved = limits.used.reserved();
        for (at, name) in [", \"day\";r=", ", \"month\";r="].into_iter().enumerate() {
            if let Some(quota) = quotas[at] {
                write(name, quota.saturating_sub(ceiling(used[at] + reserved)), ends[at]);
            }
        }
    }
}

impl Usage {
    /// Returns the usage of `principal` at `now`. `None` for a caller without a plan. Also makes the next request
    /// to the shared store read the caller's totals over all gateways.
    pub fn of(principal: &Principal, now: Instant) -> Option<Self> {
        let limits = principal.limits.as_ref()?;
        let plan = &limits.terms.plan;
        limits.used.request_totals();
        let wall = principal.context.clock.wall(now);
        let (used, ends) = (limits.used.units(Period::of(wall)), Period::ends_in(wall));
        let reserved = limits.used.reserved();
        let units = |at: usize, quota: Option<u64>| UnitUsage {
            used: ceiling(used[at]),
            quota,
            left: quota.map(|quota| quota.saturating_sub(ceiling(used[at] + reserved))),
            ends_in_seconds: seconds(ends[at]),
            resets: wall.checked_add(ends[at]).map(whole).unwrap_or_default(),
        };
        Some(Self {
            id: principal.id().to_owned(),
            name: principal.name.to_string(),
            plan: limits.terms.name.clone(),
            rate: RateUsage { per_second: plan.rps, burst: plan.burst, left: limits.rate.left().calls },
            day: units(0, plan.daily_units),
            month: units(1, plan.monthly_units),
        })
    }
}
