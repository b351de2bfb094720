//! The Redis or Valkey store that several gateways share. A request waits for the store at most `shared.timeout`,
//! and not at all while the store does not answer.
//!
//! This module only provides operations: the cache defines keys and values, and the gateway defines limits. A
//! background task checks each second whether a failed store is back.
//!
//! **Time** is the time of the store's clock, because the clocks of machines differ. A writer stamps a value with
//! a lower bound of the store's time at which it asked a node for the value. A reader gets the store's time at
//! which the value was read. The unknown delay of messages therefore makes an answer look older, never younger.

mod clock;
mod connection;
mod connector;
pub mod generation;
pub mod limits;
pub mod mac;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use redis::{Script, Value};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::breaker::Breaker;
use crate::config;
use crate::telemetry::{Metrics, SharedOperation, SharedResult};
pub use clock::StoreTime;
use clock::{StoreClock, read_time};
use connection::{HealthTask, breaker_settings};
use connector::{Connector, StoreLink};
use generation::StoreGeneration;
use limits::{Booking, LeaseRequest, Leased, Totals};

/// The interval between two checks of the store. Also the time without writes after the store has refused a write.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The text that is stored in place of a block's record while a gateway asks a node for the block. Other gateways then
/// wait for the record for a moment, instead of asking a node, too.
pub const CLAIM: &[u8] = b"claim";

/// The error that reports an invalid `shared.url` or certificate.
#[derive(Debug, thiserror::Error)]
#[error("shared.url: {0}")]
pub struct SharedError(String);

/// The shared store as this gateway uses it: its connection, if there is one, with a circuit breaker, and the operations.
pub struct Store {
    dial: Connector,
    link: ArcSwapOption<StoreLink>,
    breaker: Mutex<Breaker>,
    /// True if the breaker has opened since the last check.
    has_failed: AtomicBool,
    timeout: Duration,
    is_cluster: bool,
    /// The time until which no writes are sent, because the store has refused one. In milliseconds after `started`.
    no_writes_until: AtomicU64,
    started: Instant,
    lost: Notify,
    back: Notify,
    clock: StoreClock,
    namespace: String,
    scripts: Scripts,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
}

struct Scripts {
    get: Script,
    put: Script,
    generation: Script,
    lease: Script,
    book: Script,
    claim: Script,
    set: Script,
}

#[derive(Debug)]
pub struct StoredValues {
    /// The values in the order of the keys. `None` stands for a missing value, and empty bytes for a value that is
    /// not a string.
    pub values: Vec<Option<Bytes>>,
    pub read_at: StoreTime,
    /// The local time at which the request was sent. The store has read the values at this time or later.
    pub asked_at: Instant,
}

/// A value to write.
#[derive(Debug)]
pub struct PutRequest {
    /// The key under which the store keeps the value.
    pub key: String,
    /// The value. Its first 44 bytes are its version, slot and request time. By these bytes the store decides if
    /// it is newer than the stored value.
    pub value: Vec<u8>,
    /// A lower bound of the store's time at which a node was asked for the value.
    pub sent_at: StoreTime,
    /// The lifetime of the value, counted from `sent_at`.
    pub life: Duration,
}

/// The result of a failed operation. The metrics have counted it already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed(pub SharedResult);

impl Store {
    /// Prepares the store of `settings`, without connecting. [`Store::watch`] connects.
    ///
    /// # Errors
    /// The Redis client library does not accept a URL or certificate.
    pub fn new(
        settings: &config::SharedSettings,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
    ) -> Result<Arc<Self>, SharedError> {
        Ok(Arc::new(Self {
            dial: Connector::new(settings).map_err(SharedError)?,
            link: ArcSwapOption::empty(),
            breaker: Mutex::new(Breaker::new(breaker_settings())),
            has_failed: AtomicBool::new(false),
            timeout: settings.timeout,
            is_cluster: settings.cluster,
            no_writes_until: AtomicU64::new(0),
            started: Instant::now(),
            lost: Notify::new(),
            back: Notify::new(),
            clock: StoreClock::new(settings.cluster),
            namespace: settings.namespace.clone(),
            scripts: Scripts {
                get: Script::new(include_str!("redis_store/get.lua")),
                put: Script::new(include_str!("redis_store/put.lua")),
                generation: Script::new(include_str!("redis_store/generation.lua")),
                lease: Script::new(include_str!("redis_store/lease.lua")),
                book: Script::new(include_str!("redis_store/book.lua")),
                claim: Script::new(include_str!("redis_store/claim.lua")),
                set: Script::new(include_str!("redis_store/set.lua")),
            },
            metrics,
            tasks,
        }))
    }

    /// Spawns a task that connects to the store and keeps up the connection until `stop`. The task also reads the
    /// store's clock regularly.
    pub fn watch(self: &Arc<Self>, stop: &CancellationToken) {
        let (task, stop) = (HealthTask::new(Arc::clone(self)), stop.clone());
        self.tasks.spawn(async move { stop.run_until_cancelled(task.run()).await });
    }

    /// Checks that the store answers and accepts reads and writes.
    ///
    /// # Errors
    /// The store does not answer, or refuses a read or write. The error is the reason, without a URL.
    pub async fn probe(self: &Arc<Self>) -> Result<(), &'static str> {
        let mut health = HealthTask::new(Arc::clone(self));
        health.check().await;
        if !self.is_there() {
            return Err(health.why_not());
        }
        let written =
            self.lease("probe", LeaseRequest { used: 0, want: 0, cell: CHECK_INTERVAL, burst: 1 }).await;
        if self.get(&[format!("{}:trial", self.namespace)]).await.is_err() || written.is_err() {
            return Err("it does not allow reads and writes; docs/several-replicas.md lists the permissions");
        }
        Ok(())
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Waits for the next new connection to the store.
    pub async fn connected(&self) {
        self.back.notified().await;
    }

    /// Returns a lower bound of the store's time at the moment `at`. `None` while the store's clock is unknown.
    pub fn time_of(&self, at: Instant) -> Option<StoreTime> {
        self.clock.time_of(at)
    }

    /// Reads the values of `keys`, which must be on one node of a Redis cluster. Counts a failure in the metrics; the
    /// caller must count a success.
    ///
    /// # Errors
    /// The operation fails. The error says how.
    pub async fn get(&self, keys: &[String]) -> Result<StoredValues, Failed> {
        let (operation, asked_at) = (SharedOperation::Get, Instant::now());
        let mut call = self.scripts.get.prepare_invoke();
        for key in keys {
            call.key(key);
        }
        let reply: Vec<Value> = self.read(operation, &call).await?;
        let mut reply = reply.into_iter();
        let read_at = read_time(reply.next(), reply.next());
        let value = |value| match value {
            Value::BulkString(bytes) => Some(Bytes::from(bytes)),
            Value::Nil => None,
            _ => Some(Bytes::new()),
        };
        let values: Vec<_> = reply.map(value).collect();
        let (Some(read_at), true) = (read_at, values.len() == keys.len()) else {
            return Err(self.failed(operation, SharedResult::Refused));
        };
        self.clock.heard(read_at);
        Ok(StoredValues { values, read_at, asked_at })
    }

    /// Writes a value. The store refuses a value that has expired or is not newer than the stored value. The store also
    /// refuses a value if the store's clock is behind the writer's estimate, because the value would look too young. A
    /// refusal is counted, and the function returns `Ok` for it. No client's request waits for this operation.
    ///
    /// # Errors
    /// The operation fails. The error says how.
    pub async fn put(&self, put: &PutRequest) -> Result<(), Failed> {
        let operation = SharedOperation::Put;
        let Some(shows) = self.clock.shows(Instant::now()) else {
            return Err(self.failed(operation, SharedResult::Skipped));
        };
        let mut call = self.scripts.put.key(&put.key);
        call.arg(&put.value[..]).arg(put.sent_at).arg(micros(put.life)).arg(shows);
        let asked_at = Instant::now();
        let kept: String = self.write(operation, put.value.len(), &call).await?;
        self.count(operation, written(&kept), asked_at.elapsed());
        Ok(())
    }

    /// Reads the generation of the answers of the cluster with the genesis hash `genesis`, and raises it if there is a
    /// `purge`, a text without line breaks. `known` is the highest generation that this gateway knows, 0 if none: a store
    /// that has lost its memory takes it from here, or from its clock. The store keeps the generation for `life`. No
    /// client's request waits for this operation.
    ///
    /// # Errors
    /// The operation fails. The error says how.
    pub async fn generation(
        &self,
        genesis: &str,
        known: u64,
        life: Duration,
        purge: Option<&str>,
    ) -> Result<StoreGeneration, Failed> {
        let operation = SharedOperation::Purge;
        let key = format!("{}:generation1:{genesis}", self.namespace);
        let mut call = self.scripts.generation.key(&key);
        call.arg(known).arg(millis(life));
        if let Some(purge) = purge {
            call.arg(purge);
        }
        let asked_at = Instant::now();
        // A store that is too full for new values still tells the generation.
        let (number, purges): (String, String) = match purge {
            Some(_) => self.write(operation, 0, &call).await?,
            None => self.read(operation, &call).await?,
        };
        let Some(found) = StoreGeneration::read(&number, &purges) else {
            return Err(self.failed(operation, SharedResult::Refused));
        };
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(found)
    }

    /// Counts `request.used` calls against a rate limit that all gateways share. Then leases (reserves) further
    /// calls for this gateway. `of` names the limit: the id of an API key, or a client address. No client's
    /// request waits for this operation.
    ///
    /// # Errors
    /// The operation fails. The error says how. The store may have counted the calls all the same.
    pub async fn lease(&self, of: &str, request: LeaseRequest) -> Result<Leased, Failed> {
        let operation = SharedOperation::Limit;
        let key = format!("{}:limit1:{{{of}}}", self.namespace);
        let mut call = self.scripts.lease.key(&key);
        #[expect(clippy::cast_precision_loss, reason = "a period of an hour at most")]
        let micros = request.cell.as_nanos() as f64 / 1000.0;
        call.arg(request.used).arg(request.want).arg(micros).arg(request.burst);
        let asked_at = Instant::now();
        let (calls, left) = self.write(operation, 0, &call).await?;
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(Leased { calls, left })
    }

    /// Adds the quota units of `booking` to the totals of the API key with the id `of`. Returns the totals of its day and
    /// month over all gateways. No client's request waits for this operation.
    ///
    /// # Errors
    /// The operation fails. The error says how. The caller may repeat the booking unchanged, and the store counts
    /// it once.
    pub async fn book(&self, of: &str, booking: &Booking) -> Result<Totals, Failed> {
        let operation = SharedOperation::Quota;
        let Booking { windows: [day, month], units, known, marks, sets, who, number } = booking;
        let key = |of_what: &str| format!("{}:{of_what}:{{{of}}}", self.namespace);
        let mut call = self.scripts.book.key(key("booked"));
        call.key(key(&format!("day{day}"))).key(key(&format!("month{month}")));
        call.arg(units).arg(known).arg(marks).arg(u8::from(*sets)).arg(format!("{who:x}")).arg(number);
        let asked_at = Instant::now();
        let (day, month, day_mark, month_mark) = self.write(operation, 0, &call).await?;
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(Totals { units: [day, month], marks: [day_mark, month_mark] })
    }

    /// Reads a block's record, which lists the accounts that the block writes: at most its first `max_bytes`
    /// bytes. If there is no record, returns [`CLAIM`] if another gateway has announced to write it. Otherwise returns no
    /// bytes, and stores such a claim of this gateway for the time `life`. Counts a failure in the metrics; the caller
    /// must count a success. No client's request waits for this operation.
    ///
    /// # Errors
    /// The operation fails. The error says how.
    pub async fn claim_block(&self, key: &str, life: Duration, max_bytes: usize) -> Result<Vec<u8>, Failed> {
        let mut call = self.scripts.claim.key(key);
        call.arg(CLAIM).arg(millis(life)).arg(max_bytes);
        self.write(SharedOperation::Block, 0, &call).await
    }

    /// Writes a block's record, which lists the accounts that the block writes, and counts the result in the metrics. A
    /// complete record replaces any earlier value. An incomplete record is stored only if there is no value or a claim.
    pub async fn put_block(&self, key: &str, record: &[u8], is_complete: bool, life: Duration) {
        let operation = SharedOperation::Block;
        let mut call = self.scripts.set.key(key);
        call.arg(record).arg(millis(life));
        if !is_complete {
            call.arg(CLAIM);
        }
        let asked_at = Instant::now();
        // The connection has already counted a failure.
        if let Ok(kept) = self.write::<String>(operation, record.len(), &call).await {
            self.count(operation, written(&kept), asked_at.elapsed());
        }
    }
}

fn written(answer: &str) -> SharedResult {
    if answer == "ok" { SharedResult::Ok } else { SharedResult::Older }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a duration in whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Locks a mutex and ignores poisoning, because the values behind these mutexes are always consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
