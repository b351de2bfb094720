//! The store that several gateways have in common, Redis or Valkey. No request waits for it longer than `shared.timeout`,
//! and none at all while it does not answer.
//!
//! The store knows operations, not what they mean: the names and values are the cache's, the limits the gateway's. Beside
//! the requests, the look-out finds out each second whether a store that was left alone is back.
//!
//! **Time** is the store's own. Machines' clocks differ, so no age is the difference of two of them. A writer notes when it
//! asked by a lower bound of the store's clock, and a reader is told by the same clock when it read. The unknown part, the
//! way of a message, makes an answer older, never younger.

mod clock;
mod connection;
pub mod limits;
mod link;
mod lookout;
mod parts;
pub mod purges;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use redis::{Script, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::telemetry::{Metrics, SharedOperation, SharedResult};
pub use clock::StoreTime;
use clock::{StoreClock, read_time};
use connection::Connection;
use limits::{Booked, Booking, LeaseRequest, Leased};
use lookout::Lookout;
use parts::tag_in;
use purges::{Change, Listed};

/// The time between two looks at the store, and for which it is left alone.
const LOOK: Duration = Duration::from_secs(1);
/// A long value takes its time on the way: so many bytes a millisecond.
const BYTES_A_MS: usize = 64 * 1024;

/// The reason why the settings name no store.
#[derive(Debug, thiserror::Error)]
#[error("shared.url: {0}")]
pub struct SharedError(String);

/// The store, as one gateway sees it.
pub struct Store {
    connection: Connection,
    clock: StoreClock,
    namespace: String,
    /// A key in each part, which holds nothing.
    trials: Box<[String]>,
    /// The tag of keys that each part has.
    tags: Box<[String]>,
    scripts: Scripts,
    tasks: TaskTracker,
}

struct Scripts {
    get: Script,
    put: Script,
    merge: Script,
    lease: Script,
    book: Script,
}

/// The values that were found under some keys.
#[derive(Debug)]
pub struct Found {
    /// In the order of the keys; a value that is none of ours is empty.
    pub values: Vec<Option<Bytes>>,
    /// When they were read, by the store.
    pub read_at: StoreTime,
    /// When they were asked for: not later than they were read.
    pub asked_at: Instant,
}

/// A value to be kept.
#[derive(Debug)]
pub struct Put {
    /// The key under which it is kept.
    pub key: String,
    /// The value; its first 44 bytes are its rank.
    pub value: Vec<u8>,
    /// When it was asked for, by the store.
    pub sent_at: StoreTime,
    /// How long it may live from then on.
    pub life: Duration,
}

/// The reason why an operation came to nothing; counted already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed(pub SharedResult);

impl Store {
    /// Creates the store that `settings` name; nothing is asked before [`Store::watch`] runs.
    ///
    /// # Errors
    /// An address or certificate that the client does not take.
    pub fn new(
        settings: &config::SharedSettings,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
    ) -> Result<Arc<Self>, SharedError> {
        let connection = Connection::new(settings, metrics)?;
        let parts = connection.parts();
        let tags: Box<[String]> = (0..parts).map(|part| tag_in(part, parts)).collect();
        Ok(Arc::new(Self {
            connection,
            clock: StoreClock::new(settings.cluster),
            namespace: settings.namespace.clone(),
            trials: tags.iter().map(|tag| format!("{}:trial:{tag}", settings.namespace)).collect(),
            tags,
            scripts: Scripts {
                get: Script::new(include_str!("redis_store/get.lua")),
                put: Script::new(include_str!("redis_store/put.lua")),
                merge: Script::new(include_str!("redis_store/merge.lua")),
                lease: Script::new(include_str!("redis_store/lease.lua")),
                book: Script::new(include_str!("redis_store/book.lua")),
            },
            tasks,
        }))
    }

    /// Connects, and keeps the connection and the knowledge of the store's clock, until `stop`.
    pub fn watch(self: &Arc<Self>, stop: &CancellationToken) {
        let (lookout, stop) = (Lookout::new(Arc::clone(self)), stop.clone());
        self.tasks.spawn(async move { stop.run_until_cancelled(lookout.run()).await });
    }

    /// Finds out whether the store is there, and lets this gateway read and write.
    ///
    /// # Errors
    /// The reason why not, without an address.
    pub async fn probe(self: &Arc<Self>) -> Result<(), &'static str> {
        let mut lookout = Lookout::new(Arc::clone(self));
        lookout.look().await;
        if !self.is_there() {
            return Err(lookout.why_not());
        }
        let written = self.lease("probe", LeaseRequest { used: 0, want: 0, cell: LOOK, burst: 1 }).await;
        if self.get(std::slice::from_ref(&self.trials[0])).await.is_err() || written.is_err() {
            return Err("it does not let us read and write: see deploy/shared.md for what is needed");
        }
        Ok(())
    }

    /// Returns the first part of all keys.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns true if the store answered when it was last asked.
    pub fn is_there(&self) -> bool {
        self.connection.is_there()
    }

    /// Returns true if writing is worth a try.
    pub fn takes_writes(&self) -> bool {
        self.connection.takes_writes()
    }

    /// Returns the number of parts that fail by themselves.
    pub fn parts(&self) -> usize {
        self.connection.parts()
    }

    /// Returns the part that holds `key`.
    pub fn part(&self, key: &str) -> usize {
        self.connection.part(key)
    }

    /// Waits until the store is connected to anew.
    pub async fn connected(&self) {
        self.connection.back.notified().await;
    }

    /// Returns the moment `at` by the store's clock, not later than it was; `None` while that is not known.
    pub fn time_of(&self, at: Instant) -> Option<StoreTime> {
        self.clock.time_of(at)
    }

    /// Returns the most by which the clocks of the store's nodes differ.
    pub fn clocks_differ_by(&self) -> Duration {
        self.clock.nodes_differ_by()
    }

    /// Counts an operation that was done.
    pub fn count(&self, operation: SharedOperation, result: SharedResult, took: Duration) {
        self.connection.count(operation, result, took);
    }

    /// Returns the values under `keys`, which lie together. Counts a failure, but not what was found.
    ///
    /// # Errors
    /// Whatever came to nothing.
    pub async fn get(&self, keys: &[String]) -> Result<Found, Failed> {
        let part = self.part(keys.first().map_or("", String::as_str));
        self.get_from(SharedOperation::Get, part, keys).await
    }

    /// Keeps a value unless one as new is held, and counts the result. No request waits for it.
    ///
    /// # Errors
    /// Whatever came to nothing.
    pub async fn put(&self, put: &Put) -> Result<(), Failed> {
        let operation = SharedOperation::Put;
        let Some(shows) = self.clock.shows(Instant::now()) else {
            return Err(self.connection.failed(operation, SharedResult::Skipped));
        };
        let mut call = self.scripts.put.key(&put.key);
        call.arg(&put.value[..]).arg(put.sent_at).arg(micros(put.life)).arg(shows);
        let on_its_way = Duration::from_millis((put.value.len() / BYTES_A_MS) as u64);
        let (asked_at, patience) = (Instant::now(), self.connection.timeout + on_its_way);
        let kept: String = self.connection.write(operation, &put.key, patience, &call).await?;
        let result = if kept == "ok" { SharedResult::Ok } else { SharedResult::Older };
        self.count(operation, result, asked_at.elapsed());
        Ok(())
    }

    /// Removes what lies under `key`. No request waits for it.
    pub async fn forget(&self, key: &str) {
        self.connection.remove(SharedOperation::Put, key).await;
    }

    /// Returns the list of purges in this part, of the cluster with this genesis hash. No request waits for it.
    ///
    /// # Errors
    /// Whatever came to nothing.
    pub async fn purges(&self, genesis: &str, part: usize) -> Result<Listed, Failed> {
        let operation = SharedOperation::Purge;
        let mut found = self.get_from(operation, part, &[self.purge_list(genesis, part)]).await?;
        self.count(operation, SharedResult::Ok, found.asked_at.elapsed());
        let text = found.values.pop().flatten().unwrap_or_default();
        Ok(Listed { text, read_at: found.read_at, asked_at: found.asked_at })
    }

    /// Changes the list of purges in this part, of the cluster with this genesis hash. No request waits for it.
    ///
    /// # Errors
    /// Whatever came to nothing.
    pub async fn change_purges(&self, genesis: &str, part: usize, change: &Change) -> Result<(), Failed> {
        let operation = SharedOperation::Purge;
        let key = self.purge_list(genesis, part);
        let mut call = self.scripts.merge.key(&key);
        call.arg(millis(change.life)).arg(format!("{:020}", change.from));
        call.arg(change.drop.len()).arg(&change.drop).arg(&change.add);
        let (asked_at, patience) = (Instant::now(), self.connection.patience(operation));
        let _: Value = self.connection.write(operation, &key, patience, &call).await?;
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(())
    }

    /// Books what was used of the limit `of`, and leases calls ahead. No request waits for it.
    ///
    /// # Errors
    /// Whatever came to nothing; it may have been booked all the same.
    pub async fn lease(&self, of: &str, request: LeaseRequest) -> Result<Leased, Failed> {
        let operation = SharedOperation::Limit;
        let key = format!("{}:limit:{{{of}}}", self.namespace);
        let mut call = self.scripts.lease.key(&key);
        #[expect(clippy::cast_precision_loss, reason = "a period of an hour at most")]
        let micros = request.cell.as_nanos() as f64 / 1000.0;
        call.arg(request.used).arg(request.want).arg(micros).arg(request.burst);
        let (asked_at, patience) = (Instant::now(), self.connection.timeout);
        let (calls, left, wait): (u32, i64, u64) =
            self.connection.write(operation, &key, patience, &call).await?;
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(Leased { calls, left, wait: Duration::from_micros(wait) })
    }

    /// Books units of the key `of`. No request waits for it.
    ///
    /// # Errors
    /// Whatever came to nothing; the same booking may be tried again.
    pub async fn book(&self, of: &str, booking: &Booking) -> Result<Booked, Failed> {
        let operation = SharedOperation::Quota;
        let key = format!("{}:units:{{{of}}}", self.namespace);
        let mut call = self.scripts.book.key(&key);
        let Booking { windows, units, known, who, number } = booking;
        call.arg(windows).arg(units).arg(known).arg(format!("{who:x}")).arg(number);
        let (asked_at, patience) = (Instant::now(), self.connection.timeout);
        let (day, day_units, month, month_units): (u16, u64, u16, u64) =
            self.connection.write(operation, &key, patience, &call).await?;
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(Booked { windows: [day, month], units: [day_units, month_units] })
    }

    /// Asks a part that is left alone. If it answers, it is asked again from now on.
    async fn try_part(&self, part: usize) {
        let operation = SharedOperation::Get;
        if let Ok(found) = self.found(operation, part, std::slice::from_ref(&self.trials[part])).await {
            self.count(operation, SharedResult::Ok, found.asked_at.elapsed());
        }
    }

    /// Returns the key of the list of purges in this part, of the cluster with this genesis hash.
    fn purge_list(&self, genesis: &str, part: usize) -> String {
        format!("{}:purges1:{genesis}:{}", self.namespace, self.tags[part])
    }

    async fn get_from(
        &self,
        operation: SharedOperation,
        part: usize,
        keys: &[String],
    ) -> Result<Found, Failed> {
        if !self.connection.admits(part) {
            return Err(self.connection.failed(operation, SharedResult::Skipped));
        }
        self.found(operation, part, keys).await
    }

    async fn found(&self, operation: SharedOperation, part: usize, keys: &[String]) -> Result<Found, Failed> {
        let asked_at = Instant::now();
        let mut call = self.scripts.get.prepare_invoke();
        for key in keys {
            call.key(key);
        }
        let reply: Vec<Value> = self.connection.read(operation, part, &call).await?;
        let mut reply = reply.into_iter();
        let read_at = read_time(reply.next(), reply.next());
        let value = |value| match value {
            Value::BulkString(bytes) => Some(Bytes::from(bytes)),
            Value::Nil => None,
            _ => Some(Bytes::new()),
        };
        let values: Vec<_> = reply.map(value).collect();
        let (Some(read_at), true) = (read_at, values.len() == keys.len()) else {
            return Err(self.connection.failed(operation, SharedResult::Refused));
        };
        self.clock.heard(read_at);
        Ok(Found { values, read_at, asked_at })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Locks a mutex that a panic elsewhere does not spoil: all that is kept behind one is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
