//! Answers made from what is kept in another form, byte for byte as a node would write them.
//!
//! What is cheap is made anew for each caller: forms of accounts, fewer samples. What takes a pass over a long text is
//! made once, in the flight of those who ask for it, and kept: a block in a lesser shape, one vote account. A list that
//! was put together is kept, too, for it has a slot behind which the next answer must not go.

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

/// The answer that is made of a kept text.
pub(super) enum Source {
    /// One vote account of all.
    Votes(Pubkey),
    /// A block in another shape.
    Block(block::Shape, block::Shape),
}

impl Source {
    pub(super) fn make(&self, text: &Bytes) -> Option<Bytes> {
        match self {
            Self::Votes(pubkey) => votes::only(text, pubkey),
            Self::Block(kept, asked) => block::reshape(text, *kept, *asked),
        }
    }
}
