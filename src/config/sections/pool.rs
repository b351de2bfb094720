//! `[pool]`: the use of upstreams.

use std::time::Duration;

use crate::config::bounds::{SHARE, TIMEOUT, size};
use crate::config::raw::Raw;
use crate::config::reader::TableReader;
use crate::config::{BreakerSettings, Hedge, PoolSettings, defaults};
use crate::methods::Method;

/// Reads the section `[pool]`.
pub(super) fn read(r: &TableReader<'_>) -> PoolSettings {
    let timeouts = r.table("attempt_timeout");
    let default = timeouts.within("default", defaults::ATTEMPT_TIMEOUT, TIMEOUT);
    let attempt = |method: Method| {
        let own = defaults::attempt_timeout(method);
        timeouts.within(
            method.as_str(),
            if own == defaults::ATTEMPT_TIMEOUT { default } else { own },
            TIMEOUT,
        )
    };
    let breaker = r.table("breaker");
    PoolSettings {
        genesis_hash: genesis_hash(r),
        probe_interval: r.within(
            "probe_interval",
            defaults::PROBE_INTERVAL,
            Duration::from_millis(10)..=Duration::from_mins(1),
        ),
        max_slot_lag: r.within("max_slot_lag", defaults::MAX_SLOT_LAG, 0..=432_000),
        connect_timeout: r.within("connect_timeout", defaults::CONNECT_TIMEOUT, TIMEOUT),
        attempt_timeout: Method::ALL.map(attempt),
        forward_timeout: default,
        retries: r.within("retries", defaults::RETRIES, 0..=10),
        retry_budget: r.within("retry_budget", defaults::RETRY_BUDGET, SHARE),
        hedge: hedge(r),
        breaker: BreakerSettings {
            failures: breaker.within("failures", defaults::BREAKER_FAILURES, 1..=10_000),
            failure_rate: breaker.within("failure_rate", defaults::BREAKER_FAILURE_RATE, 0.01..=1.0),
            slow: breaker.within("slow", defaults::BREAKER_SLOW, 1.0..=1000.0),
            open: breaker.within("open", defaults::BREAKER_OPEN, TIMEOUT),
        },
        max_response: size(r, "max_response", defaults::MAX_RESPONSE, 1 << 10..=4 << 30),
        max_buffered: size(r, "max_buffered", defaults::MAX_BUFFERED, 1 << 10..=1 << 40),
    }
}

/// Reads the setting `hedge`: `"off"` or a table. `None` disables hedging.
fn hedge(r: &TableReader<'_>) -> Option<Hedge> {
    const KEY: &str = "hedge";
    let written = r.written(KEY).map(|written| written.raw);
    match &written {
        Some(raw) if raw.text() == Some("off") => return None,
        None | Some(Raw::Table(_)) => {}
        Some(other) => {
            let fix = "write hedge = { quantile = 0.95, budget = 0.05 }";
            r.problem(KEY, Some(other.show()), "expected \"off\" or a table", fix);
            return None;
        }
    }
    let table = r.table(KEY);
    // Below the median, most calls would be hedged. Above 0.99, too few answers in the window are slower.
    let quantile = table.optional_within("quantile", 0.5..=0.99);
    let budget = table.optional_within("budget", 0.001..=1.0);
    let on = written.is_some() || quantile.is_some() || budget.is_some();
    on.then(|| Hedge {
        quantile: quantile.unwrap_or(defaults::HEDGE_QUANTILE),
        budget: budget.unwrap_or(defaults::HEDGE_BUDGET),
    })
}

fn genesis_hash(r: &TableReader<'_>) -> Option<String> {
    const KEY: &str = "genesis_hash";
    let hash: String = r.optional(KEY)?;
    if bs58::decode(&hash).into_vec().is_ok_and(|bytes| bytes.len() == 32) {
        return Some(hash);
    }
    let fix = "set it to the answer of getGenesisHash in your cluster";
    r.problem(KEY, Some(format!("{hash:?}")), "expected 32 bytes in base58", fix);
    None
}
