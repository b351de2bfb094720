//! The connection to the store, and its circuit breaker.
//!
//! There is one breaker, for a server as for a Redis cluster. While it is open, only the checks of the health task are sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{ErrorKind, FromRedisValue, RedisError, ScriptInvocation, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::clock::{StoreTime, read_time};
use super::connector::{Connector, StoreConnection, StoreLink};
use super::{CHECK_INTERVAL, Failed, SharedError, lock, millis};
use crate::breaker::Breaker;
use crate::config;
use crate::telemetry::{Metrics, SharedOperation, SharedResult};

/// The assumed transfer rate in bytes per millisecond. The timeout of a write grows with the length of its value
/// at this rate.
const BYTES_A_MS: usize = 64 * 1024;
/// The number of consecutive failures that open the breaker.
const MAX_FAILURES: u32 = 3;
/// The share of failures that opens the breaker. A hung node of a Redis cluster fails only the keys that it holds, so its
/// failures rarely come one after the other.
const MAX_FAILURE_RATE: f64 = 0.2;

/// The client of the store: its connection, if there is one, and its breaker.
pub(super) struct RedisClient {
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
    /// Notified when the connection is lost.
    pub(super) lost: Notify,
    /// Notified when there is a new connection.
    pub(super) back: Notify,
    metrics: Arc<Metrics>,
}

impl RedisClient {
    /// Prepares connections to the store of `settings`, without connecting.
    pub(super) fn new(settings: &config::SharedSettings, metrics: Arc<Metrics>) -> Result<Self, SharedError> {
        // The breaker never becomes half-open: the health task closes it.
        let breaker = config::BreakerSettings {
            failures: MAX_FAILURES,
            failure_rate: MAX_FAILURE_RATE,
            slow: 1000.0,
            open: Duration::MAX,
        };
        Ok(Self {
            dial: Connector::new(settings).map_err(SharedError)?,
            link: ArcSwapOption::empty(),
            breaker: Mutex::new(Breaker::new(breaker)),
            has_failed: AtomicBool::new(false),
            timeout: settings.timeout,
            is_cluster: settings.cluster,
            no_writes_until: AtomicU64::new(0),
            started: Instant::now(),
            lost: Notify::new(),
            back: Notify::new(),
            metrics,
        })
    }

    /// Returns true while requests may be sent: there is a connection, and the breaker is closed.
    pub(super) fn is_there(&self) -> bool {
        self.is_connected() && lock(&self.breaker).is_closed()
    }

    /// Returns true while there is a connection, whether it answers or not.
    pub(super) fn is_connected(&self) -> bool {
        self.link.load().is_some()
    }

    /// Returns true if the store is expected to accept writes: it is there, and has refused no write within the last
    /// second.
    pub(super) fn takes_writes(&self) -> bool {
        self.is_there() && millis(self.started.elapsed()) >= self.no_writes_until.load(Ordering::Relaxed)
    }

    /// Returns true if the breaker has opened since the last call of this function, or is still open.
    pub(super) fn take_failed(&self) -> bool {
        self.has_failed.swap(false, Ordering::Relaxed) || !lock(&self.breaker).is_closed()
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

    pub(super) async fn read<T: FromRedisValue>(
        &self,
        operation: SharedOperation,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        self.run(operation, self.timeout, |link| link.reads.clone(), call).await
    }

    /// Writes a value of `bytes` bytes to the store, unless it has recently refused writes. No client's request waits for
    /// this operation.
    pub(super) async fn write<T: FromRedisValue>(
        &self,
        operation: SharedOperation,
        bytes: usize,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        if !self.takes_writes() {
            return Err(self.failed(operation, SharedResult::Skipped));
        }
        let on_its_way = Duration::from_millis((bytes / BYTES_A_MS) as u64);
        self.run(operation, self.timeout + on_its_way, |link| link.writes.clone(), call).await
    }

    async fn run<T: FromRedisValue>(
        &self,
        operation: SharedOperation,
        patience: Duration,
        wire: impl FnOnce(&StoreLink) -> StoreConnection,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        let wire = self.link.load().as_deref().filter(|_| self.is_there()).map(wire);
        let Some(mut wire) = wire else { return Err(self.failed(operation, SharedResult::Skipped)) };
        let asked_at = Instant::now();
        let answer = self.in_time(operation, patience, call.invoke_async(&mut wire)).await;
        match answer {
            Ok(_) => lock(&self.breaker).succeeded(),
            Err(result) => self.count(operation, result, asked_at.elapsed()),
        }
        answer.map_err(Failed)
    }

    /// Waits for an answer of the store, and handles its errors. The error is the result under which the metrics count
    /// the operation.
    async fn in_time<T>(
        &self,
        operation: SharedOperation,
        patience: Duration,
        answer: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, SharedResult> {
        let Ok(answer) = tokio::time::timeout(patience, answer).await else {
            self.note_failure();
            return Err(SharedResult::Timeout);
        };
        answer.map_err(|error| self.note_error(operation, &error))
    }

    /// Deletes `key`. No client's request waits for this operation.
    pub(super) async fn remove(&self, operation: SharedOperation, key: &str) {
        if !self.takes_writes() {
            return;
        }
        let Some(mut wire) = self.link.load().as_deref().map(|link| link.writes.clone()) else { return };
        let (asked_at, mut command) = (Instant::now(), redis::cmd("DEL"));
        let done = self.in_time(operation, self.timeout, command.arg(key).exec_async(&mut wire)).await;
        self.count(operation, done.err().unwrap_or(SharedResult::Ok), asked_at.elapsed());
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
        let (link, shown) = connected.await.map_err(|error| match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                SharedResult::Refused
            }
            _ if error.is_timeout() => SharedResult::Timeout,
            _ => SharedResult::Unreachable,
        })?;
        self.link.store(Some(Arc::new(link)));
        self.note_answer();
        self.back.notify_one();
        Ok(shown)
    }

    /// Asks the store for its time, which also keeps an idle connection open and closes the breaker. `None` if there is
    /// no connection or no valid answer.
    pub(super) async fn beat(&self) -> Option<StoreTime> {
        let mut wire = self.link.load().as_deref().map(|link| link.reads.clone())?;
        let asked_at = Instant::now();
        let time = self.in_time(SharedOperation::Get, self.timeout, ask_time(&mut wire)).await;
        if time.is_ok() {
            self.note_answer();
        }
        let result = time.err().unwrap_or(SharedResult::Ok);
        self.count(SharedOperation::Connect, result, asked_at.elapsed());
        time.ok().flatten()
    }

    /// Handles an error of the store, and returns the result under which the metrics count the operation.
    fn note_error(&self, operation: SharedOperation, error: &RedisError) -> SharedResult {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::ReadOnly) if !self.is_cluster => {
                self.lose("it no longer accepts writes");
                SharedResult::Refused
            }
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain,
            ) => {
                self.note_failure();
                SharedResult::Refused
            }
            // The store answers but refuses the operation, so a repetition would be refused as well. An extension is an
            // error that has no name in the client library, such as OOM and MISCONF.
            ErrorKind::Server(_) | ErrorKind::Extension => {
                if operation != SharedOperation::Get {
                    self.pause_writes();
                }
                SharedResult::Refused
            }
            _ if error.is_timeout() => {
                self.note_failure();
                SharedResult::Timeout
            }
            // The client of a cluster connects anew by itself.
            _ if self.is_cluster => {
                self.note_failure();
                SharedResult::Unreachable
            }
            _ => {
                self.lose("the connection broke");
                SharedResult::Unreachable
            }
        }
    }

    fn pause_writes(&self) {
        let until = self.started.elapsed() + CHECK_INTERVAL;
        self.no_writes_until.store(millis(until), Ordering::Relaxed);
    }

    /// Closes the breaker, because the store has answered a check.
    fn note_answer(&self) {
        let mut breaker = lock(&self.breaker);
        if !breaker.is_closed() {
            tracing::info!("the shared store answers again");
        }
        breaker.succeeded();
    }

    fn note_failure(&self) {
        if lock(&self.breaker).failed(Instant::now()) {
            self.has_failed.store(true, Ordering::Relaxed);
            warn_alone("it does not answer in time");
        }
    }

    /// Drops the connection and requests a new one at once.
    fn lose(&self, why: &'static str) {
        if self.link.swap(None).is_some() {
            warn_alone(why);
            self.lost.notify_one();
        }
    }
}

fn warn_alone(why: &'static str) {
    tracing::warn!(why, "the shared store cannot be used; this replica works alone until it can");
}

async fn ask_time(wire: &mut StoreConnection) -> Result<Option<StoreTime>, RedisError> {
    let mut shown = redis::cmd("TIME").query_async::<Vec<Value>>(wire).await?.into_iter();
    Ok(read_time(shown.next(), shown.next()))
}
