//! The block records that gateways share through the store. Each record lists the accounts that one block writes.
//!
//! A gateway that finds no record stores a claim: a note that the gateway is asking a node for the block. For a
//! moment, other gateways then wait for the record instead of asking a node, too.

use bytes::Bytes;

/// The text that is stored in place of a block's record while a gateway asks a node for the block.
pub(super) const CLAIM: &[u8] = b"claim";

/// The state of a block's record in the store.
#[derive(Debug, PartialEq, Eq)]
pub enum BlockRecord {
    /// There is no record. This gateway has just stored a claim, which announces that it will write the record.
    ClaimedNow,
    /// There is no record yet, but some gateway has already stored a claim, which announces the record.
    ClaimedBefore,
    /// The record, or something else that is stored under the record's key.
    Found(Bytes),
}

impl BlockRecord {
    /// Interprets the answer of the script `claim.lua`, which looks for a record.
    pub(super) fn read(answer: Vec<u8>) -> Self {
        match answer {
            answer if answer.is_empty() => Self::ClaimedNow,
            answer if answer == CLAIM => Self::ClaimedBefore,
            answer => Self::Found(answer.into()),
        }
    }
}
