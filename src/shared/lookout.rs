//! Whether the store is there: found out beside the requests, by calls for which nobody waits.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::limits::Ask;
use super::{LOOK, Store, lock, time};
use crate::telemetry::{SharedOperation, SharedResult};

/// A cluster of which a part is gone for so long may have another shape.
const RESHAPED: Duration = Duration::from_secs(3);

/// What the look-out remembers.
#[derive(Default)]
struct Seen {
    /// How the last attempt to connect ended, which is not said again.
    said: Option<SharedResult>,
    /// Since when a part of a cluster is gone.
    gone: Option<Instant>,
}

impl Store {
    /// Whether the store is there, and lets us read and write: `Err` is why not, without an address.
    ///
    /// # Errors
    /// What is wrong with it.
    pub async fn probe(&self) -> Result<(), &'static str> {
        let mut seen = Seen::default();
        self.look(&mut seen).await;
        if !self.is_there() {
            return Err(seen.said.map_or("it cannot be connected to", hint));
        }
        let ask = Ask { used: 0, want: 0, cell: LOOK, burst: 1 };
        let written = self.lease("probe", ask).await;
        if self.get(std::slice::from_ref(&self.trials[0])).await.is_err() || written.is_err() {
            return Err("it does not let us read and write: see deploy/shared.md for what is needed");
        }
        Ok(())
    }

    /// Connects, keeps the connection and the knowledge of the store's clock, until `stop`.
    pub fn watch(self: &Arc<Self>, stop: &CancellationToken) {
        let (store, stop) = (Arc::clone(self), stop.clone());
        self.tasks.spawn(async move {
            let mut seen = Seen::default();
            let looking = async {
                loop {
                    store.look(&mut seen).await;
                    let _ = tokio::time::timeout(LOOK, store.lost.notified()).await;
                }
            };
            stop.run_until_cancelled(looking).await;
        });
    }

    /// One look: a heartbeat where there is a connection, else, or where the cluster may have another shape, a new one.
    async fn look(&self, seen: &mut Seen) {
        let (operation, now) = (SharedOperation::Connect, Instant::now());
        let open = |part: &usize| !lock(&self.breakers[*part]).is_closed();
        let gone: Vec<_> = (0..self.breakers.len()).filter(open).collect();
        let since = *seen.gone.get_or_insert(now);
        if gone.is_empty() {
            seen.gone = None;
        }
        if self.is_there() && (gone.is_empty() || now.duration_since(since) < RESHAPED) {
            self.beat().await;
            let tried = gone.iter().map(|part| {
                self.found(SharedOperation::Get, *part, std::slice::from_ref(&self.trials[*part]))
            });
            for found in join_all(tried).await.into_iter().flatten() {
                self.count(SharedOperation::Get, SharedResult::Ok, found.asked_at.elapsed());
            }
            return;
        }
        seen.gone = None;
        let connected = async {
            let mut link = self.dial.connect().await?;
            // One that takes longer than a request waits is not there for requests.
            let command = redis::cmd("TIME");
            let asked = command.query_async::<Vec<Value>>(&mut link.reads);
            let asked = tokio::time::timeout(self.timeout, asked).await.map_err(std::io::Error::from)??;
            Ok::<_, RedisError>((link, asked))
        };
        let result = match tokio::time::timeout(LOOK * 3, connected).await {
            Ok(Ok((link, shown))) => {
                let mut shown = shown.into_iter();
                if let Some(time) = time(shown.next(), shown.next()) {
                    self.heard(time);
                }
                if !self.cluster {
                    lock(&self.breakers[0]).succeeded();
                }
                if self.link.swap(Some(Arc::new(link))).is_none() {
                    tracing::info!("the shared store is there");
                }
                self.back.notify_one();
                SharedResult::Ok
            }
            Ok(Err(error)) => match error.kind() {
                ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                    SharedResult::Refused
                }
                _ if error.is_timeout() => SharedResult::Timeout,
                _ => SharedResult::Unreachable,
            },
            Err(_) => SharedResult::Timeout,
        };
        self.count(operation, result, now.elapsed());
        if seen.said != Some(result) && result != SharedResult::Ok {
            tracing::warn!(why = hint(result), "no shared store: this gateway goes on alone");
        }
        seen.said = Some(result);
    }

    /// What the store's clock shows, of a store that nobody may be asking.
    async fn beat(&self) {
        let Some(mut wire) = self.link.load().as_deref().map(|link| link.reads.clone()) else { return };
        let (operation, asked_at) = (SharedOperation::Connect, Instant::now());
        let command = redis::cmd("TIME");
        let asked = command.query_async::<Vec<Value>>(&mut wire);
        let result = match tokio::time::timeout(self.timeout, asked).await {
            Ok(Ok(shown)) => {
                let mut shown = shown.into_iter();
                if let Some(time) = time(shown.next(), shown.next()) {
                    self.heard(time);
                }
                if !self.cluster {
                    lock(&self.breakers[0]).succeeded();
                }
                SharedResult::Ok
            }
            // In a cluster, whichever node it was: its parts know by themselves.
            _ if self.cluster => SharedResult::Timeout,
            Ok(Err(error)) => self.judge(SharedOperation::Get, 0, &error),
            Err(_) => {
                self.part_failed(0);
                SharedResult::Timeout
            }
        };
        self.count(operation, result, asked_at.elapsed());
    }
}

/// Why there is no connection, for people.
fn hint(result: SharedResult) -> &'static str {
    match result {
        SharedResult::Refused => "it refuses us: see shared.url's user, password and permissions",
        SharedResult::Timeout => "it does not answer",
        _ => "it cannot be connected to",
    }
}
