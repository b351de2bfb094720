//! All that one request decides by, made from the configuration and the key file, and then never changed.

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
}

/// The rules of `config`, going on from `old`, and the key file to watch.
pub(crate) fn rules(
    config: &Config,
    ground: Ground,
    old: Option<&Rules>,
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
                let watched = watched.insert(Watched::new(path));
                match read_keys(watched, &plans)? {
                    Some(read) => keys = read,
                    None => missing(path, old.map_or(0, Rules::keys))?,
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

/// The keys of the file, if it is another than before.
pub(crate) fn read_keys(
    watched: &mut Watched,
    plans: &Plans,
) -> Result<Option<Vec<keys::Key>>, KeyFileError> {
    let error = |path: &Path, problems| KeyFileError { path: path.to_path_buf(), problems };
    let text =
        watched.look().map_err(|e| error(watched.path(), vec![format!("cannot be read: {}", e.kind())]))?;
    text.map(|text| keys::parse(&text, |plan| plans.contains_key(plan)))
        .transpose()
        .map_err(|problems| error(watched.path(), problems))
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
