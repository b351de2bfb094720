//! The store that several gateways have in common, Redis or Valkey: never waited for longer than `shared.timeout`, and
//! left alone while it does not answer.
//!
//! Knows operations, not what they mean: values and names are the cache's, limits the gateway's. A breaker stands
//! before each part of the store: one for a server, 64 for a cluster, so that a node that is gone costs no more than
//! what it held. While it is open nobody asks, and the look-out finds out each second whether the store is back.
//!
//! **Time** is the store's own. Machines' clocks differ, so ages are never the difference of two of them: a writer puts
//! down when it asked by the clock of the store, of which it knows what it shows at least, and a reader is told by the
//! same clock when it read. What is not known (the way of a message) makes an answer older, never younger.

pub mod limits;
mod link;
mod lookout;
mod parts;
pub mod purges;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use redis::{ErrorKind, FromRedisValue, RedisError, Script, ScriptInvocation, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::breaker::Breaker;
use crate::config;
use crate::telemetry::{Metrics, SharedOperation, SharedResult};
use link::{Dial, Link, Wire};
use parts::{part_of, tag_in};
use purges::is_patient;

/// Parts of a cluster that fail by themselves.
const PARTS: usize = 64;
/// In a row, and the store is left alone.
const FAILURES: u32 = 3;
/// Between two looks whether the store is there, and how long it is left alone.
const LOOK: Duration = Duration::from_secs(1);
/// What a store's clock showed longer ago says nothing: two clocks differ by less than a millisecond in this time.
const CLOCK_HOLDS: Duration = Duration::from_secs(10);
/// What two steady clocks may differ by meanwhile.
const DRIFT: Duration = Duration::from_millis(1);
/// What the clocks of a cluster's nodes may differ by: a value may be another node's than the clock.
const CLUSTER_CLOCKS: Duration = Duration::from_millis(100);
/// A long value takes its time on the way: so many bytes a millisecond.
const BYTES_A_MS: usize = 64 * 1024;

/// A moment by the store's clock, in microseconds since 1970.
pub type StoreTime = u64;

/// Why the settings name no store.
#[derive(Debug, thiserror::Error)]
#[error("shared.url: {0}")]
pub struct SharedError(String);

/// The store, as one gateway sees it.
pub struct Store {
    dial: Dial,
    link: ArcSwapOption<Link>,
    breakers: Box<[Mutex<Breaker>]>,
    timeout: Duration,
    namespace: String,
    cluster: bool,
    /// What the store's clock showed at least, and when that was heard.
    clock: Mutex<Option<(StoreTime, Instant)>>,
    /// Until when it takes no writes, in milliseconds after `started`.
    no_writes_until: AtomicU64,
    started: Instant,
    lost: Notify,
    /// Told when there is a new connection.
    back: Notify,
    /// A key in each part, which holds nothing.
    trials: Box<[String]>,
    /// The tag of keys that each part has.
    tags: Box<[String]>,
    scripts: Scripts,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
}

struct Scripts {
    get: Script,
    put: Script,
    merge: Script,
    lease: Script,
    book: Script,
}

/// What was found under some keys.
#[derive(Debug)]
pub struct Found {
    /// In the order of the keys; what is no value of ours is empty.
    pub values: Vec<Option<Bytes>>,
    /// When they were read, by the store.
    pub read_at: StoreTime,
    /// When they were asked for: not later than they were read.
    pub asked_at: Instant,
}

/// A value to be kept.
#[derive(Debug)]
pub struct Put {
    /// Where.
    pub key: String,
    /// The value; its first 44 bytes are its rank.
    pub value: Vec<u8>,
    /// When it was asked for, by the store.
    pub sent_at: StoreTime,
    /// How long it may live from then on.
    pub life: Duration,
}

/// Why an operation came to nothing; counted already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed(pub SharedResult);

impl Store {
    /// The store that `settings` name; nothing is asked before [`Store::watch`] runs.
    ///
    /// # Errors
    /// An address or certificate that the client does not take.
    pub fn new(
        settings: &config::Shared,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
    ) -> Result<Arc<Self>, SharedError> {
        // Never half-open: it is the look-out that closes it.
        let breaker =
            config::Breaker { failures: FAILURES, failure_rate: 1.0, slow: 1000.0, open: Duration::MAX };
        let parts = if settings.cluster { PARTS } else { 1 };
        let tags: Box<[String]> = (0..parts).map(|part| tag_in(part, parts)).collect();
        Ok(Arc::new(Self {
            dial: Dial::new(settings).map_err(SharedError)?,
            link: ArcSwapOption::empty(),
            breakers: (0..parts).map(|_| Mutex::new(Breaker::new(breaker))).collect(),
            timeout: settings.timeout,
            namespace: settings.namespace.clone(),
            cluster: settings.cluster,
            clock: Mutex::default(),
            no_writes_until: AtomicU64::new(0),
            started: Instant::now(),
            lost: Notify::new(),
            back: Notify::new(),
            trials: tags.iter().map(|tag| format!("{}:trial:{tag}", settings.namespace)).collect(),
            tags,
            scripts: Scripts {
                get: Script::new(include_str!("shared/get.lua")),
                put: Script::new(include_str!("shared/put.lua")),
                merge: Script::new(include_str!("shared/merge.lua")),
                lease: Script::new(include_str!("shared/lease.lua")),
                book: Script::new(include_str!("shared/book.lua")),
            },
            metrics,
            tasks,
        }))
    }

    /// What all keys begin with.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Whether the store answered when it was last asked.
    pub fn is_there(&self) -> bool {
        self.link.load().is_some()
    }

    /// The values under `keys`, which lie together; counts what failed, not what was found.
    ///
    /// # Errors
    /// Whatever came to nothing.
    pub async fn get(&self, keys: &[String]) -> Result<Found, Failed> {
        let part = self.part(keys.first().map_or("", String::as_str));
        if self.admits(part) {
            self.found(SharedOperation::Get, part, keys).await
        } else {
            Err(self.failed(SharedOperation::Get, SharedResult::Skipped))
        }
    }

    async fn found(&self, operation: SharedOperation, part: usize, keys: &[String]) -> Result<Found, Failed> {
        let asked_at = Instant::now();
        let mut call = self.scripts.get.prepare_invoke();
        for key in keys {
            call.key(key);
        }
        let reads = |link: &Link| link.reads.clone();
        let reply: Vec<Value> = self.run(operation, part, self.patience(operation), reads, &call).await?;
        let mut reply = reply.into_iter();
        let read_at = time(reply.next(), reply.next());
        let value = |value| match value {
            Value::BulkString(bytes) => Some(Bytes::from(bytes)),
            Value::Nil => None,
            _ => Some(Bytes::new()),
        };
        let values: Vec<_> = reply.map(value).collect();
        let (Some(read_at), true) = (read_at, values.len() == keys.len()) else {
            return Err(self.failed(operation, SharedResult::Refused));
        };
        self.heard(read_at);
        Ok(Found { values, read_at, asked_at })
    }

    /// Keeps a value where nothing as new is held, and counts what became of it. To be waited for by no request.
    ///
    /// # Errors
    /// Whatever came to nothing.
    pub async fn put(&self, put: &Put) -> Result<(), Failed> {
        let operation = SharedOperation::Put;
        let Some(shows) = self.shows(Instant::now()) else {
            return Err(self.failed(operation, SharedResult::Skipped));
        };
        let mut call = self.scripts.put.key(&put.key);
        call.arg(&put.value[..]).arg(put.sent_at).arg(micros(put.life)).arg(shows);
        let on_its_way = Duration::from_millis((put.value.len() / BYTES_A_MS) as u64);
        let asked_at = Instant::now();
        let kept: String = self.write(operation, &put.key, self.timeout + on_its_way, &call).await?;
        let result = if kept == "ok" { SharedResult::Ok } else { SharedResult::Older };
        self.count(operation, result, asked_at.elapsed());
        Ok(())
    }

    /// The moment `at`, by the store's clock, not later than it was; `None` while that is not known.
    pub fn time_of(&self, at: Instant) -> Option<StoreTime> {
        let (time, heard) = (*lock(&self.clock))?;
        let moved = |time: StoreTime| {
            let back = heard.saturating_duration_since(at);
            (time + micros(at.saturating_duration_since(heard))).checked_sub(micros(back))
        };
        moved(time)?.checked_sub(micros(self.clock_slack()))
    }

    /// What the store's clock shows at least; `None` where it was not heard of lately.
    fn shows(&self, now: Instant) -> Option<StoreTime> {
        let (_, heard) = (*lock(&self.clock))?;
        if now.saturating_duration_since(heard) > CLOCK_HOLDS {
            return None;
        }
        self.time_of(now)
    }

    fn clock_slack(&self) -> Duration {
        if self.cluster { CLUSTER_CLOCKS } else { DRIFT }
    }

    /// The store's clock showed `time`: now it shows that or more.
    fn heard(&self, time: StoreTime) {
        *lock(&self.clock) = Some((time, Instant::now()));
    }

    /// Writes, unless the store said lately that it takes no writes; it runs beside the requests.
    async fn write<T: FromRedisValue>(
        &self,
        operation: SharedOperation,
        key: &str,
        patience: Duration,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        let part = self.part(key);
        if !self.takes_writes() || !self.admits(part) {
            return Err(self.failed(operation, SharedResult::Skipped));
        }
        self.run(operation, part, patience, |link| link.writes.clone(), call).await
    }

    /// Whether writing is worth a try.
    pub fn takes_writes(&self) -> bool {
        self.is_there() && self.ms_now() >= self.no_writes_until.load(Ordering::Relaxed)
    }

    async fn run<T: FromRedisValue>(
        &self,
        operation: SharedOperation,
        part: usize,
        patience: Duration,
        wire: impl FnOnce(&Link) -> Wire,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        let Some(mut wire) = self.link.load().as_deref().map(wire) else {
            return Err(self.failed(operation, SharedResult::Skipped));
        };
        let asked_at = Instant::now();
        let result = match tokio::time::timeout(patience, call.invoke_async(&mut wire)).await {
            Ok(Ok(value)) => {
                if !is_patient(operation) {
                    lock(&self.breakers[part]).succeeded();
                }
                return Ok(value);
            }
            Ok(Err(error)) if is_patient(operation) && error.is_timeout() => SharedResult::Timeout,
            Ok(Err(error)) => self.judge(operation, part, &error),
            Err(_) => {
                if !is_patient(operation) {
                    self.part_failed(part);
                }
                SharedResult::Timeout
            }
        };
        self.count(operation, result, asked_at.elapsed());
        Err(Failed(result))
    }

    /// What an error says of the store.
    fn judge(&self, operation: SharedOperation, part: usize, error: &RedisError) -> SharedResult {
        match error.kind() {
            // It answers, and does not do this; others of the kind would only ask again.
            ErrorKind::Server(kind) => {
                match kind {
                    ServerErrorKind::ReadOnly if !self.cluster => {
                        self.lose("it does not take writes any more");
                    }
                    ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::TryAgain => self.part_failed(part),
                    _ if operation != SharedOperation::Get => self.rest_from_writes(),
                    _ => {}
                }
                SharedResult::Refused
            }
            ErrorKind::Extension => {
                // OOM and MISCONF, for which the client has no name.
                if operation != SharedOperation::Get {
                    self.rest_from_writes();
                }
                SharedResult::Refused
            }
            _ if error.is_timeout() => {
                self.part_failed(part);
                SharedResult::Timeout
            }
            _ => {
                if self.cluster {
                    self.part_failed(part);
                } else {
                    self.lose("the connection broke");
                }
                SharedResult::Unreachable
            }
        }
    }

    /// It takes no writes: asked again after a while.
    fn rest_from_writes(&self) {
        let until = self.started.elapsed() + LOOK;
        self.no_writes_until.store(millis(until), Ordering::Relaxed);
    }

    fn part_failed(&self, part: usize) {
        let opened = lock(&self.breakers[part]).failed(Instant::now());
        if opened && !self.cluster {
            // Whoever is slow is as slow a moment later: it is looked at again when its time comes.
            self.part_with("it does not answer in time");
        }
    }

    /// The connection is of no use: another is looked for at once.
    fn lose(&self, why: &'static str) {
        if self.part_with(why) {
            self.lost.notify_one();
        }
    }

    /// Nobody asks any more until the look-out has another connection. Returns whether there was one.
    fn part_with(&self, why: &'static str) -> bool {
        let was_there = self.link.swap(None).is_some();
        if was_there {
            tracing::warn!(why, "the shared store is lost: each gateway goes on alone");
        }
        was_there
    }

    fn admits(&self, part: usize) -> bool {
        self.is_there() && lock(&self.breakers[part]).is_closed()
    }

    /// The part that `key` lies in.
    pub fn part(&self, key: &str) -> usize {
        part_of(key, self.breakers.len())
    }

    fn failed(&self, operation: SharedOperation, result: SharedResult) -> Failed {
        self.metrics.shared_requests.at((operation, result)).inc();
        Failed(result)
    }

    /// Counts an operation that was done.
    pub fn count(&self, operation: SharedOperation, result: SharedResult, took: Duration) {
        self.metrics.shared_requests.at((operation, result)).inc();
        self.metrics.shared_request_duration.at((operation, result)).observe(took.as_secs_f64());
    }

    fn ms_now(&self) -> u64 {
        millis(self.started.elapsed())
    }
}

/// Seconds and microseconds, as the store writes them.
fn time(seconds: Option<Value>, micros: Option<Value>) -> Option<StoreTime> {
    let number = |value| u64::from_redis_value(value).ok();
    number(seconds?)?.checked_mul(1_000_000)?.checked_add(number(micros?)?)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A lock that a panic elsewhere does not spoil: all that is kept behind one is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
