//! The records of blocks that gateways share: which accounts a block writes.
//!
//! A gateway that finds no record claims it for a moment, so that the others wait for it instead of asking a node.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::{BYTES_A_MS, Failed, Store, millis};
use crate::telemetry::{SharedOperation, SharedResult};

/// The text that stands in the place of a record while a gateway asks a node for the block.
const CLAIM: &[u8] = b"claim";

/// The state of a record in the store.
#[derive(Debug, PartialEq, Eq)]
pub enum BlockRecord {
    /// There is no record. It has been claimed for this gateway.
    ClaimedNow,
    /// There is no record, and another gateway has claimed it.
    ClaimedBefore,
    /// The record, or something else that was written to its key.
    Found(Bytes),
}

impl Store {
    /// Reads a record, of which at most `max_bytes` bytes are returned. Claims it for `life` if there is none. Counts
    /// failures; the caller counts successes.
    ///
    /// # Errors
    /// The result of the failed operation.
    pub async fn claim_block(
        &self,
        key: &str,
        life: Duration,
        max_bytes: usize,
    ) -> Result<BlockRecord, Failed> {
        let operation = SharedOperation::Block;
        let mut call = self.scripts.claim.key(key);
        call.arg(CLAIM).arg(millis(life)).arg(max_bytes);
        let found: Value = self.connection.write(operation, key, self.connection.timeout, &call).await?;
        match found {
            Value::BulkString(bytes) if bytes.is_empty() => Ok(BlockRecord::ClaimedNow),
            Value::BulkString(bytes) if bytes == CLAIM => Ok(BlockRecord::ClaimedBefore),
            Value::BulkString(bytes) => Ok(BlockRecord::Found(bytes.into())),
            _ => Err(self.connection.failed(operation, SharedResult::Refused)),
        }
    }

    /// Writes a record in place of a claim or an older record. Counts the result.
    pub async fn put_block(&self, key: &str, record: &[u8], life: Duration) {
        let operation = SharedOperation::Block;
        let mut call = self.scripts.set.key(key);
        call.arg(record).arg(millis(life));
        let on_its_way = Duration::from_millis((record.len() / BYTES_A_MS) as u64);
        let (asked_at, patience) = (Instant::now(), self.connection.timeout + on_its_way);
        // A failure is counted by the connection.
        if self.connection.write::<Value>(operation, key, patience, &call).await.is_ok() {
            self.count(operation, SharedResult::Ok, asked_at.elapsed());
        }
    }
}
