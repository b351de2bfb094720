//! `[auth]`, `[plans.NAME]` and `[units]`: callers, and what they may do at which price.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{NAME_RULE, SHARE, is_name};
use crate::config::Secret;
use crate::config::setting::{Field, section};
use crate::methods::{AnyMethod, Commitment, Group, Method, Pubkey};

/// The plan that always exists. Keys are created with this plan, unless another is named.
pub const STANDARD_PLAN: &str = "standard";
/// The default of `auth.keys_file`.
pub const KEYS_FILE: &str = "keys.toml";

section! {
    /// The authentication of callers.
    pub struct Auth {
        /// "keys" requires a key of `keys_file`. "open" accepts any key or none, for a private network.
        // A gateway that is reachable from outside must not be open by accident.
        mode: AuthMode = live.get("keys"),
        /// The key file, written by `slotfront keys create` and read again whenever it changes. It may be missing at
        /// the start. A blank file does not remove keys; `key = []` removes all. "off" is for mode "open".
        keys_file: Option<PathBuf> = live.file_or_off(KEYS_FILE),
        /// The file that keeps what each key has used, by day and method; "off" keeps none. It is written each second,
        /// and `slotfront usage` prints it. Only one process may use it, which holds a lock beside it: give each replica
        /// a file of its own.
        usage_file: Option<PathBuf> = restart.file_or_off("usage.json"),
        /// Maximum refused keys per client address and minute, including keys from a wrong origin or address, and requests
        /// for `/openrpc.json`. Further ones get 429.
        // A client with a typing error fails a few times a minute, a scanner thousands of times.
        failed_per_minute: u32 = live.within(30, 1..=1_000_000),
        /// The plan of each client address in mode "open". Without a plan there is no limit.
        open_plan: Option<String> = live.optional(STANDARD_PLAN),
        /// The bearer token of admin actions, of at least 16 characters unless `server.admin_listen` is on loopback.
        /// Without a token they are disabled.
        admin_token: Option<Secret> = restart.secret("env:SLOTFRONT_ADMIN_TOKEN"),
        /// An API key that is valid without a key file, on the plan of the same name. Only
        /// [`Config::dev`](crate::config::Config::dev) sets it.
        dev_key: Option<String> = live.fixed(None),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    Keys,
    Open,
}

section! {
    /// The permissions and limits of keys. Each key names a plan. `[plans.standard]` always exists.
    pub struct Plan {
        /// Average calls a second. Each element of a batch is a call. Refused calls count as well.
        // Enough for a busy service. One core serves a hundred clients at this rate.
        rps: u32 = live.within(100, 1..=1_000_000),
        /// Maximum calls at once. Default: two seconds of `rps`.
        // A page load sends its calls at once.
        burst: u32 = live.within(rps.saturating_mul(2), 1..=1_000_000),
        /// Quota of units for a UTC day. A call passes if its full price is left. Default: no quota.
        daily_units: Option<u64> = live.optional_within(1_000_000, 1..=i64::MAX),
        /// Quota of units for a UTC month. Default: no quota.
        monthly_units: Option<u64> = live.optional_within(20_000_000, 1..=i64::MAX),
        /// Allowed methods, or groups of methods: "core", "tip", "history", "owners", "scans", "subscriptions",
        /// "simulation" and "provider". Default: all groups but "scans" and "simulation".
        methods: Option<Vec<AnyMethod>> = live.with(|f| f.methods(&["core", "tip", "history"])),
        /// Allowed commitments. Default: all.
        commitments: Option<Vec<Commitment>> = live.optional_list(&["confirmed", "finalized"]),
        /// Maximum calls in a batch, if lower than `server.max_batch`.
        max_batch: Option<usize> = live.optional_within(20, 1..=10_000),
        /// Maximum accounts in a getMultipleAccounts.
        max_accounts: Option<usize> = live.optional_within(50, 1..=100),
        /// Maximum open WebSockets of a key, at each replica. 0 allows none.
        // Enough for the visitors of a busy page, and a twentieth of `server.max_connections`.
        connections: usize = live.within(1_000, 0..=1_000_000),
        /// Maximum subscriptions of a key over all its WebSockets, at each replica.
        // Ten for each of the default connections.
        subscriptions: usize = live.within(10_000, 0..=1_000_000),
        /// True if `Cache-Control: no-cache` bypasses the cache.
        // Bypassing the cache costs the nodes calls, so a plan must allow it explicitly.
        bypass_cache: bool = live.get(false),
        /// True if answers say which node gave them (`X-Slotfront-Upstream`) and which bound made a stored answer too old for
        /// them (`detail` in `Cache-Status`). The names of your nodes are then known to the callers.
        explain: bool = live.get(false),
        /// True if a key is never shown a lower slot than before at the same commitment. Older cached answers are then
        /// misses.
        // It costs callers that read many accounts cache hits. Even without it, the slot of one account never decreases.
        monotonic: bool = live.get(false),
        /// True if a key may send transactions, if `send.enabled` is true, too. It may then simulate them as well.
        send: bool = live.get(false),
        /// True if getProgramAccounts and programSubscribe need a filter, so that nobody asks for all accounts of a program.
        scan_filter: bool = live.get(false),
        /// Programs whose accounts getProgramAccounts, programSubscribe, and getTokenAccountsByOwner and
        /// getTokenAccountsByDelegate with this `programId` do not give.
        // Of the token program a node has a hundred million.
        deny_programs: Vec<Pubkey> = live.list(&[]),
        /// The price of one method, instead of that in `[units]`.
        units: BTreeMap<AnyMethod, u64> = live.with(|f| by_method(f, |f, shown| f.optional_within(shown.then_some(50), 0..=1_000_000))),
        /// Average calls of one method, beside `rps`, a second ("5/s"), minute ("1/min") or hour ("100/h"), over all
        /// replicas of a shared store. They may be made at once.
        rate: BTreeMap<AnyMethod, CallRate> = live.with(|f| by_method(f, |f, shown| f.optional(shown.then_some("1/min")))),
    }
}

/// A number of calls in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRate {
    pub calls: u32,
    /// The name of the period, one of [`CallRate::PERIODS`].
    unit: &'static str,
    pub period: Duration,
}

impl CallRate {
    const PERIODS: [(&'static str, Duration); 3] =
        [("s", Duration::from_secs(1)), ("min", Duration::from_mins(1)), ("h", Duration::from_hours(1))];

    /// Parses a rate such as `1/min`. `None` if it is none, or allows no call.
    pub(in crate::config) fn parse(text: &str) -> Option<Self> {
        let (calls, unit) = text.split_once('/')?;
        let (unit, period) = Self::PERIODS.into_iter().find(|(known, _)| *known == unit.trim())?;
        let calls = calls.trim().parse().ok().filter(|calls| (1..=1_000_000).contains(calls))?;
        Some(Self { calls, unit, period })
    }
}

impl std::fmt::Display for CallRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.calls, self.unit)
    }
}

impl Plan {
    /// Returns the allowed methods.
    pub fn allowed(&self) -> impl Iterator<Item = AnyMethod> {
        let named = self.methods.iter().flatten().copied();
        let usual = AnyMethod::all().filter(|method| method.is_usual());
        let of_senders = Group::Simulation.methods().chain([AnyMethod::Send]);
        named.chain(usual.filter(|_| self.methods.is_none())).chain(of_senders.filter(|_| self.send))
    }

    /// Returns `units` with the plan's own prices.
    pub fn prices(&self, units: &Units) -> Units {
        let mut units = units.clone();
        for (method, price) in &self.units {
            units.by_method[method.index()] = *price;
        }
        units
    }
}

/// Reads a table with a value for each method that has one. `read` gets true for the method that shows how it is written.
fn by_method<T>(
    f: &Field<'_, '_>,
    read: impl Fn(&Field<'_, '_>, bool) -> Option<T>,
) -> BTreeMap<AnyMethod, T> {
    let table = f.r.table(f.key);
    let value = |method: AnyMethod| {
        let is_shown = method == AnyMethod::Own(Method::GetProgramAccounts);
        let help = if is_shown { f.help } else { "" };
        Some((method, read(&table.field(method.as_str(), help), is_shown)?))
    };
    f.r.methods().into_iter().filter_map(value).collect()
}

/// Reads all plans. The plan `standard` exists even if it is not configured.
pub(super) fn plans(f: &Field<'_, '_>) -> BTreeMap<String, Plan> {
    let r = f.table();
    let mut names = r.names();
    names.insert(STANDARD_PLAN.to_owned());
    let mut plans = BTreeMap::new();
    for name in names {
        if !is_name(&name) {
            r.problem(&name, None, NAME_RULE, "rename the plan");
        }
        let plan = r.section(&name);
        plans.insert(name, plan);
    }
    plans
}

section! {
    /// The price of a call in units of a quota. A batch costs the sum of its calls.
    pub struct Units {
        /// The price of every method without a price of its own. Each may have one: `getTransaction = 2`. Also the price of each
        /// MiB of an answer after the first, for methods that cost no less.
        default: u64 = live.within(1, 0..=1_000_000),
        /// The prices of the methods, by [`AnyMethod::index`]. A subscription costs its price when it is made.
        by_method[""]: Box<[u64; AnyMethod::COUNT]> = live.with(|f| prices(f, default)),
        /// The price of each notification of a subscription.
        // Whoever sells by calls sells subscriptions by their making. Notifications are shared, so they cost the nodes
        // nothing more.
        notification: u64 = live.within(0, 0..=1_000_000),
        /// The price of a hundred looks at watched accounts, and of each 64 KiB that they begin. In each slot the first 20
        /// accounts and the first 64 KiB of a key are free. A signature that is waited for longer than three minutes is
        /// looked at in each slot, too.
        looks: u64 = live.within(1, 0..=1_000_000),
        /// The price of a hit, as a share of the full price. 0.0 makes hits free.
        hit_factor: f64 = live.within(1.0, SHARE),
    }
}

/// Reads the prices of all methods, whose rules say what is usual.
fn prices(f: &Field<'_, '_>, default: u64) -> Box<[u64; AnyMethod::COUNT]> {
    let mut prices = Box::new([default; AnyMethod::COUNT]);
    for method in f.r.methods() {
        prices[method.index()] = match method.rules().price {
            Some((usual, help)) => f.r.field(method.as_str(), help).within(usual, 0..=1_000_000),
            None => f.r.field(method.as_str(), "").optional_within((), 0..=1_000_000).unwrap_or(default),
        };
    }
    prices
}
