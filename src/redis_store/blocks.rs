//! The records of blocks that gateways share: which accounts a block writes.
//!
//! A gateway that finds no record stores a claim for a moment. Other gateways then wait for the record instead of
//! asking a node.

use bytes::Bytes;

/// The text that stands in the place of a record while a gateway asks a node for the block.
pub(super) const CLAIM: &[u8] = b"claim";

/// The state of a record in the store.
#[derive(Debug, PartialEq, Eq)]
pub enum BlockRecord {
    /// There is no record. This gateway has just stored its claim to write the record.
    ClaimedNow,
    /// There is no record yet. A claim to write the record is already stored.
    ClaimedBefore,
    /// The record, or something else that was written to its key.
    Found(Bytes),
}

impl BlockRecord {
    /// Reads the answer of the script that looks for a record.
    pub(super) fn read(answer: Vec<u8>) -> Self {
        match answer {
            answer if answer.is_empty() => Self::ClaimedNow,
            answer if answer == CLAIM => Self::ClaimedBefore,
            answer => Self::Found(answer.into()),
        }
    }
}
