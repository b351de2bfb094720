//! The keys and plans in force, made from the configuration and the key file, and then never changed.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::GatewayError;
use super::address::PerAddress;
use super::keys::{self, KeyFileError, KeyHash};
use super::limit::Limit;
use super::plan::{self, PlanTerms, Plans};
use super::principal::{KeyValidity, Principal};
use super::table::{KeyTableContext, Table};
use crate::config::watch::Watched;
use crate::config::{AuthMode, Config};

/// The keys and plans in force. A request reads one snapshot.
pub(crate) struct KeySnapshot {
    pub(crate) plans: Plans,
    pub(crate) access: AccessMode,
    pub(crate) context: KeyTableContext,
    pub(crate) dev_key: Option<String>,
    pub(crate) failed_per_minute: u32,
    pub(crate) failed: Arc<PerAddress<Limit>>,
}

/// The callers that are let in.
pub(crate) enum AccessMode {
    /// Holders of a key of the table.
    Keys(Table),
    /// Everybody, without limits.
    Open(Arc<Principal>),
    /// Everybody, each client address with the plan's limits.
    OpenPlan(Arc<PlanTerms>, Arc<PerAddress<Principal>>),
}

impl KeySnapshot {
    /// Returns a snapshot with other keys, and all else as here.
    pub(crate) fn with_keys(&self, keys: Vec<keys::Key>) -> Self {
        Self {
            plans: self.plans.clone(),
            access: AccessMode::Keys(table(
                keys,
                self.dev_key.as_deref(),
                &self.plans,
                Some(self),
                &self.context,
            )),
            context: self.context.clone(),
            dev_key: self.dev_key.clone(),
            failed_per_minute: self.failed_per_minute,
            failed: Arc::clone(&self.failed),
        }
    }

    /// Returns the keys, if callers need one.
    pub(crate) fn table(&self) -> Option<&Table> {
        if let AccessMode::Keys(table) = &self.access { Some(table) } else { None }
    }

    /// Returns the number of keys in force.
    pub(crate) fn keys(&self) -> usize {
        self.table().map_or(0, Table::len)
    }

    /// Returns the number of keys in force that are of the key file.
    pub(crate) fn keys_of_file(&self) -> usize {
        self.keys().saturating_sub(usize::from(self.dev_key.is_some()))
    }
}

/// Returns the snapshot of `config`, which goes on from `old`, and the key file to watch, which `read` reads.
pub(crate) fn take_snapshot(
    config: &Config,
    context: KeyTableContext,
    old: Option<&KeySnapshot>,
    read: impl FnOnce(&Path) -> (Watched, io::Result<Option<String>>),
) -> Result<(KeySnapshot, Option<Watched>), GatewayError> {
    let auth = &config.auth;
    let plans = plan::plans(config);
    let mut watched = None;
    let access = match (auth.mode, auth.open_plan.as_ref().and_then(|plan| plans.get(plan))) {
        (AuthMode::Open, None) => AccessMode::Open(Arc::new(context.anonymous(None))),
        (AuthMode::Open, Some(terms)) => open_plan(terms, &context, old),
        (AuthMode::Keys, _) => {
            let mut keys = Vec::new();
            if let Some(path) = &auth.keys_file {
                let (file, text) = read(path);
                watched = Some(file);
                let in_force = old.map_or(0, KeySnapshot::keys_of_file);
                match read_keys(text, path, &plans, in_force)? {
                    Some(read) => keys = read,
                    None => missing(path, in_force)?,
                }
            }
            AccessMode::Keys(table(keys, auth.dev_key.as_deref(), &plans, old, &context))
        }
    };
    let failed = old.filter(|old| old.failed_per_minute == auth.failed_per_minute);
    let failed = failed.map_or_else(|| Arc::new(PerAddress::new()), |old| Arc::clone(&old.failed));
    let (dev_key, failed_per_minute) = (auth.dev_key.clone(), auth.failed_per_minute);
    Ok((KeySnapshot { plans, access, context, dev_key, failed_per_minute, failed }, watched))
}

fn table(
    keys: Vec<keys::Key>,
    dev_key: Option<&str>,
    plans: &Plans,
    old: Option<&KeySnapshot>,
    context: &KeyTableContext,
) -> Table {
    let none = Table::default();
    let old = old.and_then(KeySnapshot::table).unwrap_or(&none);
    let mut table = Table::new(keys, plans, old, context);
    if let Some((key, terms)) = dev_key.and_then(|key| Some((key, plans.get(key)?))) {
        let validity = KeyValidity { hash: KeyHash::of(key), ..KeyValidity::default() };
        table.add(key, validity, terms, old, context);
    }
    table
}

/// Returns the keys of `text`, the content of the file at `path`, if it has changed. A blank file is refused while
/// `in_force` keys are in force, because it may be about to be written.
pub(crate) fn read_keys(
    text: io::Result<Option<String>>,
    path: &Path,
    plans: &Plans,
    in_force: usize,
) -> Result<Option<Vec<keys::Key>>, KeyFileError> {
    let read = match text {
        Ok(None) => return Ok(None),
        Ok(Some(text)) if in_force > 0 && keys::is_blank(&text) => Err(vec![format!(
            "is empty, and {in_force} keys of before are in force; write `key = []` to take all keys out"
        )]),
        Ok(Some(text)) => keys::parse(&text, |plan| plans.contains_key(plan)),
        Err(error) => Err(vec![format!("cannot be read: {}", error.kind())]),
    };
    read.map(Some).map_err(|problems| KeyFileError { path: path.to_path_buf(), problems })
}

/// Everybody by `terms`; addresses go on with their limits where nothing has changed for them.
fn open_plan(terms: &Arc<PlanTerms>, context: &KeyTableContext, old: Option<&KeySnapshot>) -> AccessMode {
    if let Some(KeySnapshot { access: AccessMode::OpenPlan(known, clients), context: before, .. }) = old
        && known.plan == terms.plan
        && before.max_batch == context.max_batch
        && before.units == context.units
    {
        return AccessMode::OpenPlan(Arc::clone(known), Arc::clone(clients));
    }
    AccessMode::OpenPlan(Arc::clone(terms), Arc::new(PerAddress::new()))
}

/// A key file that is missing at the start is waited for; one that goes missing takes no keys with it.
fn missing(path: &Path, in_force: usize) -> Result<(), KeyFileError> {
    if in_force > 0 {
        let problems = vec![format!("is missing, and {in_force} keys of before are in force")];
        return Err(KeyFileError { path: path.to_path_buf(), problems });
    }
    let path = path.display();
    tracing::warn!(
        keys_file = %path,
        "there is no key file yet, so nobody can call; make a key: slotfront keys create --file {path} --name NAME"
    );
    Ok(())
}
