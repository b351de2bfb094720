//! What a plan allows, and what a call costs: functions of the settings and the query, without state.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{Config, Plan, Units};
use crate::error::Error;
use crate::methods::{AnyMethod, Commitment, Forwarded, Query};

/// The most accounts that a node takes in one list.
const FULL_LIST: u64 = 100;

/// The plans by name, shared by all keys that have them.
pub(crate) type Plans = BTreeMap<String, Arc<PlanTerms>>;

/// A plan as its keys share it.
#[derive(Debug)]
pub(crate) struct PlanTerms {
    pub(crate) name: String,
    pub(crate) plan: Plan,
    /// `RateLimit-Policy`, which is the same for every answer.
    pub(crate) policy: String,
}

/// The plans of `config`.
pub(crate) fn plans(config: &Config) -> Plans {
    let terms = |(name, plan): (&String, &Plan)| {
        // Digits and ASCII words only: it is a header's value.
        (name.clone(), Arc::new(PlanTerms { name: name.clone(), plan: plan.clone(), policy: policy(plan) }))
    };
    config.plans.iter().map(terms).collect()
}

/// `"rate";q=200;w=2, "day";q=1000000;w=86400`: so much in so many seconds. Months differ in length, and name none.
/// The form is that of draft-ietf-httpapi-ratelimit-headers-10.
fn policy(plan: &Plan) -> String {
    let rate = format!("\"rate\";q={};w={}", plan.burst, plan.burst.div_ceil(plan.rps));
    let day = plan.daily_units.map(|quota| format!("\"day\";q={quota};w=86400"));
    let month = plan.monthly_units.map(|quota| format!("\"month\";q={quota}"));
    [Some(rate), day, month].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Whether `plan` allows the call; `methods` is the key's own list, which narrows the plan's.
pub(crate) fn admit(plan: &Plan, methods: Option<&[AnyMethod]>, query: &Query) -> Result<(), Error> {
    admit_by_name(plan, methods, AnyMethod::Own(query.method()), query.commitment())?;
    if let (Some(limit), Query::Accounts(accounts)) = (plan.max_accounts, query)
        && accounts.pubkeys.len() > limit
    {
        let n = accounts.pubkeys.len();
        return Err(Error::Forbidden(format!("a list of {n} accounts (the limit is {limit})")));
    }
    Ok(())
}

/// Whether `plan` and the key's own list allow a call that is forwarded.
pub(crate) fn admit_forwarded(
    plan: &Plan,
    methods: Option<&[AnyMethod]>,
    call: &Forwarded,
) -> Result<(), Error> {
    admit_by_name(plan, methods, AnyMethod::Further(call.method), call.commitment)
}

fn admit_by_name(
    plan: &Plan,
    methods: Option<&[AnyMethod]>,
    method: AnyMethod,
    commitment: Option<Commitment>,
) -> Result<(), Error> {
    let allows = |list: Option<&[AnyMethod]>| list.is_none_or(|list| list.contains(&method));
    if !allows(plan.methods.as_deref()) || !allows(methods) {
        return Err(Error::Forbidden(method.as_str().to_owned()));
    }
    if let (Some(allowed), Some(commitment)) = (&plan.commitments, commitment)
        && !allowed.contains(&commitment)
    {
        return Err(Error::Forbidden(format!("commitment {commitment}")));
    }
    Ok(())
}

/// What a forwarded call costs, in units.
pub(crate) fn forwarded_units(units: &Units, call: &Forwarded) -> f64 {
    f64::from(u32::try_from(units.by_further[call.method.index()]).unwrap_or(u32::MAX))
}

/// What one call costs, in units; a fraction where a hit costs a fraction.
///
/// The price of getMultipleAccounts is that of a full list, of which a shorter one pays its part, rounded up to a whole
/// unit: the price as written is the most that any call costs, which the checks of quotas rely on.
pub(crate) fn units(units: &Units, query: &Query, hit: bool) -> f64 {
    let mut price = units.by_method[query.method().index()];
    if let Query::Accounts(accounts) = query {
        let part = (accounts.pubkeys.len() as u64).clamp(1, FULL_LIST);
        price = (price * part).div_ceil(FULL_LIST);
    }
    // Prices end at a million, far below what an f64 holds exactly.
    let price = f64::from(u32::try_from(price).unwrap_or(u32::MAX));
    if hit { price * units.hit_factor } else { price }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{
        AccountEncoding, AccountForm, AccountsQuery, Further, Method, Pubkey, SamplesQuery,
    };

    fn accounts(n: usize, commitment: Commitment) -> Query {
        let form = AccountForm { encoding: AccountEncoding::Base64, slice: None };
        let pubkeys = vec![Pubkey([1; 32]); n].into();
        Query::Accounts(AccountsQuery { pubkeys, form, commitment, min_context_slot: None })
    }

    const SAMPLES: Query = Query::Samples(SamplesQuery { limit: 720 });

    #[test]
    fn a_plan_allows_methods_commitments_and_lengths() {
        let any = "127.0.0.1:0".parse().unwrap();
        let all = crate::config::Config::dev(any, any, vec![]).plans["dev"].clone();
        let narrow = Plan {
            methods: Some(
                [Method::GetMultipleAccounts, Method::GetRecentPerformanceSamples].map(AnyMethod::Own).into(),
            ),
            commitments: Some(vec![Commitment::Finalized]),
            max_accounts: Some(2),
            ..all.clone()
        };
        let own: &[AnyMethod] = &[AnyMethod::Own(Method::GetRecentPerformanceSamples)];
        let rows = [
            (&all, None, accounts(100, Commitment::Processed), None),
            (&narrow, None, Query::ClusterNodes, Some("getClusterNodes")),
            (&narrow, None, SAMPLES, None),
            (&narrow, None, accounts(2, Commitment::Finalized), None),
            (&narrow, None, accounts(2, Commitment::Confirmed), Some("commitment confirmed")),
            (
                &narrow,
                None,
                accounts(3, Commitment::Finalized),
                Some("a list of 3 accounts (the limit is 2)"),
            ),
            (&narrow, Some(own), accounts(2, Commitment::Finalized), Some("getMultipleAccounts")),
            (&narrow, Some(own), SAMPLES, None),
        ];
        for (plan, methods, query, refused) in rows {
            let expected = refused.map_or(Ok(()), |what| Err(Error::Forbidden(what.to_owned())));
            assert_eq!(admit(plan, methods, &query), expected, "{query:?}");
        }
    }

    #[test]
    fn a_hit_may_cost_less() {
        let prices =
            Units { by_method: [10, 5, 1, 5, 1, 1, 1, 1], by_further: [1; Further::COUNT], hit_factor: 0.25 };
        let query = accounts(100, Commitment::Finalized);
        let costs = [units(&prices, &query, false), units(&prices, &query, true)];
        assert!((costs[0] - 5.0).abs() < f64::EPSILON && (costs[1] - 1.25).abs() < f64::EPSILON, "{costs:?}");
    }

    #[test]
    fn a_list_of_accounts_costs_its_part_of_a_full_one() {
        let rows = [
            (5, 0, 1.0),
            (5, 1, 1.0),
            (5, 20, 1.0),
            (5, 21, 2.0),
            (5, 81, 5.0),
            (5, 100, 5.0),
            (100, 37, 37.0),
            (1, 100, 1.0),
            (0, 100, 0.0),
        ];
        for (price, n, expected) in rows {
            let prices = Units { by_method: [price; 8], by_further: [1; Further::COUNT], hit_factor: 1.0 };
            let cost = units(&prices, &accounts(n, Commitment::Finalized), false);
            assert!((cost - expected).abs() < f64::EPSILON, "{n} accounts at {price} cost {cost}");
        }
    }
}
