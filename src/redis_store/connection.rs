//! The connection to the store, and when it is left alone.
//!
//! A breaker stands before each part of the store: one for a server, 64 for a cluster, so that a node that is gone costs no
//! more than its part. While a breaker is open, nobody asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{ErrorKind, FromRedisValue, RedisError, ScriptInvocation, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::clock::{StoreTime, read_time};
use super::link::{Dial, Link, Wire};
use super::parts::part_of;
use super::{Failed, LOOK, SharedError, lock, millis};
use crate::breaker::Breaker;
use crate::config;
use crate::telemetry::{Metrics, SharedOperation, SharedResult};

/// Parts of a cluster that fail by themselves.
const PARTS: usize = 64;
/// The store is left alone after so many failures in a row.
const FAILURES: u32 = 3;

/// The connection to the store, if there is one.
pub(super) struct Connection {
    dial: Dial,
    link: ArcSwapOption<Link>,
    breakers: Box<[Mutex<Breaker>]>,
    pub(super) timeout: Duration,
    is_cluster: bool,
    /// The store takes no writes until then, in milliseconds after `started`.
    no_writes_until: AtomicU64,
    started: Instant,
    /// Told when the connection is of no use any more.
    pub(super) lost: Notify,
    /// Told when there is a new connection.
    pub(super) back: Notify,
    metrics: Arc<Metrics>,
}

impl Connection {
    /// Prepares connections to the store that `settings` name, and makes none.
    pub(super) fn new(settings: &config::SharedSettings, metrics: Arc<Metrics>) -> Result<Self, SharedError> {
        // Never half-open, because the look-out closes it.
        let breaker = config::BreakerSettings {
            failures: FAILURES,
            failure_rate: 1.0,
            slow: 1000.0,
            open: Duration::MAX,
        };
        let parts = if settings.cluster { PARTS } else { 1 };
        Ok(Self {
            dial: Dial::new(settings).map_err(SharedError)?,
            link: ArcSwapOption::empty(),
            breakers: (0..parts).map(|_| Mutex::new(Breaker::new(breaker))).collect(),
            timeout: settings.timeout,
            is_cluster: settings.cluster,
            no_writes_until: AtomicU64::new(0),
            started: Instant::now(),
            lost: Notify::new(),
            back: Notify::new(),
            metrics,
        })
    }

    /// Returns true if the store answered when it was last asked.
    pub(super) fn is_there(&self) -> bool {
        self.link.load().is_some()
    }

    /// Returns true if writing is worth a try.
    pub(super) fn takes_writes(&self) -> bool {
        self.is_there() && millis(self.started.elapsed()) >= self.no_writes_until.load(Ordering::Relaxed)
    }

    /// Returns the number of parts that fail by themselves.
    pub(super) fn parts(&self) -> usize {
        self.breakers.len()
    }

    /// Returns the part that holds `key`.
    pub(super) fn part(&self, key: &str) -> usize {
        part_of(key, self.parts())
    }

    /// Returns true if this part may be asked.
    pub(super) fn admits(&self, part: usize) -> bool {
        self.is_there() && lock(&self.breakers[part]).is_closed()
    }

    /// Returns the parts that are left alone.
    pub(super) fn open_parts(&self) -> Vec<usize> {
        (0..self.parts()).filter(|part| !lock(&self.breakers[*part]).is_closed()).collect()
    }

    /// Counts an operation that was not tried, or whose answer is of no use.
    pub(super) fn failed(&self, operation: SharedOperation, result: SharedResult) -> Failed {
        self.metrics.shared_requests.at((operation, result)).inc();
        Failed(result)
    }

    /// Counts an operation that was done.
    pub(super) fn count(&self, operation: SharedOperation, result: SharedResult, took: Duration) {
        self.metrics.shared_requests.at((operation, result)).inc();
        self.metrics.shared_request_duration.at((operation, result)).observe(took.as_secs_f64());
    }

    /// Returns the longest time that an operation takes.
    pub(super) fn patience(&self, operation: SharedOperation) -> Duration {
        if is_patient(operation) { self.timeout.max(LOOK) } else { self.timeout }
    }

    /// Reads from `part`, even if it is left alone.
    pub(super) async fn read<T: FromRedisValue>(
        &self,
        operation: SharedOperation,
        part: usize,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        let patience = self.patience(operation);
        self.run(operation, part, patience, |link| link.reads.clone(), call).await
    }

    /// Writes under `key`, unless the store said lately that it takes no writes. No request waits for it.
    pub(super) async fn write<T: FromRedisValue>(
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
            Ok(Err(error)) => self.note_error(operation, part, &error),
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

    /// Removes what lies under `key`. No request waits for it.
    pub(super) async fn remove(&self, operation: SharedOperation, key: &str) {
        if !self.takes_writes() {
            return;
        }
        let Some(mut wire) = self.link.load().as_deref().map(|link| link.writes.clone()) else { return };
        let (asked_at, mut command) = (Instant::now(), redis::cmd("DEL"));
        let done = tokio::time::timeout(self.timeout, command.arg(key).exec_async(&mut wire)).await;
        let result = match done {
            Ok(Ok(())) => SharedResult::Ok,
            Ok(Err(error)) => self.note_error(operation, self.part(key), &error),
            Err(_) => SharedResult::Timeout,
        };
        self.count(operation, result, asked_at.elapsed());
    }

    /// Connects anew, in place of the connection that there may be. Returns the time that the store's clock shows.
    pub(super) async fn connect(&self) -> Result<Option<StoreTime>, SharedResult> {
        let connected = async {
            let mut link = self.dial.connect().await?;
            // A connection that takes longer than a request waits is of no use to requests.
            let shown = tokio::time::timeout(self.timeout, ask_time(&mut link.reads)).await;
            Ok::<_, RedisError>((link, shown.map_err(std::io::Error::from)??))
        };
        match tokio::time::timeout(LOOK * 3, connected).await {
            Ok(Ok((link, shown))) => {
                if !self.is_cluster {
                    lock(&self.breakers[0]).succeeded();
                }
                if self.link.swap(Some(Arc::new(link))).is_none() {
                    tracing::info!("the shared store is there");
                }
                self.back.notify_one();
                Ok(shown)
            }
            Ok(Err(error)) => Err(match error.kind() {
                ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                    SharedResult::Refused
                }
                _ if error.is_timeout() => SharedResult::Timeout,
                _ => SharedResult::Unreachable,
            }),
            Err(_) => Err(SharedResult::Timeout),
        }
    }

    /// Returns the time that the store's clock shows. Calls for it keep alive a connection that nobody may be using.
    pub(super) async fn beat(&self) -> Option<StoreTime> {
        let mut wire = self.link.load().as_deref().map(|link| link.reads.clone())?;
        let (operation, asked_at) = (SharedOperation::Connect, Instant::now());
        let mut time = None;
        let result = match tokio::time::timeout(self.timeout, ask_time(&mut wire)).await {
            Ok(Ok(shown)) => {
                time = shown;
                if !self.is_cluster {
                    lock(&self.breakers[0]).succeeded();
                }
                SharedResult::Ok
            }
            // The parts of a cluster have their own trials, whichever node did not answer here.
            _ if self.is_cluster => SharedResult::Timeout,
            Ok(Err(error)) => self.note_error(SharedOperation::Get, 0, &error),
            Err(_) => {
                self.part_failed(0);
                SharedResult::Timeout
            }
        };
        self.count(operation, result, asked_at.elapsed());
        time
    }

    /// Notes an error of the store, and returns how it is counted.
    fn note_error(&self, operation: SharedOperation, part: usize, error: &RedisError) -> SharedResult {
        match error.kind() {
            // The store answers, and does not do this: another try would only ask again.
            ErrorKind::Server(kind) => {
                match kind {
                    ServerErrorKind::ReadOnly if !self.is_cluster => {
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
                if self.is_cluster {
                    self.part_failed(part);
                } else {
                    self.lose("the connection broke");
                }
                SharedResult::Unreachable
            }
        }
    }

    /// Asks for no writes for a while.
    fn rest_from_writes(&self) {
        let until = self.started.elapsed() + LOOK;
        self.no_writes_until.store(millis(until), Ordering::Relaxed);
    }

    fn part_failed(&self, part: usize) {
        let opened = lock(&self.breakers[part]).failed(Instant::now());
        if opened && !self.is_cluster {
            // A store that is slow is as slow a moment later: the look-out tries again when its time comes.
            self.drop_link("it does not answer in time");
        }
    }

    /// Drops the connection, and has another made at once.
    fn lose(&self, why: &'static str) {
        if self.drop_link(why) {
            self.lost.notify_one();
        }
    }

    /// Drops the connection: nobody asks any more until the look-out has another. Returns true if there was one.
    fn drop_link(&self, why: &'static str) -> bool {
        let was_there = self.link.swap(None).is_some();
        if was_there {
            tracing::warn!(why, "the shared store is lost: each gateway goes on alone");
        }
        was_there
    }
}

/// Returns true if no request waits for the operation: its time says nothing of how long requests would wait.
fn is_patient(operation: SharedOperation) -> bool {
    operation == SharedOperation::Purge
}

async fn ask_time(wire: &mut Wire) -> Result<Option<StoreTime>, RedisError> {
    let mut shown = redis::cmd("TIME").query_async::<Vec<Value>>(wire).await?.into_iter();
    Ok(read_time(shown.next(), shown.next()))
}
