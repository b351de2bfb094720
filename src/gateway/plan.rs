//! The permissions of a plan and the prices of calls, as functions without state.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::Price;
use crate::config::{Config, Plan, Units};
use crate::error::Error;
use crate::methods::{AnyMethod, Commitment, ProgramScan, Query, Subscription};

/// The maximum number of accounts that a node accepts in one list.
const FULL_LIST: u64 = 100;

pub(crate) type Plans = BTreeMap<String, Arc<PlanTerms>>;

/// A plan of the configuration, with its name and the header that describes it.
#[derive(Debug)]
pub(crate) struct PlanTerms {
    pub(crate) name: String,
    pub(crate) plan: Plan,
    pub(crate) methods: Vec<AnyMethod>,
    pub(crate) units: Units,
    /// The value of the `RateLimit-Policy` header.
    pub(crate) policy: String,
}

pub(crate) fn plans(config: &Config) -> Plans {
    let terms = |(name, plan): (&String, &Plan)| {
        // The configuration allows only ASCII in names, so a header may contain them.
        let methods = plan.allowed().collect();
        let (plan_name, policy, units) = (name.clone(), policy(plan), plan.prices(&config.units));
        (name.clone(), Arc::new(PlanTerms { name: plan_name, plan: plan.clone(), methods, units, policy }))
    };
    config.plans.iter().map(terms).collect()
}

/// Returns the value of the header `RateLimit-Policy`. For example, `"rate";q=200;w=2, "day";q=1000000;w=86400` means
/// 200 calls in 2 seconds and a million units a day. A monthly quota has no `w`, because months differ in length.
///
/// Source: draft-ietf-httpapi-ratelimit-headers-10.
fn policy(plan: &Plan) -> String {
    let rate = format!("\"rate\";q={};w={}", plan.burst, plan.burst.div_ceil(plan.rps));
    let day = plan.daily_units.map(|quota| format!("\"day\";q={quota};w=86400"));
    let month = plan.monthly_units.map(|quota| format!("\"month\";q={quota}"));
    [Some(rate), day, month].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Checks that `plan` and `methods`, the key's own list of methods, allow a call. `None` allows every method.
///
/// # Errors
/// [`Error::Forbidden`] if the plan or the key does not allow the call. The error names the method, the commitment,
/// the number of accounts, the program, or the filter that is missing.
pub(crate) fn admit(terms: &PlanTerms, methods: Option<&[AnyMethod]>, query: &Query) -> Result<(), Error> {
    admit_method(terms, methods, AnyMethod::Own(query.method()), query.commitment())?;
    if let (Some(limit), Query::Accounts(accounts)) = (terms.plan.max_accounts, query.known())
        && accounts.pubkeys.len() > limit
    {
        let n = accounts.pubkeys.len();
        return Err(Error::Forbidden(format!("a list of {n} accounts (the limit is {limit})")));
    }
    admit_scan(&terms.plan, query.method().as_str(), || ProgramScan::of_call(query))
}

/// Checks that `plan` and `methods`, the key's own list of methods, allow a subscription.
///
/// # Errors
/// As for [`admit`].
pub(crate) fn admit_subscription(
    terms: &PlanTerms,
    methods: Option<&[AnyMethod]>,
    to: &Subscription,
) -> Result<(), Error> {
    admit_method(terms, methods, AnyMethod::Subscription(to.method()), to.commitment())?;
    admit_scan(&terms.plan, to.method().as_str(), || ProgramScan::of_subscription(to))
}

/// Checks that `plan` allows what `scan` returns, if `method` asks for the accounts of a program.
fn admit_scan(plan: &Plan, method: &str, scan: impl FnOnce() -> Option<ProgramScan>) -> Result<(), Error> {
    if !plan.scan_filter && plan.deny_programs.is_empty() {
        return Ok(());
    }
    match scan() {
        Some(ProgramScan { program, .. }) if plan.deny_programs.contains(&program) => {
            Err(Error::Forbidden(format!("{method} of {program}")))
        }
        Some(ProgramScan { is_filtered: false, .. }) if plan.scan_filter => {
            let add = "add to its config, for example, \"filters\": [{\"dataSize\": 165}]";
            Err(Error::Forbidden(format!("{method} without a filter ({add})")))
        }
        _ => Ok(()),
    }
}

/// Checks that `plan` and `methods`, the key's own list of methods, allow a method at a commitment.
///
/// # Errors
/// As for [`admit`].
pub(crate) fn admit_method(
    terms: &PlanTerms,
    methods: Option<&[AnyMethod]>,
    method: AnyMethod,
    commitment: Option<Commitment>,
) -> Result<(), Error> {
    if !terms.methods.contains(&method) || !methods.is_none_or(|list| list.contains(&method)) {
        return Err(Error::Forbidden(method.as_str().to_owned()));
    }
    if let (Some(allowed), Some(commitment)) = (&terms.plan.commitments, commitment)
        && !allowed.contains(&commitment)
    {
        return Err(Error::Forbidden(format!("commitment {commitment}")));
    }
    Ok(())
}

/// Returns the price of a call of `method`.
pub(crate) fn price_of(units: &Units, method: AnyMethod) -> Price {
    priced(units, method, units.by_method[method.index()])
}

/// Returns the price of a call that the cache answers.
///
/// The configured price of getMultipleAccounts is that of a list of [`FULL_LIST`] accounts. A shorter list costs
/// proportionally less, rounded up to a whole unit. No call costs more than its configured price. The
/// configuration check relies on this: it requires that each quota suffices for one call.
pub(crate) fn price(units: &Units, query: &Query) -> Price {
    let method = AnyMethod::Own(query.method());
    let mut price = units.by_method[method.index()];
    if let Query::Accounts(accounts) = query.known() {
        let part = (accounts.pubkeys.len() as u64).clamp(1, FULL_LIST);
        price = (price * part).div_ceil(FULL_LIST);
    }
    priced(units, method, price)
}

/// Returns the price of a call of which the first MiB costs `price`. Bytes are the same work whatever the method is, so a
/// further MiB costs what a plain call does, and never more than the call itself.
fn priced(units: &Units, method: AnyMethod, price: u64) -> Price {
    // The maximum price is a million, which an f64 holds exactly.
    let miss = f64::from(u32::try_from(price).unwrap_or(u32::MAX));
    let mib = f64::from(u32::try_from(price.min(units.default)).unwrap_or(u32::MAX));
    Price { method, miss, mib, hit_factor: units.hit_factor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{
        AccountEncoding, AccountForm, AccountsQuery, Method, PlainQuery, Pubkey, SamplesQuery,
    };

    fn accounts(n: usize, commitment: Commitment) -> Query {
        let form = AccountForm { encoding: AccountEncoding::Base64, slice: None };
        let pubkeys = vec![Pubkey([1; 32]); n].into();
        Query::Accounts(AccountsQuery { pubkeys, form, commitment, min_context_slot: None })
    }

    const SAMPLES: Query = Query::Samples(SamplesQuery { limit: 720 });

    #[test]
    fn plans_restrict_methods_commitments_and_list_lengths() {
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
        let unnamed = Plan { methods: None, ..all.clone() };
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
            (&unnamed, None, SAMPLES, None),
            (&unnamed, None, Query::Plain(PlainQuery::epoch_schedule()), None),
        ];
        for (plan, methods, query, refused) in rows {
            let expected = refused.map_or(Ok(()), |what| Err(Error::Forbidden(what.to_owned())));
            let (name, methods_of_plan) = (String::new(), plan.allowed().collect());
            let units = Units {
                default: 1,
                by_method: [1; AnyMethod::COUNT].into(),
                notification: 0,
                looks: 1,
                hit_factor: 1.0,
            };
            let terms = PlanTerms {
                name,
                plan: plan.clone(),
                methods: methods_of_plan,
                units,
                policy: String::new(),
            };
            assert_eq!(admit(&terms, methods, &query), expected, "{query:?}");
        }
    }

    #[test]
    fn hits_cost_their_factor() {
        let prices = Units {
            default: 1,
            by_method: [5; AnyMethod::COUNT].into(),
            notification: 0,
            looks: 1,
            hit_factor: 0.25,
        };
        let query = accounts(100, Commitment::Finalized);
        let method = Method::GetMultipleAccounts.into();
        assert_eq!(price(&prices, &query), Price { method, miss: 5.0, mib: 1.0, hit_factor: 0.25 });
    }

    #[test]
    fn account_lists_cost_their_part() {
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
            let prices = Units {
                default: 1,
                by_method: [price; AnyMethod::COUNT].into(),
                notification: 0,
                looks: 1,
                hit_factor: 1.0,
            };
            let cost = super::price(&prices, &accounts(n, Commitment::Finalized)).miss;
            assert!((cost - expected).abs() < f64::EPSILON, "{n} accounts at {price} cost {cost}");
        }
    }
}
