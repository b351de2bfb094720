//! The list of purges, which all gateways of one cluster add to and read. Each part of the store has a copy, so that a part
//! that is gone costs what it held, and no answer is read from a part whose purges are not known. To be waited for by no
//! request.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::{Failed, Store, StoreTime};
use crate::telemetry::{SharedOperation, SharedResult};

/// Returns true if no request waits for the operation: how fast it is says nothing of what requests would wait for.
pub(super) fn is_patient(operation: SharedOperation) -> bool {
    operation == SharedOperation::Purge
}

/// The list as it was read.
#[derive(Debug)]
pub struct Listed {
    /// Its lines; empty where there are none.
    pub text: Bytes,
    /// When it was read, by the store.
    pub read_at: StoreTime,
    /// When it was asked for.
    pub asked_at: Instant,
}

/// A change of a list. Each line begins with a moment by the store's clock in 20 digits.
#[derive(Debug)]
pub struct Change {
    /// Lines that the list lacks.
    pub add: Vec<String>,
    /// Lines that are of no use.
    pub drop: Vec<String>,
    /// Lines from before are dropped, too.
    pub from: StoreTime,
    /// How long the list is kept.
    pub life: Duration,
}

impl Store {
    /// How long an operation may take.
    pub(super) fn patience(&self, operation: SharedOperation) -> Duration {
        if is_patient(operation) { self.timeout.max(super::LOOK) } else { self.timeout }
    }

    /// How many parts fail by themselves.
    pub fn parts(&self) -> usize {
        self.breakers.len()
    }

    /// Where this part has the list of the cluster with this genesis hash.
    fn purge_list(&self, genesis: &str, part: usize) -> String {
        format!("{}:purges1:{genesis}:{}", self.namespace, self.tags[part])
    }

    /// The list in this part, of the cluster with this genesis hash.
    ///
    /// # Errors
    /// Whatever came to nothing.
    pub async fn purges(&self, genesis: &str, part: usize) -> Result<Listed, Failed> {
        let operation = SharedOperation::Purge;
        if !self.admits(part) {
            return Err(self.failed(operation, SharedResult::Skipped));
        }
        let mut found = self.found(operation, part, &[self.purge_list(genesis, part)]).await?;
        self.count(operation, SharedResult::Ok, found.asked_at.elapsed());
        let text = found.values.pop().flatten().unwrap_or_default();
        Ok(Listed { text, read_at: found.read_at, asked_at: found.asked_at })
    }

    /// Changes the list in this part, of the cluster with this genesis hash.
    ///
    /// # Errors
    /// Whatever came to nothing.
    pub async fn change_purges(&self, genesis: &str, part: usize, change: &Change) -> Result<(), Failed> {
        let operation = SharedOperation::Purge;
        let key = self.purge_list(genesis, part);
        let mut call = self.scripts.merge.key(&key);
        call.arg(super::millis(change.life)).arg(format!("{:020}", change.from));
        call.arg(change.drop.len()).arg(&change.drop).arg(&change.add);
        let asked_at = Instant::now();
        let _: Value = self.write(operation, &key, self.patience(operation), &call).await?;
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(())
    }

    /// What the clocks of the store's nodes may differ by.
    pub fn clocks_differ_by(&self) -> Duration {
        if self.cluster { super::CLUSTER_CLOCKS } else { Duration::ZERO }
    }

    /// Waits until the store is connected to anew.
    pub async fn connected(&self) {
        self.back.notified().await;
    }

    /// Takes away what lies under `key`. To be waited for by no request.
    pub async fn forget(&self, key: &str) {
        let operation = SharedOperation::Put;
        if !self.takes_writes() {
            return;
        }
        let Some(mut wire) = self.link.load().as_deref().map(|link| link.writes.clone()) else { return };
        let (asked_at, mut command) = (Instant::now(), redis::cmd("DEL"));
        let done = tokio::time::timeout(self.timeout, command.arg(key).exec_async(&mut wire)).await;
        let result = match done {
            Ok(Ok(())) => SharedResult::Ok,
            Ok(Err(error)) => self.judge(operation, self.part(key), &error),
            Err(_) => SharedResult::Timeout,
        };
        self.count(operation, result, asked_at.elapsed());
    }
}
