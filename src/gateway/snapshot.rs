//! The keys and plans in force, as one immutable value that is built from the configuration and the key file.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;

use super::GatewayError;
use super::address::PerAddress;
use super::clock::WallClock;
use super::keys::validity::KeyValidity;
use super::keys::{self, ApiKey, KeyFileError, KeyHash, Revocations};
use super::limits::PlanLimits;
use super::plan::{self, PlanTerms, Plans};
use super::principal::Principal;
use super::quota::Ledger;
use super::replicas::LeaseClient;
use crate::config::watch::Watched;
use crate::config::{AuthMode, Config, Units, io_fault};
use crate::limiter::Limiter;
use crate::telemetry::Metrics;

pub(crate) struct KeySnapshot {
    pub(crate) access: AccessMode,
    pub(crate) context: Arc<PrincipalContext>,
}

/// The callers that are accepted, by the setting `auth.mode`.
pub(crate) enum AccessMode {
    /// Only callers with a key of this table (mode `keys`).
    Keys(KeyTable),
    /// All callers, without limits (mode `open`).
    Open(Arc<Principal>),
    /// All callers, each client address with the limits of the plan (mode `open` with `auth.open_plan`).
    OpenPlan(Arc<PlanTerms>, Arc<PerAddress<Principal>>),
}

impl KeySnapshot {
    /// Returns a copy of this snapshot with the keys `keys`. Keys that are also in this snapshot keep the state of
    /// their limits.
    pub(crate) fn with_keys(&self, keys: Vec<ApiKey>) -> Self {
        let table = KeyTable::new(keys, Some(self), &self.context);
        Self { access: AccessMode::Keys(table), context: Arc::clone(&self.context) }
    }

    /// Returns a copy of this snapshot without the keys in `revocations`. `None` if no such key of it is valid.
    pub(crate) fn without_keys(&self, revocations: &Revocations) -> Option<Self> {
        let rest = self.table()?.without(revocations, self.context.dev_key.as_deref())?;
        Some(Self { access: AccessMode::Keys(rest), context: Arc::clone(&self.context) })
    }

    /// Returns the key table. `None` if callers need no key.
    pub(crate) fn table(&self) -> Option<&KeyTable> {
        if let AccessMode::Keys(table) = &self.access { Some(table) } else { None }
    }

    /// Returns the number of keys in the table, revoked ones and the dev key included.
    pub(crate) fn keys(&self) -> usize {
        self.table().map_or(0, KeyTable::len)
    }

    pub(crate) fn keys_of_file(&self) -> usize {
        self.keys().saturating_sub(usize::from(self.context.dev_key.is_some()))
    }
}

/// Builds the snapshot of `config`. Limits and quotas continue from the snapshot `old`. `read` reads the key file. Also
/// returns the key file to watch, or `None` if no key file is used.
///
/// # Errors
/// The key file cannot be read or is invalid, or is missing while keys are in force.
pub(crate) fn take_snapshot(
    config: &Config,
    context: Arc<PrincipalContext>,
    old: Option<&KeySnapshot>,
    read: impl FnOnce(&Path) -> (Watched, io::Result<Option<String>>),
) -> Result<(KeySnapshot, Option<Watched>), GatewayError> {
    let auth = &config.auth;
    let plans = &context.plans;
    let mut watched = None;
    let access = match (auth.mode, auth.open_plan.as_ref().and_then(|plan| plans.get(plan))) {
        (AuthMode::Open, None) => AccessMode::Open(Arc::new(Principal::anonymous(None, &context))),
        (AuthMode::Open, Some(terms)) => open_plan(terms, &context, old),
        (AuthMode::Keys, _) => {
            let mut keys = Vec::new();
            if let Some(path) = &auth.keys_file {
                let (file, text) = read(path);
                watched = Some(file);
                let in_force = old.map_or(0, KeySnapshot::keys_of_file);
                match read_keys(&text, path, plans, in_force)? {
                    Some(read) => keys = read,
                    None => missing(path, in_force)?,
                }
            }
            AccessMode::Keys(KeyTable::new(keys, old, &context))
        }
    };
    Ok((KeySnapshot { access, context }, watched))
}

/// Parses `text`, the result of reading the key file at `path`. `None` if the file is missing or has not changed.
/// `in_force` is the number of the file's keys that are in force.
///
/// # Errors
/// The file cannot be read, is invalid, or is blank while keys are in force. Such a blank file may be one that an
/// editor is about to write.
pub(crate) fn read_keys(
    text: &io::Result<Option<String>>,
    path: &Path,
    plans: &Plans,
    in_force: usize,
) -> Result<Option<Vec<ApiKey>>, KeyFileError> {
    let read = match text {
        Ok(None) => return Ok(None),
        Ok(Some(text)) if in_force > 0 && keys::is_blank(text) => Err(vec![format!(
            "is empty while {in_force} keys are in force; write `key = []` to remove all keys"
        )]),
        Ok(Some(text)) => keys::parse(text, |plan| plans.contains_key(plan)),
        Err(error) => Err(vec![format!("cannot be read: {}", io_fault(path, error))]),
    };
    read.map(Some).map_err(|problems| KeyFileError { path: path.to_path_buf(), problems })
}

/// Returns the mode that accepts all callers and applies the plan `terms` to each client address. Addresses keep
/// the state of their limits from `old`, unless the plan or the prices have changed.
fn open_plan(
    terms: &Arc<PlanTerms>,
    context: &Arc<PrincipalContext>,
    old: Option<&KeySnapshot>,
) -> AccessMode {
    if let Some(KeySnapshot { access: AccessMode::OpenPlan(known, clients), context: before, .. }) = old
        && (&known.plan, &known.methods) == (&terms.plan, &terms.methods)
        && before.units == context.units
    {
        return AccessMode::OpenPlan(Arc::clone(known), Arc::clone(clients));
    }
    AccessMode::OpenPlan(Arc::clone(terms), Arc::new(PerAddress::new()))
}

/// Logs a warning about a missing key file, which may appear later.
///
/// # Errors
/// The key file is missing although `in_force` of its keys are in force.
fn missing(path: &Path, in_force: usize) -> Result<(), KeyFileError> {
    if in_force > 0 {
        let problems = vec![format!(
            "is missing while {in_force} keys are in force; restore it, or write `key = []` to remove all keys"
        )];
        return Err(KeyFileError { path: path.to_path_buf(), problems });
    }
    let path = path.display();
    tracing::warn!(
        keys_file = %path,
        "the key file does not exist yet, so every request is refused; create a key: slotfront keys create --file {path} --name NAME"
    );
    Ok(())
}

/// The keys in force, by hash and by id.
#[derive(Default)]
pub(crate) struct KeyTable {
    /// The keys by the hash of each of their secrets, replaced ones included. They may be expired or revoked.
    pub(super) by_hash: HashMap<KeyHash, Arc<Principal>>,
    by_id: HashMap<Arc<str>, Arc<Principal>>,
}

#[derive(Clone)]
pub(crate) struct PrincipalContext {
    pub(crate) clock: Arc<WallClock>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) metrics: Arc<Metrics>,
    /// The client that reserves calls in advance from the rates that all gateways share. `None` if no shared store
    /// is configured.
    pub(crate) lease_client: Option<Arc<LeaseClient>>,
    pub(crate) plans: Plans,
    pub(crate) units: Units,
    /// The setting `gateway.deny`.
    pub(crate) deny: Vec<IpNet>,
    pub(crate) dev_key: Option<String>,
    pub(crate) failed_per_minute: u32,
    pub(crate) failed: Arc<PerAddress<Limiter>>,
}

impl PrincipalContext {
    pub(crate) fn new(
        config: &Config,
        clock: Arc<WallClock>,
        ledger: Arc<Ledger>,
        metrics: Arc<Metrics>,
        lease_client: Option<Arc<LeaseClient>>,
    ) -> Self {
        metrics.set_key_places(config.telemetry.key_series);
        Self {
            clock,
            ledger,
            metrics,
            lease_client,
            plans: plan::plans(config),
            units: config.units.clone(),
            deny: config.deny.clone(),
            dev_key: config.auth.dev_key.clone(),
            failed_per_minute: config.auth.failed_per_minute,
            failed: Arc::new(PerAddress::new()),
        }
    }

    /// Returns true if `gateway.deny` refuses the address.
    pub(crate) fn denies(&self, client: Option<IpAddr>) -> bool {
        client.is_some_and(|client| {
            let client = client.to_canonical();
            self.deny.iter().any(|network| network.contains(&client))
        })
    }

    /// Returns the context of a new configuration. Failed keys stay counted, unless their limit has changed.
    pub(crate) fn with(&self, config: &Config) -> Self {
        let Self { clock, ledger, metrics, lease_client, failed_per_minute, failed, .. } = self.clone();
        let new = Self::new(config, clock, ledger, metrics, lease_client);
        if new.failed_per_minute == failed_per_minute { Self { failed, ..new } } else { new }
    }
}

impl KeyTable {
    /// Builds the table of `keys` and the dev key. A key that is also in `old` keeps the state of its rate and its
    /// requests in flight. It also keeps the highest slots that answers have shown to its callers.
    fn new(keys: Vec<ApiKey>, old: Option<&KeySnapshot>, context: &Arc<PrincipalContext>) -> Self {
        let plans = &context.plans;
        let (none, mut table) = (Self::default(), Self::default());
        let old = old.and_then(KeySnapshot::table).unwrap_or(&none);
        table.by_hash.reserve(keys.len());
        table.by_id.reserve(keys.len());
        for key in keys {
            // Only a revoked key may have an unknown plan. Such a key is refused like an unknown key.
            let Some(terms) = plans.get(&key.plan) else { continue };
            let validity = KeyValidity {
                hash: key.hash,
                previous: key.previous,
                expires: key.expires,
                suspended: key.suspended.is_some(),
                revoked: key.revoked.is_some(),
                scope: key.scope,
            };
            table.add(&key.id, &key.name, validity, terms, old, context);
        }
        if let Some((key, terms)) = context.dev_key.as_deref().and_then(|key| Some((key, plans.get(key)?))) {
            let validity = KeyValidity { hash: KeyHash::of(key), ..KeyValidity::default() };
            table.add(key, key, validity, terms, old, context);
        }
        table
    }

    /// Adds the key `id` to the table. Replaces a key with the same id or hash.
    fn add(
        &mut self,
        id: &str,
        name: &str,
        validity: KeyValidity,
        terms: &Arc<PlanTerms>,
        old: &Self,
        context: &Arc<PrincipalContext>,
    ) {
        let id: Arc<str> = Arc::from(id);
        let before = old.by_id.get(&id);
        let limits_before = before.and_then(|principal| principal.limits.as_ref());
        let name = Arc::from(name);
        let used = context.ledger.of(&id, &name);
        let limits =
            Some(PlanLimits::new(Arc::clone(terms), limits_before, used, &id, context.lease_client.as_ref()));
        let known = before.map(|principal| principal.known_slots().clone()).unwrap_or_default();
        let principal = Arc::new(Principal::new(Arc::clone(&id), name, validity, limits, known, context));
        for hash in principal.validity.hashes() {
            self.by_hash.insert(hash, Arc::clone(&principal));
        }
        self.by_id.insert(id, principal);
    }

    /// Returns a copy of this table without the keys in `revocations`, except those that are revoked in this table, too.
    /// `None` if the table has no other such key. The dev key is never left out.
    fn without(&self, revocations: &Revocations, dev_key: Option<&str>) -> Option<Self> {
        let goes = |principal: &Principal| {
            dev_key != Some(&principal.id)
                && !principal.validity.revoked
                && revocations.contain(&principal.id, principal.validity.hashes())
        };
        if !self.principals().any(goes) {
            return None;
        }
        let mut rest = Self { by_hash: self.by_hash.clone(), by_id: self.by_id.clone() };
        rest.by_hash.retain(|_, principal| !goes(principal));
        rest.by_id.retain(|_, principal| !goes(principal));
        Some(rest)
    }

    /// Returns the key with this id, which may be expired or revoked. `None` if there is none.
    pub(crate) fn named(&self, id: &str) -> Option<&Principal> {
        self.by_id.get(id).map(|principal| &**principal)
    }

    pub(crate) fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.by_id.values().map(|principal| &**principal)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}
