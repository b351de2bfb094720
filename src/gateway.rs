//! Who may call, and how often: a raw key becomes a [`Principal`], and the principal admits, limits and books.
//!
//! Knows neither HTTP routes nor nodes. Everything that a request needs is in its principal: a reload swaps the whole
//! table at once, requests under way keep the principal that they began with, and the state of its limits is shared
//! with its successor. A key is looked up by its SHA-256, so timing tells nothing about keys.

mod address;
mod clock;
mod global_rate;
pub mod keys;
mod lease;
mod limit;
mod plan;
mod principal;
mod quota;
mod seen;
mod share;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;
mod usage;
mod write;

use std::io;
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

use crate::config::Config;
use crate::config::watch::Watched;
use crate::error::Error;
use crate::low_priority;
use crate::shared::Store;
use crate::telemetry::{AuthFailure, Metrics, ReloadResult};
use clock::Clock;
use keys::file::KeyFile;
use keys::{KeyFileError, KeyHash};
use lease::{LeaseClient, LeaseQueue};
use limit::{Limit, State};
use principal::PlanLimits;
use quota::{Ledger, Period, Used};
use snapshot::{AccessMode, KeySnapshot, read_keys, take_snapshot};
use table::KeyTableContext;

pub(crate) use address::PerAddress;
pub use principal::Principal;
pub use quota::UsageError;
pub use seen::Shown;
pub(crate) use share::Share;
pub use share::{SharePermit, SharedBytes};
pub use usage::Usage;

/// How often files are looked at and written, and clocks compared.
const TICK: Duration = Duration::from_secs(1);
/// Longer than any key: more is not worth a hash.
pub(crate) const MAX_KEY: usize = 128;
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
    snapshot: ArcSwap<KeySnapshot>,
    /// Snapshots that were replaced while a request was reading them.
    superseded: Mutex<Vec<Arc<KeySnapshot>>>,
    clock: Arc<Clock>,
    ledger: Arc<Ledger>,
    registry: Arc<OnceLock<Arc<Metrics>>>,
    /// The key file. The lock is held while a new snapshot is made.
    keys_file: Mutex<Option<Watched>>,
    /// Whether the usage file could not be written the last time.
    unsaved: AtomicBool,
    /// The way to the shared store and the leases that wait for it, until the store is known.
    leases: Mutex<Option<(Arc<LeaseClient>, LeaseQueue)>>,
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
        let leases = config.shared.as_ref().map(|_| LeaseClient::new(&clock));
        let context = KeyTableContext {
            clock: Arc::clone(&clock),
            ledger: Arc::clone(&ledger),
            registry: Arc::clone(&registry),
            max_batch: config.server.max_batch,
            units: Arc::new(config.units.clone()),
            lease_client: leases.as_ref().map(|(client, _)| Arc::clone(client)),
        };
        let read = |path: &Path| {
            let mut file = Watched::new(path);
            let text = file.look();
            (file, text)
        };
        let (snapshot, watched) = take_snapshot(config, context, None, read)?;
        Ok(Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            superseded: Mutex::default(),
            clock,
            ledger,
            registry,
            keys_file: Mutex::new(watched),
            unsaved: AtomicBool::new(false),
            leases: Mutex::new(leases),
        })
    }

    /// Says where the gateway counts.
    pub fn report_to(&self, metrics: &Arc<Metrics>) {
        // Told twice, the first holds.
        let _ = self.registry.set(Arc::clone(metrics));
    }

    /// Counts rates and units together with all who have `store`, as one of `tasks`, until `stop`.
    pub fn share(&self, store: &Arc<Store>, tasks: &TaskTracker, stop: &CancellationToken) {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((client, queue)) = leases {
            client.connect(Arc::clone(store));
            global_rate::lease(queue, tasks, stop);
            let (ledger, clock) = (Arc::clone(&self.ledger), Arc::clone(&self.clock));
            global_rate::book(Arc::clone(store), ledger, clock, tasks, stop);
        }
    }

    /// Puts another configuration in force, all of it or nothing. Limits and quotas go on; the usage file stays the
    /// one of the start. A key file that was just written is waited for, as long as keys are in force. May block.
    ///
    /// # Errors
    /// The key file cannot be taken, for example since a plan is gone that keys have.
    pub fn replace(&self, config: &Config) -> Result<(), GatewayError> {
        self.replace_settled(config, || std::thread::sleep(TICK))
    }

    /// The same, with a `pause` between two looks at a key file that may be in the middle of being written.
    fn replace_settled(&self, config: &Config, pause: impl FnMut()) -> Result<(), GatewayError> {
        let mut keys_file = self.keys_file.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.snapshot.load();
        let (max_batch, units) = (config.server.max_batch, Arc::new(config.units.clone()));
        let context = KeyTableContext { max_batch, units, ..old.context.clone() };
        let before = keys_file.as_ref();
        let read = |path: &Path| {
            let known = before.filter(|before| before.path() == path);
            let mut file = known.map_or_else(|| Watched::new(path), Watched::anew);
            let text = if old.keys_of_file() > 0 { file.settle(pause) } else { file.look() };
            (file, text)
        };
        let (snapshot, watched) = take_snapshot(config, context, Some(&old), read)?;
        self.put(snapshot);
        *keys_file = watched;
        Ok(())
    }

    /// Puts `snapshot` in force. The one before is kept until no request reads it: to free a hundred thousand keys takes
    /// a while, and is no request's work.
    fn put(&self, snapshot: KeySnapshot) {
        let snapshot = Arc::new(snapshot);
        let before = self.snapshot.swap(Arc::clone(&snapshot));
        self.free_superseded();
        let is_in_force = |id: &str| snapshot.table().is_some_and(|table| table.named(id).is_some());
        self.ledger.forget(Period::of(self.clock.wall(Instant::now())), is_in_force);
        self.superseded.lock().unwrap_or_else(PoisonError::into_inner).push(before);
    }

    /// Frees the snapshots that no request reads any more. None can begin to.
    fn free_superseded(&self) {
        let mut superseded = self.superseded.lock().unwrap_or_else(PoisonError::into_inner);
        superseded.retain(|snapshot| Arc::strong_count(snapshot) > 1);
    }

    /// Whether anybody may call, with any key or none.
    pub fn is_open(&self) -> bool {
        !matches!(self.snapshot.load().access, AccessMode::Keys(_))
    }

    /// The file that the keys come from, if they do. May wait for a reload.
    pub(crate) fn key_file(&self) -> Option<KeyFile> {
        let watched = self.keys_file.lock().unwrap_or_else(PoisonError::into_inner);
        watched.as_ref().map(|watched| KeyFile::new(watched.path()))
    }

    /// The plans in force, by name.
    pub(crate) fn plans(&self) -> Vec<String> {
        self.snapshot.load().plans.keys().cloned().collect()
    }

    /// Whether this is a key in force, if only to be told that it has ended.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.snapshot.load().table().is_some_and(|table| table.get(&KeyHash::of(key)).is_some())
    }

    /// Whether the key of this id is in force as a revoked one.
    pub(crate) fn is_revoked(&self, id: &str) -> bool {
        self.snapshot.load().table().and_then(|table| table.named(id)).is_some_and(|key| key.validity.revoked)
    }

    /// What the key of this id has used.
    pub(crate) fn usage_of(&self, id: &str) -> Option<Usage> {
        self.snapshot.load().table().and_then(|table| Usage::of(table.named(id)?, Instant::now()))
    }

    /// Forgets what slots were shown to whom: they were another cluster's.
    pub fn forget_shown(&self) {
        let forget = |principal: &Principal| {
            if let Some(limits) = &principal.limits {
                limits.forget_shown();
            }
        };
        match &self.snapshot.load().access {
            AccessMode::Keys(table) => table.principals().for_each(forget),
            AccessMode::Open(everybody) => forget(everybody),
            AccessMode::OpenPlan(_, clients) => clients.each(forget),
        }
    }

    /// Who is calling with this key, from this address and, in a browser, from a page of this origin. `None` is an
    /// address that is not known: it is in no address list.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] for a key that is unknown, expired or revoked, with no hint which;
    /// [`Error::Forbidden`] for a key that does not hold there; [`Error::Limited`] instead of either, when they happen
    /// too often from one address. A key that holds is never refused for the failures of others at its address.
    pub fn authenticate(
        &self,
        key: &str,
        client: Option<IpAddr>,
        origin: Option<&str>,
        now: Instant,
    ) -> Result<Arc<Principal>, Error> {
        let snapshot = self.snapshot.load();
        let table = match &snapshot.access {
            AccessMode::Open(everybody) => return Ok(Arc::clone(everybody)),
            AccessMode::OpenPlan(terms, clients) => {
                let context = &snapshot.context;
                let lease = || context.lease(&format!("address {}", address::show(client)));
                let limits = || PlanLimits::new(Arc::clone(terms), None, Arc::new(Used::default()), lease);
                return Ok(clients.get(client, || context.anonymous(Some(limits()))));
            }
            AccessMode::Keys(table) => table,
        };
        let hash = (key.len() <= MAX_KEY).then(|| KeyHash::of(key));
        let known = hash.and_then(|hash| Some((hash, table.get(&hash)?)));
        let checked = known.ok_or(AuthFailure::Unknown).and_then(|(hash, principal)| {
            principal.validity.check(&hash, client, origin, || self.clock.wall(now))?;
            Ok(Arc::clone(principal))
        });
        // Not towards the key's rate, which is its owner's: whoever has stolen the key could use it up from anywhere.
        checked.map_err(|failure| {
            let per_minute = snapshot.failed_per_minute;
            let make = || Limit::new(per_minute, MINUTE, per_minute, State::default());
            if let Err(retry_after) = snapshot.failed.get(client, make).take(self.clock.steady(now)) {
                let limit = format!("{per_minute} failed API keys a minute");
                let error = Error::Limited { limit, reason: "failed_keys", retry_after };
                return self.fail(AuthFailure::Limited, error);
            }
            let error = match failure {
                AuthFailure::Origin => Error::Forbidden("this origin".to_owned()),
                AuthFailure::Address if client.is_some() => Error::Forbidden("this address".to_owned()),
                AuthFailure::Address => Error::Forbidden("an unknown client address".to_owned()),
                AuthFailure::Unknown | AuthFailure::Expired | AuthFailure::Revoked | AuthFailure::Limited => {
                    Error::Unauthorized
                }
            };
            self.fail(failure, error)
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
                let _ = low_priority::run(move || gateway.tick(running)).await;
            }
        });
    }

    /// Writes the use that is not written yet. May block.
    pub(crate) fn save(&self) {
        if let Err(error) = self.ledger.save(Timestamp::now()) {
            tracing::error!(%error, "units used are not written, and are lost");
        }
    }

    /// What is done once a second; `running` until the last time.
    fn tick(&self, running: bool) {
        let wall = Timestamp::now();
        self.clock.set(wall);
        self.follow_keys(Watched::look_twice);
        self.free_superseded();
        let saved = if running { self.ledger.save_in_pace(wall) } else { Some(self.ledger.save(wall)) };
        match (saved, self.unsaved.load(Ordering::Relaxed)) {
            // Told once, until it works again.
            (Some(Err(error)), false) => {
                self.unsaved.store(true, Ordering::Relaxed);
                tracing::error!(%error, "units used are not written, and would be lost in a crash");
            }
            (Some(Ok(())), true) => {
                self.unsaved.store(false, Ordering::Relaxed);
                tracing::info!("units used are written again");
            }
            (Some(Err(_)), true) | (Some(Ok(())), false) | (None, _) => {}
        }
    }

    /// Takes the key file that was changed here, as whole as it was written. May block.
    pub(crate) fn take_keys(&self) {
        self.follow_keys(Watched::look);
    }

    /// Takes the key file if `look` finds another; refuses it whole if anything is wrong with it. May block.
    fn follow_keys(&self, look: impl FnOnce(&mut Watched) -> io::Result<Option<String>>) {
        let mut keys_file = self.keys_file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(watched) = keys_file.as_mut() else { return };
        let old = self.snapshot.load();
        let text = look(watched);
        match read_keys(text, watched.path(), &old.plans, old.keys_of_file()) {
            Ok(None) => {}
            Ok(Some(keys)) => {
                let snapshot = old.with_keys(keys);
                let count = snapshot.keys();
                self.put(snapshot);
                self.count_read(ReloadResult::Applied);
                tracing::info!(keys_file = %watched.path().display(), keys = count, "key file taken");
            }
            Err(error) => {
                self.count_read(ReloadResult::Rejected);
                tracing::error!(%error, "key file refused; the keys before it stay in force");
            }
        }
    }

    fn count_read(&self, result: ReloadResult) {
        if let Some(metrics) = self.registry.get() {
            metrics.key_file_reads.at(result).inc();
        }
    }
}
