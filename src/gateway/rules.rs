//! All that one request decides by, made from the configuration and the key file, and then never changed.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::GatewayError;
use super::address::PerAddress;
use super::keys::{self, KeyFileError, KeyHash};
use super::limit::Limit;
use super::plan::{self, Plans, Terms};
use super::principal::{ANONYMOUS, Bounds, Pass, Principal};
use super::table::{Ground, Table};
use crate::config::watch::Watched;
use crate::config::{AuthMode, Config};

/// All that one request decides by.
pub(crate) struct Rules {
    pub(crate) plans: Plans,
    pub(crate) door: Door,
    pub(crate) ground: Ground,
    pub(crate) dev_key: Option<String>,
    pub(crate) failed_per_minute: u32,
    pub(crate) failed: Arc<PerAddress<Limit>>,
}

/// Who is let in.
pub(crate) enum Door {
    /// Whoever has a key of the table.
    Keys(Table),
    /// Everybody, without limits.
    Open(Arc<Principal>),
    /// Everybody, each client address with the plan's limits.
    OpenPlan(Arc<Terms>, Arc<PerAddress<Principal>>),
}

impl Ground {
    pub(crate) fn anonymous(&self, bounds: Option<Bounds>) -> Principal {
        self.principal(Arc::from(ANONYMOUS), KeyHash::default(), bounds, Pass::default())
    }
}

impl Rules {
    /// The same rules for other keys.
    pub(crate) fn with_keys(&self, keys: Vec<keys::Key>) -> Self {
        Self {
            plans: self.plans.clone(),
            door: Door::Keys(table(keys, self.dev_key.as_deref(), &self.plans, Some(self), &self.ground)),
            ground: self.ground.clone(),
            dev_key: self.dev_key.clone(),
            failed_per_minute: self.failed_per_minute,
            failed: Arc::clone(&self.failed),
        }
    }

    pub(crate) fn table(&self) -> Option<&Table> {
        if let Door::Keys(table) = &self.door { Some(table) } else { None }
    }

    pub(crate) fn keys(&self) -> usize {
        self.table().map_or(0, Table::len)
    }

    /// How many keys of the key file are in force.
    pub(crate) fn keys_of_file(&self) -> usize {
        self.keys().saturating_sub(usize::from(self.dev_key.is_some()))
    }
}

/// The rules of `config`, going on from `old`, and the key file to watch, which `read` reads.
pub(crate) fn rules(
    config: &Config,
    ground: Ground,
    old: Option<&Rules>,
    read: impl FnOnce(&Path) -> (Watched, io::Result<Option<String>>),
) -> Result<(Rules, Option<Watched>), GatewayError> {
    let auth = &config.auth;
    let plans = plan::plans(config);
    let mut watched = None;
    let door = match (auth.mode, auth.open_plan.as_ref().and_then(|plan| plans.get(plan))) {
        (AuthMode::Open, None) => Door::Open(Arc::new(ground.anonymous(None))),
        (AuthMode::Open, Some(terms)) => open_plan(terms, &ground, old),
        (AuthMode::Keys, _) => {
            let mut keys = Vec::new();
            if let Some(path) = &auth.keys_file {
                let (file, text) = read(path);
                watched = Some(file);
                let in_force = old.map_or(0, Rules::keys_of_file);
                match keys_of(text, path, &plans, in_force)? {
                    Some(read) => keys = read,
                    None => missing(path, in_force)?,
                }
            }
            Door::Keys(table(keys, auth.dev_key.as_deref(), &plans, old, &ground))
        }
    };
    let failed = old.filter(|old| old.failed_per_minute == auth.failed_per_minute);
    let failed = failed.map_or_else(|| Arc::new(PerAddress::new()), |old| Arc::clone(&old.failed));
    let (dev_key, failed_per_minute) = (auth.dev_key.clone(), auth.failed_per_minute);
    Ok((Rules { plans, door, ground, dev_key, failed_per_minute, failed }, watched))
}

fn table(
    keys: Vec<keys::Key>,
    dev_key: Option<&str>,
    plans: &Plans,
    old: Option<&Rules>,
    ground: &Ground,
) -> Table {
    let none = Table::default();
    let old = old.and_then(Rules::table).unwrap_or(&none);
    let mut table = Table::new(keys, plans, old, ground);
    if let Some((key, terms)) = dev_key.and_then(|key| Some((key, plans.get(key)?))) {
        table.add(key, KeyHash::of(key), &[], Pass::default(), terms, old, ground);
    }
    table
}

/// The keys of `text`, which is what the file at `path` holds, if it is another than before. A blank file takes no keys
/// away while `in_force` of them are in force: it may be about to be written.
pub(crate) fn keys_of(
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
fn open_plan(terms: &Arc<Terms>, ground: &Ground, old: Option<&Rules>) -> Door {
    if let Some(Rules { door: Door::OpenPlan(known, clients), ground: before, .. }) = old
        && known.plan == terms.plan
        && before.max_batch == ground.max_batch
        && before.units == ground.units
    {
        return Door::OpenPlan(Arc::clone(known), Arc::clone(clients));
    }
    Door::OpenPlan(Arc::clone(terms), Arc::new(PerAddress::new()))
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
