//! Derivations: answers made from a stored entry of another form, byte for byte as a node would write them.
//!
//! Cheap forms are written again for each caller: account forms and shorter lists of samples. Some forms take
//! a pass over a long text: a block in another shape, and one vote account. Those forms are made once, in a
//! fetch that callers share, and stored. An assembled list is stored, too, so that the next answer is not at
//! a lower slot.

pub mod account;
pub mod block;
pub mod list;
mod object;
#[cfg(test)]
pub(crate) mod recorded;
pub mod samples;
pub mod votes;

use bytes::Bytes;

use crate::methods::Pubkey;

/// The derivation of an answer from a stored text.
pub(super) enum Derivation {
    /// One vote account from the list of all.
    VoteAccount(Pubkey),
    /// A block in the second shape, made from the same block in the first shape.
    Block(block::BlockShape, block::BlockShape),
}

impl Derivation {
    pub(super) fn make(&self, text: &Bytes) -> Option<Bytes> {
        match self {
            Self::VoteAccount(pubkey) => votes::only(text, pubkey),
            Self::Block(stored, asked) => block::reshape(text, *stored, *asked),
        }
    }
}
