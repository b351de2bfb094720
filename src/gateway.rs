//! Who may call, and how often: a raw key becomes a [`Principal`], and the principal admits, limits and books.
//!
//! Knows neither HTTP routes nor nodes. Everything that a request needs is in its principal: a reload swaps the whole
//! table at once, requests under way keep the principal that they began with, and the state of its limits is shared
//! with its successor. A key is looked up by its SHA-256, so timing tells nothing about keys.

mod address;
mod clock;
pub mod keys;
mod limit;
mod plan;
mod principal;
mod quota;
mod seen;
mod share;
mod table;
#[cfg(test)]
mod tests;
mod usage;
mod write;

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::watch::Watched;
use crate::config::{AuthMode, Config};
use crate::error::Error;
use crate::telemetry::{AuthFailure, Metrics};
use address::PerAddress;
use clock::Clock;
use keys::file::KeyFile;
use keys::{KeyFileError, KeyHash};
use limit::{Limit, State};
use plan::{Plans, Terms};
use principal::{ANONYMOUS, Bounds, Pass};
use quota::{Ledger, Used};
use table::{Ground, Table};

pub use principal::Principal;
pub use quota::UsageError;
pub use seen::Shown;
pub use share::Held;
pub use usage::Usage;

/// How often files are looked at and written, and clocks compared.
const TICK: Duration = Duration::from_secs(1);
/// Longer than any key: more is not worth a hash.
const MAX_KEY: usize = 128;
const MINUTE: Duration = Duration::from_mins(1);

/// Why the gateway cannot start, or not change.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The key file is refused.
    #[error("auth.keys_file: {0}")]
    Keys(#[from] KeyFileError),
    /// The usage file is refused.
    #[error(transparent)]
    Usage(#[from] UsageError),
}

/// The door: keys, plans, limits, quotas.
pub struct Gateway {
    rules: ArcSwap<Rules>,
    /// Rules that were replaced while a request was reading them.
    retired: Mutex<Vec<Arc<Rules>>>,
    clock: Arc<Clock>,
    ledger: Arc<Ledger>,
    registry: Arc<OnceLock<Arc<Metrics>>>,
    /// The key file; the lock is held by whoever makes new rules.
    keys_file: Mutex<Option<Watched>>,
    /// Whether the usage file could not be written the last time.
    unsaved: AtomicBool,
}

/// All that one request decides by.
struct Rules {
    plans: Plans,
    door: Door,
    ground: Ground,
    dev_key: Option<String>,
    failed_per_minute: u32,
    failed: Arc<PerAddress<Limit>>,
}

/// Who is let in.
enum Door {
    /// Whoever has a key of the table.
    Keys(Table),
    /// Everybody, without limits.
    Open(Arc<Principal>),
    /// Everybody, each client address with the plan's limits.
    OpenPlan(Arc<Terms>, Arc<PerAddress<Principal>>),
}

impl Gateway {
    /// The gateway that `config` describes. A missing key file is no error: nobody can call until it comes.
    ///
    /// # Errors
    /// The key file or the usage file is there, and cannot be taken.
    pub fn new(config: &Config) -> Result<Self, GatewayError> {
        let clock = Arc::new(Clock::new(Timestamp::now()));
        let ledger = Arc::new(Ledger::open(config.auth.usage_file.as_deref())?);
        let registry = Arc::default();
        let ground = Ground {
            clock: Arc::clone(&clock),
            ledger: Arc::clone(&ledger),
            registry: Arc::clone(&registry),
            max_batch: config.server.max_batch,
            units: Arc::new(config.units.clone()),
        };
        let (rules, watched) = rules(config, ground, None)?;
        let (rules, keys_file) = (ArcSwap::from_pointee(rules), Mutex::new(watched));
        let (retired, unsaved) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { rules, retired, clock, ledger, registry, keys_file, unsaved })
    }

    /// Says where the gateway counts.
    pub fn report_to(&self, metrics: &Arc<Metrics>) {
        // Told twice, the first holds.
        let _ = self.registry.set(Arc::clone(metrics));
    }

    /// Puts another configuration in force, all of it or nothing. Limits and quotas go on; the usage file stays the
    /// one of the start.
    ///
    /// # Errors
    /// The key file cannot be taken, for example since a plan is gone that keys have.
    pub fn replace(&self, config: &Config) -> Result<(), GatewayError> {
        let mut keys_file = self.keys_file.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.rules.load();
        let (max_batch, units) = (config.server.max_batch, Arc::new(config.units.clone()));
        let ground = Ground { max_batch, units, ..old.ground.clone() };
        let (rules, watched) = rules(config, ground, Some(&old))?;
        self.put(rules);
        *keys_file = watched;
        Ok(())
    }

    /// Puts `rules` in force. Those before are kept until no request reads them: to free a hundred thousand keys takes
    /// a while, and is no request's work.
    fn put(&self, rules: Rules) {
        let before = self.rules.swap(Arc::new(rules));
        self.free_retired();
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).push(before);
    }

    /// Frees the rules that nobody reads any more; nobody can begin to.
    fn free_retired(&self) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|rules| Arc::strong_count(rules) > 1);
    }

    /// Whether anybody may call, with any key or none.
    pub fn is_open(&self) -> bool {
        !matches!(self.rules.load().door, Door::Keys(_))
    }

    /// The file that the keys come from, if they do. May wait for a reload.
    pub(crate) fn key_file(&self) -> Option<KeyFile> {
        let watched = self.keys_file.lock().unwrap_or_else(PoisonError::into_inner);
        watched.as_ref().map(|watched| KeyFile::new(watched.path()))
    }

    /// The plans in force, by name.
    pub(crate) fn plans(&self) -> Vec<String> {
        self.rules.load().plans.keys().cloned().collect()
    }

    /// Whether this is a key in force, if only to be told that it has ended.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.rules.load().table().is_some_and(|table| table.get(&KeyHash::of(key)).is_some())
    }

    /// Whether the key of this id is in force as a revoked one.
    pub(crate) fn is_revoked(&self, id: &str) -> bool {
        self.rules.load().table().and_then(|table| table.named(id)).is_some_and(|who| who.pass.revoked)
    }

    /// What the key of this id has used.
    pub(crate) fn usage_of(&self, id: &str) -> Option<Usage> {
        self.rules.load().table().and_then(|table| table.named(id)?.usage(Instant::now()))
    }

    /// Forgets what slots were shown to whom: they were another cluster's.
    pub fn forget_shown(&self) {
        let forget = |principal: &Principal| {
            if let Some(bounds) = &principal.bounds {
                bounds.seen.forget();
            }
        };
        match &self.rules.load().door {
            Door::Keys(table) => table.principals().for_each(forget),
            Door::Open(everybody) => forget(everybody),
            Door::OpenPlan(_, clients) => clients.each(forget),
        }
    }

    /// Who is calling with this key, from this address and, in a browser, from a page of this origin.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] for a key that is unknown, expired or revoked, with no hint which;
    /// [`Error::Limited`] instead, when that happens too often from one address; [`Error::Forbidden`] for a key that
    /// does not hold there. A key that holds is never refused for the failures of others at its address.
    pub fn authenticate(
        &self,
        key: &str,
        client: IpAddr,
        origin: Option<&str>,
        now: Instant,
    ) -> Result<Arc<Principal>, Error> {
        let rules = self.rules.load();
        let table = match &rules.door {
            Door::Open(everybody) => return Ok(Arc::clone(everybody)),
            Door::OpenPlan(terms, clients) => {
                let bounds = || Bounds::new(Arc::clone(terms), None, Arc::new(Used::new()));
                return Ok(clients.get(client, || rules.ground.anonymous(Some(bounds()))));
            }
            Door::Keys(table) => table,
        };
        let held = if key.len() > MAX_KEY { None } else { table.get(&KeyHash::of(key)) };
        let checked = held.ok_or(AuthFailure::Unknown).and_then(|held| {
            held.principal.pass.check(held.until, client, origin, self.clock.wall(now))?;
            Ok(Arc::clone(&held.principal))
        });
        checked.map_err(|failure| match failure {
            AuthFailure::Origin => self.fail(failure, Error::Forbidden("this origin".to_owned())),
            AuthFailure::Address => self.fail(failure, Error::Forbidden("this address".to_owned())),
            AuthFailure::Unknown | AuthFailure::Expired | AuthFailure::Revoked | AuthFailure::Limited => {
                let per_minute = rules.failed_per_minute;
                let make = || Limit::new(per_minute, MINUTE, per_minute, State::default());
                match rules.failed.get(client, make).take(self.clock.steady(now)) {
                    Ok(()) => self.fail(failure, Error::Unauthorized),
                    Err(retry_after) => {
                        let limit = format!("{per_minute} failed API keys a minute");
                        self.fail(
                            AuthFailure::Limited,
                            Error::Limited { limit, reason: "failed_keys", retry_after },
                        )
                    }
                }
            }
        })
    }

    fn fail(&self, failure: AuthFailure, error: Error) -> Error {
        if let Some(metrics) = self.registry.get() {
            metrics.auth_failures.at(failure).inc();
        }
        error
    }

    /// Starts what goes on beside the requests: the key file is read when it changes, use is written when there was
    /// any, and the wall clock is followed. A last writing follows `stop`.
    pub fn watch(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        let (gateway, stop) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            let mut running = true;
            while running {
                tokio::select! {
                    () = tokio::time::sleep(TICK) => {}
                    () = stop.cancelled() => running = false,
                }
                let gateway = Arc::clone(&gateway);
                // Files block, and a large key file takes its time; a panic in there ends with this tick.
                let _ = tokio::task::spawn_blocking(move || gateway.tick()).await;
            }
        });
    }

    fn tick(&self) {
        let wall = Timestamp::now();
        self.clock.set(wall);
        self.follow_keys();
        self.free_retired();
        match (self.ledger.save(wall), self.unsaved.load(Ordering::Relaxed)) {
            // Told once, until it works again.
            (Err(error), false) => {
                self.unsaved.store(true, Ordering::Relaxed);
                tracing::error!(%error, "units used are not written, and would be lost in a crash");
            }
            (Ok(()), true) => {
                self.unsaved.store(false, Ordering::Relaxed);
                tracing::info!("units used are written again");
            }
            (Err(_), true) | (Ok(()), false) => {}
        }
    }

    /// Takes the key file if it is another; refuses it whole if anything is wrong with it. May block.
    pub(crate) fn follow_keys(&self) {
        let mut keys_file = self.keys_file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(watched) = keys_file.as_mut() else { return };
        let old = self.rules.load();
        match read_keys(watched, &old.plans) {
            Ok(None) => {}
            Ok(Some(keys)) => {
                let rules = old.with_keys(keys);
                let count = rules.keys();
                self.put(rules);
                tracing::info!(keys_file = %watched.path().display(), keys = count, "key file taken");
            }
            Err(error) => tracing::error!(%error, "key file refused; the keys before it stay in force"),
        }
    }
}

impl Ground {
    fn anonymous(&self, bounds: Option<Bounds>) -> Principal {
        self.principal(Arc::from(ANONYMOUS), bounds, Pass::default())
    }
}

impl Rules {
    /// The same rules for other keys.
    fn with_keys(&self, keys: Vec<keys::Key>) -> Self {
        Self {
            plans: self.plans.clone(),
            door: Door::Keys(table(keys, self.dev_key.as_deref(), &self.plans, Some(self), &self.ground)),
            ground: self.ground.clone(),
            dev_key: self.dev_key.clone(),
            failed_per_minute: self.failed_per_minute,
            failed: Arc::clone(&self.failed),
        }
    }

    fn table(&self) -> Option<&Table> {
        if let Door::Keys(table) = &self.door { Some(table) } else { None }
    }

    fn keys(&self) -> usize {
        self.table().map_or(0, Table::len)
    }
}

/// The rules of `config`, going on from `old`, and the key file to watch.
fn rules(
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
fn read_keys(watched: &mut Watched, plans: &Plans) -> Result<Option<Vec<keys::Key>>, KeyFileError> {
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
