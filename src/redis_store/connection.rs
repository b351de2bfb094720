//! The connection to the store, and its circuit breakers.
//!
//! Each part of the store has a breaker. A single server counts as one part. A Redis cluster has 64 parts, so that
//! a failed node affects only its parts. While a breaker is open, only checks are sent to its part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{ErrorKind, FromRedisValue, RedisError, ScriptInvocation, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::clock::{StoreTime, read_time};
use super::connector::{Connector, StoreConnection, StoreLink};
use super::parts::part_of;
use super::{CHECK_INTERVAL, Failed, SharedError, lock, millis};
use crate::breaker::Breaker;
use crate::config;
use crate::telemetry::{Metrics, SharedOperation, SharedResult};

/// The number of parts of a Redis cluster.
const PARTS: usize = 64;
/// The number of consecutive failures that open a breaker.
const MAX_FAILURES: u32 = 3;

/// The client of the store: its connection, if there is one, and the breakers of its parts.
pub(super) struct RedisClient {
    dial: Connector,
    link: ArcSwapOption<StoreLink>,
    breakers: Box<[Mutex<Breaker>]>,
    pub(super) timeout: Duration,
    is_cluster: bool,
    /// The time until which no writes are sent, because the store has refused one. In milliseconds after `started`.
    no_writes_until: AtomicU64,
    started: Instant,
    /// Notified when the connection is lost.
    pub(super) lost: Notify,
    /// Notified when there is a new connection.
    pub(super) back: Notify,
    metrics: Arc<Metrics>,
}

impl RedisClient {
    /// Prepares connections to the store of `settings`, without connecting.
    pub(super) fn new(settings: &config::SharedSettings, metrics: Arc<Metrics>) -> Result<Self, SharedError> {
        // A breaker never becomes half-open: the lookout, the task that checks the store, closes it.
        let breaker = config::BreakerSettings {
            failures: MAX_FAILURES,
            failure_rate: 1.0,
            slow: 1000.0,
            open: Duration::MAX,
        };
        let parts = if settings.cluster { PARTS } else { 1 };
        Ok(Self {
            dial: Connector::new(settings).map_err(SharedError)?,
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

    /// Returns true while there is a connection to the store.
    pub(super) fn is_there(&self) -> bool {
        self.link.load().is_some()
    }

    /// Returns true if the store is expected to accept writes: it is connected, and has refused no write within the
    /// last second.
    pub(super) fn takes_writes(&self) -> bool {
        self.is_there() && millis(self.started.elapsed()) >= self.no_writes_until.load(Ordering::Relaxed)
    }

    /// Returns the number of parts of the store. Parts fail independently of each other.
    pub(super) fn parts(&self) -> usize {
        self.breakers.len()
    }

    /// Returns the part that holds `key`.
    pub(super) fn part(&self, key: &str) -> usize {
        part_of(key, self.parts())
    }

    /// Returns true if requests may go to this part: there is a connection, and the part's breaker is closed.
    pub(super) fn admits(&self, part: usize) -> bool {
        self.is_there() && lock(&self.breakers[part]).is_closed()
    }

    /// Returns the parts with an open breaker.
    pub(super) fn open_parts(&self) -> Vec<usize> {
        (0..self.parts()).filter(|part| !lock(&self.breakers[*part]).is_closed()).collect()
    }

    /// Counts an operation that was skipped, or to which the store gave an invalid answer. Returns the error for
    /// the caller.
    pub(super) fn failed(&self, operation: SharedOperation, result: SharedResult) -> Failed {
        self.metrics.shared_requests.at((operation, result)).inc();
        Failed(result)
    }

    /// Counts a finished operation and its duration in the metrics.
    pub(super) fn count(&self, operation: SharedOperation, result: SharedResult, took: Duration) {
        self.metrics.shared_requests.at((operation, result)).inc();
        self.metrics.shared_request_duration.at((operation, result)).observe(took.as_secs_f64());
    }

    /// Returns the timeout of an operation.
    pub(super) fn patience(&self, operation: SharedOperation) -> Duration {
        if is_patient(operation) { self.timeout.max(CHECK_INTERVAL) } else { self.timeout }
    }

    /// Reads from `part`, even if its breaker is open.
    pub(super) async fn read<T: FromRedisValue>(
        &self,
        operation: SharedOperation,
        part: usize,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        let patience = self.patience(operation);
        self.run(operation, part, patience, |link| link.reads.clone(), call).await
    }

    /// Writes to `key`, unless the store has recently refused writes. No client's request waits for this operation.
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
        wire: impl FnOnce(&StoreLink) -> StoreConnection,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        let wire = |link: &StoreLink| if patience > self.timeout { link.patient.clone() } else { wire(link) };
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

    /// Deletes `key`. No client's request waits for this operation.
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

    /// Opens a new connection, which replaces the old one. Returns the store's time, or `None` if its reply has no
    /// valid time. The error says if the store refused, did not answer in time, or was unreachable.
    pub(super) async fn connect(&self) -> Result<Option<StoreTime>, SharedResult> {
        let connected = async {
            let mut link = self.dial.connect().await?;
            // A connection slower than a request's timeout is useless to requests.
            let shown = tokio::time::timeout(self.timeout, ask_time(&mut link.reads)).await;
            Ok::<_, RedisError>((link, shown.map_err(std::io::Error::from)??))
        };
        match tokio::time::timeout(self.dial.longest_connect() + self.timeout, connected).await {
            Ok(Ok((link, shown))) => {
                if !self.is_cluster {
                    lock(&self.breakers[0]).succeeded();
                }
                if self.link.swap(Some(Arc::new(link))).is_none() {
                    tracing::info!("the shared store is connected");
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

    /// Asks the store for its time, which also keeps an idle connection open. `None` if there is no connection or no
    /// valid answer.
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
            // In a Redis cluster any node may get this request, so its failure counts against no part. The lookout
            // checks each failed part separately.
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

    /// Handles an error of the store, and returns the result under which the metrics count the operation.
    fn note_error(&self, operation: SharedOperation, part: usize, error: &RedisError) -> SharedResult {
        match error.kind() {
            // The store answers but refuses the operation, so a repetition would be refused as well.
            ErrorKind::Server(kind) => {
                match kind {
                    ServerErrorKind::ReadOnly if !self.is_cluster => {
                        self.lose("it no longer accepts writes");
                    }
                    ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::TryAgain => self.part_failed(part),
                    _ if operation != SharedOperation::Get => self.pause_writes(),
                    _ => {}
                }
                SharedResult::Refused
            }
            ErrorKind::Extension => {
                // The errors OOM and MISCONF, which have no name in the client library.
                if operation != SharedOperation::Get {
                    self.pause_writes();
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

    /// Pauses writes for a second, because the store has refused one.
    fn pause_writes(&self) {
        let until = self.started.elapsed() + CHECK_INTERVAL;
        self.no_writes_until.store(millis(until), Ordering::Relaxed);
    }

    fn part_failed(&self, part: usize) {
        let opened = lock(&self.breakers[part]).failed(Instant::now());
        if opened && !self.is_cluster {
            // A slow store is still slow a moment later, so it is tried again only at the next regular check.
            self.drop_link("it does not answer in time");
        }
    }

    /// Drops the connection and requests a new one at once.
    fn lose(&self, why: &'static str) {
        if self.drop_link(why) {
            self.lost.notify_one();
        }
    }

    /// Drops the connection. Returns true if there was one.
    fn drop_link(&self, why: &'static str) -> bool {
        let was_there = self.link.swap(None).is_some();
        if was_there {
            tracing::warn!(
                why,
                "the shared store can no longer be used; this replica works alone until the store is back"
            );
        }
        was_there
    }
}

/// Returns true for operations on lists of purges. These operations may take long, so their duration must not open a
/// breaker.
fn is_patient(operation: SharedOperation) -> bool {
    operation == SharedOperation::Purge
}

async fn ask_time(wire: &mut StoreConnection) -> Result<Option<StoreTime>, RedisError> {
    let mut shown = redis::cmd("TIME").query_async::<Vec<Value>>(wire).await?.into_iter();
    Ok(read_time(shown.next(), shown.next()))
}
