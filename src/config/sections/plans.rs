//! `[plans.NAME]`: the permissions and limits of keys.

use std::collections::BTreeMap;

use crate::config::bounds::{MAX_NAME, is_name};
use crate::config::reader::TableReader;
use crate::config::{Plan, defaults};

/// Reads all plans of the configuration. The plan `standard` exists even if it is not configured.
pub(super) fn read(r: &TableReader<'_>) -> BTreeMap<String, Plan> {
    let mut names = r.names();
    names.insert(defaults::PLAN.to_owned());
    let mut plans = BTreeMap::new();
    for name in names {
        if !is_name(&name) {
            let rule =
                format!("expected a name of letters, digits, '-', '_' and '.', at most {MAX_NAME} of them");
            r.problem(&name, None, rule, "rename the plan");
        }
        let plan = plan(&r.table(&name));
        plans.insert(name, plan);
    }
    plans
}

fn plan(r: &TableReader<'_>) -> Plan {
    const MAX_RATE: u32 = 1_000_000;
    let rps = r.within("rps", defaults::RPS, 1..=MAX_RATE);
    Plan {
        rps,
        burst: r.within("burst", rps.saturating_mul(defaults::BURST_SECONDS), 1..=MAX_RATE),
        daily_units: r.optional_within("daily_units", 1..=u64::MAX),
        monthly_units: r.optional_within("monthly_units", 1..=u64::MAX),
        methods: r.list("methods"),
        commitments: r.list("commitments"),
        max_batch: r.optional_within("max_batch", 1..=10_000),
        max_accounts: r.optional_within("max_accounts", 1..=100),
        bypass_cache: r.get("bypass_cache", defaults::BYPASS_CACHE),
        monotonic: r.get("monotonic", defaults::MONOTONIC),
    }
}
