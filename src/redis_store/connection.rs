//! The connection to the store, its circuit breaker, and the background task that checks whether the store is reachable.
//!
//! There is one breaker, for a server as for a Redis cluster. While it is open, only the checks of the health task are sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, RedisError, ScriptInvocation, ServerErrorKind, Value};
use tokio::time::Instant;

use super::clock::{StoreTime, read_time};
use super::connector::{StoreConnection, StoreLink};
use super::{CHECK_INTERVAL, Failed, Store, lock, millis};
use crate::config;
use crate::telemetry::{SharedOperation, SharedResult};

/// The assumed transfer rate in bytes per millisecond. The timeout of a write grows with the length of its value
/// at this rate.
const BYTES_A_MS: usize = 64 * 1024;
/// The number of consecutive failures that open the breaker.
const MAX_FAILURES: u32 = 3;
/// The share of failures that opens the breaker. A hung node of a Redis cluster fails only the keys that it holds, so its
/// failures rarely come one after the other.
const MAX_FAILURE_RATE: f64 = 0.2;

/// The time for which checks may find failures before a new connection is opened. Another server may be the primary by
/// then, or the Redis cluster may have another topology.
const CONNECT_ANEW_AFTER: Duration = Duration::from_secs(3);

/// Returns the settings of the store's breaker. It never becomes half-open: the health task closes it.
pub(super) fn breaker_settings() -> config::BreakerSettings {
    config::BreakerSettings {
        failures: MAX_FAILURES,
        failure_rate: MAX_FAILURE_RATE,
        slow: 1000.0,
        open: Duration::MAX,
    }
}

impl Store {
    /// Returns true while requests may be sent: there is a connection, and the breaker is closed.
    pub fn is_there(&self) -> bool {
        self.is_connected() && lock(&self.breaker).is_closed()
    }

    fn is_connected(&self) -> bool {
        self.link.load().is_some()
    }

    /// Returns true if the store is expected to accept writes: it is there, and has refused no write within the last
    /// second.
    pub fn takes_writes(&self) -> bool {
        self.is_there() && millis(self.started.elapsed()) >= self.no_writes_until.load(Ordering::Relaxed)
    }

    /// Returns true if the breaker has opened since the last call of this function, or is still open.
    fn take_failed(&self) -> bool {
        self.has_failed.swap(false, Ordering::Relaxed) || !lock(&self.breaker).is_closed()
    }

    /// Counts an operation that was skipped, or to which the store gave an invalid answer. Returns the error for
    /// the caller.
    pub(super) fn failed(&self, operation: SharedOperation, result: SharedResult) -> Failed {
        self.metrics.shared_requests.at((operation, result)).inc();
        Failed(result)
    }

    pub fn count(&self, operation: SharedOperation, result: SharedResult, took: Duration) {
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

    /// Deletes `key`, and counts the result in the metrics. Does nothing while the store is not expected to accept
    /// writes. No client's request waits for this operation.
    pub async fn forget(&self, key: &str) {
        if !self.takes_writes() {
            return;
        }
        let Some(mut wire) = self.link.load().as_deref().map(|link| link.writes.clone()) else { return };
        let (operation, asked_at, mut command) = (SharedOperation::Put, Instant::now(), redis::cmd("DEL"));
        let done = self.in_time(operation, self.timeout, command.arg(key).exec_async(&mut wire)).await;
        self.count(operation, done.err().unwrap_or(SharedResult::Ok), asked_at.elapsed());
    }

    /// Opens a new connection, which replaces the old one. The error says if the store refused, did not answer in time, or
    /// was unreachable.
    async fn connect(&self) -> Result<(), SharedResult> {
        let connected = async {
            let mut link = self.dial.connect().await?;
            // A connection slower than a request's timeout is useless to requests.
            let shown = tokio::time::timeout(self.timeout, ask_time(&mut link.reads)).await;
            Ok::<_, RedisError>((link, shown.map_err(std::io::Error::from)??))
        };
        let (link, time) = connected.await.map_err(|error| match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                SharedResult::Refused
            }
            _ if error.is_timeout() => SharedResult::Timeout,
            _ => SharedResult::Unreachable,
        })?;
        self.link.store(Some(Arc::new(link)));
        self.note_answer(time);
        self.back.notify_one();
        Ok(())
    }

    /// Asks the store for its time, which also keeps an idle connection open and closes the breaker.
    async fn beat(&self) {
        let Some(mut wire) = self.link.load().as_deref().map(|link| link.reads.clone()) else { return };
        let asked_at = Instant::now();
        let time = self.in_time(SharedOperation::Get, self.timeout, ask_time(&mut wire)).await;
        if let Ok(time) = time {
            self.note_answer(time);
        }
        self.count(SharedOperation::Connect, time.err().unwrap_or(SharedResult::Ok), asked_at.elapsed());
    }

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

    /// Notes the time that the store has shown in its answer to a check, and closes the breaker. `None` if the answer has
    /// no valid time.
    fn note_answer(&self, time: Option<StoreTime>) {
        if let Some(time) = time {
            self.clock.heard(time);
        }
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

/// The state of the background task that checks whether the store is reachable.
pub(super) struct HealthTask {
    store: Arc<Store>,
    /// The result of the last attempt to connect. The same failure is not logged twice in a row.
    reported: Option<SharedResult>,
    /// The first of the checks without a calm one between them. `None` while all is well.
    failing_since: Option<Instant>,
}

impl HealthTask {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self { store, reported: None, failing_since: None }
    }

    /// Opens the connection, keeps it alive, and keeps the estimate of the store's clock up to date. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            self.check().await;
            let _ = tokio::time::timeout(CHECK_INTERVAL, self.store.lost.notified()).await;
        }
    }

    /// Checks the store once if it is connected, and connects if it is not or has failed for too long.
    pub(super) async fn check(&mut self) {
        let (store, now) = (&self.store, Instant::now());
        let since = self.failing_since.unwrap_or(now);
        self.failing_since = store.take_failed().then_some(since);
        if store.is_connected() && now.duration_since(since) < CONNECT_ANEW_AFTER {
            return store.beat().await;
        }
        self.failing_since = None;
        let result = store.connect().await.err().unwrap_or(SharedResult::Ok);
        store.count(SharedOperation::Connect, result, now.elapsed());
        if self.reported != Some(result) {
            if result == SharedResult::Ok {
                tracing::info!("the shared store is connected");
            } else {
                tracing::warn!(
                    why = hint(result),
                    "the shared store cannot be used; this replica works alone until the store can be used"
                );
            }
        }
        self.reported = Some(result);
    }

    pub(super) fn why_not(&self) -> &'static str {
        hint(self.reported.unwrap_or(SharedResult::Unreachable))
    }
}

fn hint(result: SharedResult) -> &'static str {
    match result {
        SharedResult::Refused => {
            "it refuses the connection; check user, password and permissions of shared.url"
        }
        SharedResult::Timeout => "it does not answer",
        _ => "it cannot be reached",
    }
}
