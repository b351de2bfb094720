//! API keys, plans, rate limits and quotas. The lookup of an API key gives a [`Principal`], which authorizes, limits
//! and charges the calls of its caller.
//!
//! The gateway knows neither HTTP routes nor nodes. A request keeps the principal that it got at its start, so a
//! reload, which replaces the whole key table, changes nothing under it; the new principal of a key shares the limiter
//! state of the old one. Keys are looked up by their SHA-256, so the time of a lookup reveals nothing about a key.

mod address;
mod clock;
pub mod keys;
mod known_slots;
mod lease;
mod limits;
mod looks;
mod plan;
mod principal;
mod quota;
mod replicas;
mod snapshot;
#[cfg(test)]
mod tests;
pub(crate) mod thousandths;
mod usage;
pub(crate) mod usage_file;
mod usage_lock;
mod watching;
mod write;

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::config::watch::{LOOK_EVERY, NewContent, Watched};
use crate::error::Error;
use crate::limiter::{Limiter, Rate};
use crate::low_priority::{self, Worker};
use crate::redis_store::Store;
use crate::telemetry::events::EventKind;
use crate::telemetry::metrics::KeyState;
use crate::telemetry::{AuthFailure, AuthFile, Metrics, ReloadResult};
use clock::{Period, WallClock};
use keys::file::KeyFile;
use keys::{ApiKey, KeyFileError, KeyHash, Revocations};
use limits::PlanLimits;
use quota::Ledger;
use replicas::{LeaseClient, LeaseQueue};
use snapshot::{AccessMode, KeySnapshot, KeyTable, PrincipalContext, read_keys, take_snapshot};

pub(crate) use address::PerAddress;
pub(crate) use clock::is_clock_set;
pub use known_slots::KnownSlots;
pub use principal::Principal;
pub use quota::UsageError;
pub use usage::Usage;
pub use usage_lock::UsageLock;
pub(crate) use write::{check_writable, create_private};

/// The interval at which the key file is checked, the usage file is written if it is due, and the wall clock is read.
const TICK: Duration = LOOK_EVERY;
/// The time after which work on a file fails, because its disk does not answer.
const FILE_PATIENCE: Duration = Duration::from_secs(5);
const NO_ANSWER: &str = "the file has not answered for five seconds";
/// The maximum length of a text that is looked up as a key, in bytes. Keys that slotfront generates are shorter.
pub(crate) const MAX_KEY: usize = 128;
const MINUTE: Duration = Duration::from_mins(1);

/// The reason why the gateway cannot start or reload.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("auth.keys_file: {0}")]
    Keys(#[from] KeyFileError),
    /// The usage file cannot be read, or is invalid.
    #[error(transparent)]
    Usage(#[from] UsageError),
}

/// Authenticates callers, and holds their plans, limits and quotas.
pub struct Gateway {
    snapshot: ArcSwap<KeySnapshot>,
    /// The key snapshots that newer ones have replaced. Requests may still be reading them.
    superseded: Mutex<Vec<Arc<KeySnapshot>>>,
    clock: Arc<WallClock>,
    ledger: Arc<Ledger>,
    metrics: Arc<Metrics>,
    pub(crate) key_worker: Worker,
    /// The watched key file. `None` if none is configured. The lock is held while a new snapshot of the keys is built.
    keys_file: Mutex<Option<Watched>>,
    /// The client that reserves calls of the shared rates in advance, and the queue of its next requests to the
    /// store. `None` without a shared store, and once [`Gateway::share`] was called.
    leases: Mutex<Option<(Arc<LeaseClient>, LeaseQueue)>>,
}

impl Gateway {
    /// Creates the gateway that `config` describes, which counts in `metrics`. In the mode `keys`, every request is
    /// refused while the key file is missing.
    ///
    /// # Errors
    /// The key file or the usage file exists and is invalid or unreadable.
    pub fn new(config: &Config, metrics: Arc<Metrics>) -> Result<Self, GatewayError> {
        let clock = Arc::new(WallClock::new(Timestamp::now()));
        let ledger = Arc::new(Ledger::open(config.auth.usage_file.as_deref())?);
        let leases = config.shared.as_ref().map(|_| LeaseClient::new());
        let client = leases.as_ref().map(|(client, _)| Arc::clone(client));
        let context = PrincipalContext::new(
            config,
            Arc::clone(&clock),
            Arc::clone(&ledger),
            Arc::clone(&metrics),
            client,
        );
        let read = |path: &Path| {
            let mut file = Watched::new(path);
            let text = file.look().map(|new| new.map(|new| new.text));
            (file, text)
        };
        let (snapshot, watched) = take_snapshot(config, Arc::new(context), None, read)?;
        Ok(Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            superseded: Mutex::default(),
            clock,
            ledger,
            metrics,
            key_worker: Worker::start(),
            keys_file: Mutex::new(watched),
            leases: Mutex::new(leases),
        })
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Starts background tasks that share rates and quotas with all gateways that use `store`. The tasks run until
    /// `stop`. Does nothing if no shared store is configured.
    pub fn share(&self, store: &Arc<Store>, tasks: &TaskTracker, stop: &CancellationToken) {
        let leases = self.leases.lock().take();
        if let Some((client, queue)) = leases {
            client.connect(Arc::clone(store));
            replicas::lease(queue, tasks, stop);
            let (ledger, clock) = (Arc::clone(&self.ledger), Arc::clone(&self.clock));
            replicas::book(Arc::clone(store), ledger, clock, tasks, stop);
        }
    }

    /// Puts `config` in force, completely or not at all. The state of limits and quotas carries over. A new path
    /// of the usage file has no effect before a restart. If the key file has keys in force and is being changed,
    /// waits until the file has settled; what it revokes meanwhile is revoked at once. May block.
    ///
    /// # Errors
    /// The key file cannot be read or is invalid, for example because it names a removed plan.
    pub fn replace(&self, config: &Config) -> Result<(), GatewayError> {
        self.replace_settled(config, || std::thread::sleep(TICK))
    }

    /// Implements [`Self::replace`]. `pause` is called between two reads of a key file that may be half written.
    fn replace_settled(&self, config: &Config, mut pause: impl FnMut()) -> Result<(), GatewayError> {
        let mut keys_file = self.keys_file.lock();
        let old = self.snapshot.load();
        let context = old.context.with(config);
        let before = keys_file.as_ref();
        let read = |path: &Path| {
            let known = before.filter(|before| before.path() == path);
            let mut file = known.map_or_else(|| Watched::new(path), Watched::anew);
            let pause = |half: &str| {
                self.revoke(half);
                pause();
            };
            let whole = |new: Option<NewContent>| new.map(|new| new.text);
            let text = if old.keys_of_file() > 0 { file.settle(pause) } else { file.look().map(whole) };
            (file, text)
        };
        let (snapshot, watched) = take_snapshot(config, Arc::new(context), Some(&old), read)?;
        self.put(snapshot);
        *keys_file = watched;
        Ok(())
    }

    /// Puts `snapshot` in force, and keeps the replaced snapshot until no request reads it. A request that freed a
    /// large key table would be slow.
    fn put(&self, snapshot: KeySnapshot) {
        let snapshot = Arc::new(snapshot);
        let before = self.snapshot.swap(Arc::clone(&snapshot));
        let is_in_force = |id: &str| snapshot.table().is_some_and(|table| table.named(id).is_some());
        self.ledger.forget(Period::of(self.clock.wall(Instant::now())), is_in_force);
        self.superseded.lock().push(before);
        self.free_superseded();
    }

    /// Frees the replaced key snapshots that no request reads. No new request can reach a replaced snapshot.
    fn free_superseded(&self) {
        let mut superseded = self.superseded.lock();
        superseded.retain(|snapshot| Arc::strong_count(snapshot) > 1);
    }

    /// Returns true if callers need no key (mode `open`).
    pub fn is_open(&self) -> bool {
        !matches!(self.snapshot.load().access, AccessMode::Keys(_))
    }

    /// Returns the key file. `None` if none is configured. Waits for a reload in progress.
    pub(crate) fn key_file(&self) -> Option<KeyFile> {
        let watched = self.keys_file.lock();
        watched.as_ref().map(|watched| KeyFile::new(watched.path()))
    }

    pub(crate) fn plans(&self) -> Vec<String> {
        self.snapshot.load().context.plans.keys().cloned().collect()
    }

    /// Returns true if `key` is in the key table, even if it is expired or revoked.
    pub(crate) fn holds(&self, key: &str) -> bool {
        self.snapshot.load().table().is_some_and(|table| table.by_hash.contains_key(&KeyHash::of(key)))
    }

    /// Returns true if the key with this id is revoked, or is not in the key table. A revoked key need not be in the
    /// table.
    pub(crate) fn is_revoked(&self, id: &str) -> bool {
        self.snapshot.load().table().and_then(|table| table.named(id)).is_none_or(|key| key.validity.revoked)
    }

    pub(crate) fn is_in_force(&self, key: &ApiKey) -> bool {
        let snapshot = self.snapshot.load();
        snapshot.table().and_then(|table| table.named(&key.id)).is_some_and(|known| known.is(key))
    }

    /// Returns the usage of the key with this id. `None` if the key is not in the key table.
    pub(crate) fn usage_of(&self, id: &str) -> Option<Usage> {
        self.snapshot.load().table().and_then(|table| Usage::of(table.named(id)?, Instant::now()))
    }

    /// Sets the units that the key with this id has used of its quotas of the day and the month, on all gateways. `None`
    /// leaves one as it is. Returns false if the key is not in the key table.
    pub(crate) fn set_usage(&self, id: &str, units: [Option<f64>; 2]) -> bool {
        let snapshot = self.snapshot.load();
        let limits = snapshot.table().and_then(|table| table.named(id)?.limits.as_ref());
        let period = Period::of(self.clock.wall(Instant::now()));
        limits.inspect(|limits| limits.used.set(period, units, self.ledger.booker())).is_some()
    }

    /// Returns what the metrics tell of the key with this id. `None` if it is not in the key table, or is revoked. A caller
    /// without a key has no name.
    pub(crate) fn key_state(&self, id: &str) -> Option<KeyState> {
        let snapshot = self.snapshot.load();
        match snapshot.table() {
            Some(table) => table.named(id).filter(|key| !key.validity.revoked).map(Principal::state),
            None => (id == principal::ANONYMOUS).then(KeyState::default),
        }
    }

    /// Returns each key that has used `least` or more of a quota, as a share, with its id, its name, and the used shares of the
    /// quotas of the day and the month.
    pub(crate) fn quotas_used(&self, least: f64) -> Vec<(String, String, [f64; 2])> {
        let snapshot = self.snapshot.load();
        let keys = snapshot.table().into_iter().flat_map(KeyTable::principals);
        let used = |key: &Principal| {
            let shares = key.quota_shares().map(Option::unwrap_or_default);
            let is_shown = shares.iter().any(|share| *share >= least);
            is_shown.then(|| (key.id.to_string(), key.name.to_string(), shares))
        };
        keys.filter_map(used).collect()
    }

    /// Returns the caller that `key` identifies. `client` is the caller's address. An unknown address (`None`) is on no
    /// list of allowed addresses. `origin` is the value of `Origin`, which only browsers send.
    ///
    /// # Errors
    /// - [`Error::Unauthorized`] for a key that is unknown, expired or revoked. The error does not tell which.
    /// - [`Error::Forbidden`] for a valid key used from a wrong address or origin.
    /// - [`Error::Limited`] instead of these two, after too many failures from one address. Such failures never
    ///   refuse a valid key that is used from an allowed address and origin.
    pub fn authenticate(
        &self,
        key: &str,
        client: Option<IpAddr>,
        origin: Option<&str>,
        now: Instant,
    ) -> Result<Arc<Principal>, Error> {
        let snapshot = self.snapshot.load();
        // Failures do not count towards the key's rate. Otherwise a stolen key could exhaust its owner's rate.
        self.identify(&snapshot, (key, client, origin), now).map_err(|failure| self.refuse(failure, client))
    }

    /// Refuses a request of the address `client` that names two keys.
    pub fn refuse_two_keys(&self, client: Option<IpAddr>) -> Error {
        self.refuse(AuthFailure::TwoKeys, client)
    }

    fn refuse(&self, failure: AuthFailure, client: Option<IpAddr>) -> Error {
        if let Err(limited) = self.count_stranger(client) {
            return limited;
        }
        self.metrics.auth_failures.at(failure).inc();
        match failure {
            AuthFailure::Suspended => Error::Forbidden("a call while it is suspended".to_owned()),
            AuthFailure::Origin => Error::Forbidden("this origin".to_owned()),
            AuthFailure::Address if client.is_some() => Error::Forbidden("this address".to_owned()),
            AuthFailure::Address => Error::Forbidden("an unknown client address".to_owned()),
            AuthFailure::TwoKeys => Error::TwoKeys,
            _ => Error::Unauthorized,
        }
    }

    /// Checks that the address `client` may ask for what needs no key.
    ///
    /// # Errors
    /// As for [`Self::authenticate`], if `gateway.deny` refuses the address.
    pub(crate) fn admit_stranger(&self, client: Option<IpAddr>) -> Result<(), Error> {
        let is_denied = self.snapshot.load().context.denies(client);
        if is_denied { Err(self.refuse(AuthFailure::Address, client)) } else { Ok(()) }
    }

    /// Counts a request of the address `client` that has no valid key.
    ///
    /// # Errors
    /// [`Error::Limited`] after too many of them.
    pub(crate) fn count_stranger(&self, client: Option<IpAddr>) -> Result<(), Error> {
        let context = Arc::clone(&self.snapshot.load().context);
        let per_minute = context.failed_per_minute;
        let make = || Limiter::new(Rate::new(per_minute, MINUTE, per_minute));
        context.failed.get(client, make).take().map_err(|retry_after| {
            self.metrics.auth_failures.at(AuthFailure::Limited).inc();
            let limit = format!("{per_minute} requests without a valid API key a minute");
            Error::Limited { limit, reason: "failed_keys", retry_after }
        })
    }

    /// Returns the caller that a key, which was valid before, identifies now. `None` if it is not valid any more, which is
    /// no failure of the client.
    pub fn authenticate_again(
        &self,
        key: &str,
        client: Option<IpAddr>,
        origin: Option<&str>,
        now: Instant,
    ) -> Option<Arc<Principal>> {
        self.identify(&self.snapshot.load(), (key, client, origin), now).ok()
    }

    fn identify(
        &self,
        snapshot: &KeySnapshot,
        (key, client, origin): (&str, Option<IpAddr>, Option<&str>),
        now: Instant,
    ) -> Result<Arc<Principal>, AuthFailure> {
        if snapshot.context.denies(client) {
            return Err(AuthFailure::Address);
        }
        let table = match &snapshot.access {
            AccessMode::Open(everybody) => return Ok(Arc::clone(everybody)),
            AccessMode::OpenPlan(terms, clients) => {
                let context = &snapshot.context;
                let holder = || format!("address {}", address::client_name(client));
                let limits = || {
                    PlanLimits::new(
                        Arc::clone(terms),
                        None,
                        Arc::default(),
                        &holder(),
                        context.lease_client.as_ref(),
                    )
                };
                return Ok(clients.get(client, || Principal::anonymous(Some(limits()), context)));
            }
            AccessMode::Keys(table) => table,
        };
        let hash = (key.len() <= MAX_KEY).then(|| KeyHash::of(key));
        let known = hash.and_then(|hash| Some((hash, table.by_hash.get(&hash)?)));
        let (hash, principal) = known.ok_or(AuthFailure::Unknown)?;
        principal.validity.check(&hash, client, origin, || self.clock.latest(now))?;
        Ok(Arc::clone(principal))
    }

    /// Starts background tasks with one round each second, until `stop`: one reads the wall clock, one a changed key file,
    /// and one writes the usage file. What guards access never waits for a disk, so none of them waits for another.
    pub fn watch(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        let (clock, ended) = (Arc::clone(&self.clock), stop.clone());
        tasks.spawn(async move {
            while ended.run_until_cancelled(tokio::time::sleep(TICK)).await.is_some() {
                clock.set(Timestamp::now());
            }
        });
        self.work_on(AuthFile::Keys, self.key_worker.clone(), Self::follow_key_file, tasks, stop);
        self.work_on(AuthFile::Usage, Worker::start(), Self::write_usage, tasks, stop);
    }

    /// Starts a background task that does `round` each second, and tells if one lasts too long.
    fn work_on(
        self: &Arc<Self>,
        file: AuthFile,
        worker: Worker,
        round: fn(&Self),
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let (gateway, stop) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            while stop.run_until_cancelled(tokio::time::sleep(TICK)).await.is_some() {
                let of = Arc::clone(&gateway);
                // The work blocks, and a large key file takes long. A panic ends only this round.
                let mut work = pin!(worker.run(move || round(&of)));
                let done = if let Ok(done) = tokio::time::timeout(FILE_PATIENCE, &mut work).await {
                    done
                } else {
                    gateway.note(file, Some(&NO_ANSWER));
                    work.await
                };
                if done.is_none() {
                    gateway.note(file, Some(&"its work has panicked, or has no thread"));
                }
            }
        });
    }

    /// Puts a changed key file in force. May block.
    fn follow_key_file(&self) {
        self.follow_keys(Watched::look_again);
        self.free_superseded();
        self.note(AuthFile::Keys, None);
    }

    /// Writes the usage file. May block.
    fn write_usage(&self) {
        let saved = self.ledger.save(self.clock.wall(Instant::now()));
        self.note(AuthFile::Usage, saved.as_ref().err().map(|error| error as _));
    }

    /// Notes why work on `file` fails, or that it does not. Logs the first of several failures in a row.
    fn note(&self, file: AuthFile, why: Option<&dyn Display>) {
        let failing = self.metrics.file_failing.at(file);
        match (why, failing.get()) {
            (Some(why), 0) => tracing::error!(
                %file,
                %why,
                "work on auth.{file}_file fails: until it goes on, no change of the keys is seen, or a crash would lose the \
                 units used since the last write"
            ),
            (None, 1) => tracing::info!(%file, "work on auth.{file}_file goes on"),
            _ => {}
        }
        failing.set(why.is_some().into());
    }

    pub(crate) fn failing_files(&self) -> impl Iterator<Item = String> {
        let failing = AuthFile::ALL.into_iter().filter(|file| self.metrics.file_failing.at(*file).get() != 0);
        failing.map(|file| format!("auth.{file}_file fails; the log says why"))
    }

    /// Writes the usage file a last time, at a stop, which a disk that hangs holds up for some seconds at most.
    pub(crate) async fn save_last(self: &Arc<Self>) {
        let gateway = Arc::clone(self);
        let save = low_priority::run(move || gateway.ledger.save(gateway.clock.wall(Instant::now())));
        let why = match tokio::time::timeout(FILE_PATIENCE, save).await {
            Ok(Some(Ok(()))) => return,
            Ok(Some(Err(error))) => error.to_string(),
            Ok(None) | Err(_) => NO_ANSWER.to_owned(),
        };
        tracing::error!(%why, "stopping, but the usage file cannot be written; units used since its last write are lost");
    }

    /// Reads the key file at once, because this process has just changed the file. May block.
    pub(crate) fn take_keys(&self) {
        self.follow_keys(Watched::look);
    }

    /// Puts the keys of the key file in force if `look` returns a new text. If the file is faulty or may be half written,
    /// only its revocations take effect. May block.
    fn follow_keys(&self, look: impl FnOnce(&mut Watched) -> io::Result<Option<NewContent>>) {
        let mut keys_file = self.keys_file.lock();
        let Some(watched) = keys_file.as_mut() else { return };
        let text = match look(watched) {
            Ok(Some(NewContent { text, is_whole: false })) => {
                self.revoke(&text);
                return;
            }
            look => look.map(|new| new.map(|new| new.text)),
        };
        let old = self.snapshot.load();
        match read_keys(&text, watched.path(), &old.context.plans, old.keys_of_file()) {
            Ok(None) => {}
            Ok(Some(keys)) => {
                let snapshot = old.with_keys(keys);
                let count = snapshot.keys();
                // So that it is freed at once.
                drop(old);
                self.put(snapshot);
                self.metrics.key_file_reads.at(ReloadResult::Applied).inc();
                tracing::info!(keys_file = %watched.path().display(), keys = count, "key file loaded");
                self.metrics.events.note(EventKind::Keys, format!("{count} keys are in force"));
            }
            Err(error) => {
                self.metrics.key_file_reads.at(ReloadResult::Rejected).inc();
                let revoked = text.ok().flatten().map_or(0, |text| self.revoke(&text));
                self.metrics.events.note(EventKind::Keys, "the key file was refused; the log says why");
                tracing::error!(
                    %error,
                    revoked,
                    "key file refused: the previous keys stay in force, except those that the refused file revokes"
                );
            }
        }
    }

    /// Makes the keys invalid that `text` revokes, a key file that is faulty or may be half written. Returns their
    /// number.
    fn revoke(&self, text: &str) -> usize {
        let old = self.snapshot.load();
        let Some(snapshot) = old.without_keys(&Revocations::read(text)) else { return 0 };
        let revoked = old.keys() - snapshot.keys();
        self.put(snapshot);
        revoked
    }
}
