//! `[auth]`, `[plans.NAME]` and `[units]`: callers, and what they may do at which price.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{NAME_RULE, SHARE, is_name};
use crate::config::Secret;
use crate::config::setting::{Field, section};
use crate::methods::{AnyMethod, Commitment, Group};

/// The plan that always exists. Keys are created with this plan, unless another is named.
pub const STANDARD_PLAN: &str = "standard";
/// The default of `auth.keys_file`.
pub const KEYS_FILE: &str = "keys.toml";

section! {
    /// The authentication of callers.
    pub struct Auth {
        /// "keys" requires a key of `keys_file`. "open" accepts any key or none, for a private network.
        // A gateway that is reachable from outside must not be open by accident.
        mode: AuthMode = get("keys"),
        /// The key file, written by `slotfront keys create` and read again whenever it changes. It may be missing at
        /// the start. A blank file does not remove keys; `key = []` removes all. "off" is for mode "open".
        keys_file: Option<PathBuf> = file_or_off(KEYS_FILE),
        /// The file that keeps the usage of each key over a restart; "off" keeps none. It is written each second, or
        /// less often with very many keys: with at most a hundredth of a core, but at least every ten seconds. Only one
        /// process may use it, which holds a lock beside it: give each replica a file of its own.
        usage_file: Option<PathBuf> = file_or_off("usage.json"),
        /// Maximum refused keys per client address and minute, including keys from a wrong origin or address, and requests
        /// for `/openrpc.json`. Further ones get 429.
        // A client with a typing error fails a few times a minute, a scanner thousands of times.
        failed_per_minute: u32 = within(30, 1..=1_000_000),
        /// The plan of each client address in mode "open". Without a plan there is no limit.
        open_plan: Option<String> = optional(STANDARD_PLAN),
        /// The bearer token of admin actions, of at least 16 characters unless `server.admin_listen` is on loopback.
        /// Without a token they are disabled.
        admin_token: Option<Secret> = secret("env:SLOTFRONT_ADMIN_TOKEN"),
        /// An API key that is valid without a key file, on the plan of the same name. Only
        /// [`Config::dev`](crate::config::Config::dev) sets it.
        dev_key: Option<String> = fixed(None),
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
        rps: u32 = within(100, 1..=1_000_000),
        /// Maximum calls at once. Default: two seconds of `rps`.
        // A page load sends its calls at once.
        burst: u32 = within(rps.saturating_mul(2), 1..=1_000_000),
        /// Quota of units for a UTC day. A call passes if its full price is left. Default: no quota.
        daily_units: Option<u64> = optional_within(1_000_000, 1..=i64::MAX),
        /// Quota of units for a UTC month. Default: no quota.
        monthly_units: Option<u64> = optional_within(20_000_000, 1..=i64::MAX),
        /// Allowed methods, or groups of methods: "core", "tip", "history", "owners", "scans", "subscriptions",
        /// "simulation" and "provider". Default: all groups but "scans" and "simulation".
        methods: Option<Vec<AnyMethod>> = with(|f| f.methods(&["core", "tip", "history"])),
        /// Allowed commitments. Default: all.
        commitments: Option<Vec<Commitment>> = optional_list(&["confirmed", "finalized"]),
        /// Maximum calls in a batch, if lower than `server.max_batch`.
        max_batch: Option<usize> = optional_within(20, 1..=10_000),
        /// Maximum accounts in a getMultipleAccounts.
        max_accounts: Option<usize> = optional_within(50, 1..=100),
        /// Maximum open WebSockets of a key, at each replica. 0 allows none.
        // Enough for the visitors of a busy page, and a twentieth of `server.max_connections`.
        connections: usize = within(1_000, 0..=1_000_000),
        /// Maximum subscriptions of a key over all its WebSockets, at each replica.
        // Ten for each of the default connections.
        subscriptions: usize = within(10_000, 0..=1_000_000),
        /// True if `Cache-Control: no-cache` bypasses the cache.
        // Bypassing the cache costs the nodes calls, so a plan must allow it explicitly.
        bypass_cache: bool = get(false),
        /// True if answers say which node gave them (`X-Slotfront-Upstream`) and which bound made a stored answer too old for
        /// them (`detail` in `Cache-Status`). The names of your nodes are then known to the callers.
        explain: bool = get(false),
        /// True if a key is never shown a lower slot than before at the same commitment. Older cached answers are then
        /// misses.
        // It costs callers that read many accounts cache hits. Even without it, the slot of one account never decreases.
        monotonic: bool = get(false),
        /// True if a key may send transactions, if `send.enabled` is true, too. It may then simulate them as well.
        send: bool = get(false),
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
        default: u64 = within(1, 0..=1_000_000),
        /// The prices of the methods, by [`AnyMethod::index`]. A subscription costs its price when it is made.
        by_method: Box<[u64; AnyMethod::COUNT]> = with(|f| prices(f, default)),
        /// The price of each notification of a subscription.
        // Whoever sells by calls sells subscriptions by their making. Notifications are shared, so they cost the nodes
        // nothing more.
        notification: u64 = within(0, 0..=1_000_000),
        /// The price of a hundred looks at watched accounts, and of each 64 KiB that they begin. In each slot the first 20
        /// accounts and the first 64 KiB of a key are free. A signature that is waited for longer than three minutes is
        /// looked at in each slot, too.
        looks: u64 = within(1, 0..=1_000_000),
        /// The price of a hit, as a share of the full price. 0.0 makes hits free.
        hit_factor: f64 = within(1.0, SHARE),
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
