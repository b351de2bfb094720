//! The look-out: finds out beside the requests whether the store is there, by calls for which nobody waits.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{LOOK, Store};
use crate::telemetry::{SharedOperation, SharedResult};

/// A cluster of which a part is gone for so long may have another shape.
const RESHAPED: Duration = Duration::from_secs(3);

/// The look-out for a store.
pub(super) struct Lookout {
    store: Arc<Store>,
    /// The end of the last attempt to connect, which is not told again.
    told: Option<SharedResult>,
    /// The time since when a part of a cluster is gone.
    gone_since: Option<Instant>,
}

impl Lookout {
    /// Creates a look-out for `store`, which has not looked yet.
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self { store, told: None, gone_since: None }
    }

    /// Connects, and keeps the connection and the knowledge of the store's clock.
    pub(super) async fn run(mut self) {
        loop {
            self.look().await;
            let _ = tokio::time::timeout(LOOK, self.store.connection.lost.notified()).await;
        }
    }

    /// Asks a store to which there is a connection. Connects anew if there is none, or if the cluster may have another
    /// shape.
    pub(super) async fn look(&mut self) {
        let (store, connection) = (&self.store, &self.store.connection);
        let now = Instant::now();
        let gone = connection.open_parts();
        let since = *self.gone_since.get_or_insert(now);
        if gone.is_empty() {
            self.gone_since = None;
        }
        if connection.is_there() && (gone.is_empty() || now.duration_since(since) < RESHAPED) {
            if let Some(time) = connection.beat().await {
                store.clock.heard(time);
            }
            let tried = gone.iter().map(|part| store.try_part(*part));
            join_all(tried).await;
            return;
        }
        self.gone_since = None;
        let connected = connection.connect().await;
        let result = connected.err().unwrap_or(SharedResult::Ok);
        if let Ok(Some(time)) = connected {
            store.clock.heard(time);
        }
        connection.count(SharedOperation::Connect, result, now.elapsed());
        if self.told != Some(result) && result != SharedResult::Ok {
            tracing::warn!(why = hint(result), "no shared store: this gateway goes on alone");
        }
        self.told = Some(result);
    }

    /// Returns the reason why there is no connection, for people.
    pub(super) fn why_not(&self) -> &'static str {
        hint(self.told.unwrap_or(SharedResult::Unreachable))
    }
}

fn hint(result: SharedResult) -> &'static str {
    match result {
        SharedResult::Refused => "it refuses us: see shared.url's user, password and permissions",
        SharedResult::Timeout => "it does not answer",
        _ => "it cannot be connected to",
    }
}
