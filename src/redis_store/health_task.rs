//! The background task that checks whether the store is reachable.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{CHECK_INTERVAL, Store};
use crate::telemetry::{SharedOperation, SharedResult};

/// The time for which checks may find failures before a new connection is opened. Another server may be the primary by
/// then, or the Redis cluster may have another topology.
const CONNECT_ANEW_AFTER: Duration = Duration::from_secs(3);

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

    /// Opens the connection, keeps it alive, and keeps the estimate of the store's clock up to date. Never
    /// returns.
    pub(super) async fn run(mut self) {
        loop {
            self.check().await;
            let _ = tokio::time::timeout(CHECK_INTERVAL, self.store.connection.lost.notified()).await;
        }
    }

    /// Checks the store once if it is connected, and connects if it is not or has failed for too long.
    pub(super) async fn check(&mut self) {
        let (store, connection) = (&self.store, &self.store.connection);
        let now = Instant::now();
        let since = self.failing_since.unwrap_or(now);
        self.failing_since = connection.take_failed().then_some(since);
        if connection.is_connected() && now.duration_since(since) < CONNECT_ANEW_AFTER {
            if let Some(time) = connection.beat().await {
                store.clock.heard(time);
            }
            return;
        }
        self.failing_since = None;
        let connected = connection.connect().await;
        let result = connected.err().unwrap_or(SharedResult::Ok);
        if let Ok(Some(time)) = connected {
            store.clock.heard(time);
        }
        connection.count(SharedOperation::Connect, result, now.elapsed());
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
