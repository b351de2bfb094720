//! The lookout: a background task that checks whether the store is reachable.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{CHECK_INTERVAL, Store};
use crate::telemetry::{SharedOperation, SharedResult};

/// The time for which some part of a Redis cluster may fail before the cluster's topology is read again.
const TOPOLOGY_TIMEOUT: Duration = Duration::from_secs(3);

/// The state of the background task that checks whether the store is reachable.
pub(super) struct Lookout {
    store: Arc<Store>,
    /// The result of the last attempt to connect. The same failure is not logged twice in a row.
    reported: Option<SharedResult>,
    /// The beginning of the present failure: since then, at every check, some part of the store has failed. `None`
    /// while all parts answer.
    gone_since: Option<Instant>,
}

impl Lookout {
    /// Creates a lookout that has not checked yet.
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self { store, reported: None, gone_since: None }
    }

    /// Opens the connection, keeps it alive, and keeps the estimate of the store's clock up to date. Never
    /// returns.
    pub(super) async fn run(mut self) {
        loop {
            self.check().await;
            let _ = tokio::time::timeout(CHECK_INTERVAL, self.store.connection.lost.notified()).await;
        }
    }

    /// Checks the store once, if it is connected. Connects anew if there is no connection, or if the Redis
    /// cluster's topology may have changed.
    pub(super) async fn check(&mut self) {
        let (store, connection) = (&self.store, &self.store.connection);
        let now = Instant::now();
        let gone = connection.open_parts();
        let since = *self.gone_since.get_or_insert(now);
        if gone.is_empty() {
            self.gone_since = None;
        }
        if connection.is_there() && (gone.is_empty() || now.duration_since(since) < TOPOLOGY_TIMEOUT) {
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
        if self.reported != Some(result) && result != SharedResult::Ok {
            tracing::warn!(
                why = hint(result),
                "the shared store cannot be used; this replica works alone until the store can be used"
            );
        }
        self.reported = Some(result);
    }

    /// Returns the reason for the missing connection, as text.
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
