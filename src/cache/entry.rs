//! The entries of the cache. An entry is the bytes of an answer, the answer's slot, and the moment at which the
//! node was asked.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::derive::account::{AccountValue, ByteSpan};
use super::follow_stamp::FollowStamp;
use crate::coding::{Coding, CompressedText};
use crate::fair::TakenOnce;
use crate::methods::{AccountEncoding, Commitment, Slot};
use crate::node::code;
use crate::pool::PoolReply;

/// JSON text in one or several pieces. Where possible, the pieces are slices of a node's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextParts {
    One(Bytes),
    Many(Arc<[Bytes]>),
}

impl TextParts {
    pub fn pieces(&self) -> &[Bytes] {
        match self {
            Self::One(bytes) => std::slice::from_ref(bytes),
            Self::Many(pieces) => pieces,
        }
    }

    /// Returns the text in one piece. Several pieces are copied together.
    pub fn whole(&self) -> Bytes {
        match self {
            Self::One(bytes) => bytes.clone(),
            Self::Many(pieces) => pieces.concat().into(),
        }
    }

    pub fn len(&self) -> usize {
        self.pieces().iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces().iter().all(Bytes::is_empty)
    }

    /// Creates a text of `pieces`, in order. No bytes are copied.
    pub fn of(mut pieces: Vec<Bytes>) -> Self {
        if pieces.len() == 1 { Self::One(pieces.swap_remove(0)) } else { Self::Many(pieces.into()) }
    }

    /// Returns the memory for the list of pieces, in bytes. The text itself is not counted.
    pub fn binding_bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Many(pieces) => size_of_val::<[Bytes]>(pieces),
        }
    }
}

impl From<Bytes> for TextParts {
    fn from(bytes: Bytes) -> Self {
        Self::One(bytes)
    }
}

/// A node's answer: its `result` or its `error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    Result(TextParts),
    Error { code: i32, body: Bytes },
}

impl Payload {
    /// Returns true if this is the error that a transaction has a higher version than the caller accepts.
    pub(super) fn refuses_version(&self) -> bool {
        matches!(self, Self::Error { code: code::UNSUPPORTED_TRANSACTION_VERSION, .. })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Result(body) => body.len(),
            Self::Error { body, .. } => body.len(),
        }
    }

    /// Returns the number of bytes that the payload holds in memory.
    pub fn weight(&self) -> usize {
        match self {
            Self::Result(body) => body.len() + body.binding_bytes(),
            Self::Error { body, .. } => body.len(),
        }
    }
}

/// The memory in bytes for a single account's answer beyond its context and value: the text around them, and the
/// allocator's overhead.
const ENVELOPE_BYTES: usize = 64;

#[derive(Debug, Clone)]
pub enum EntryBody {
    /// The answer exactly as the node sent it.
    Verbatim(Payload),
    /// The answer about one account, from which other forms can be made.
    Account {
        /// The whole `result`, of which `value` is a slice.
        result: Bytes,
        /// The span of the context within `result`.
        context: ByteSpan,
        value: AccountValue,
        /// The encoding for which the account was fetched. `None` if the caller asked for a slice.
        asked: Option<AccountEncoding>,
    },
    /// The answer about a list of accounts. The bytes of each account are shared with the entry for that account alone.
    Accounts {
        context: Bytes,
        values: Arc<[AccountValue]>,
        /// The encoding for which the list was fetched. `None` if the caller asked for a slice, or if the
        /// list was assembled.
        asked: Option<AccountEncoding>,
    },
}

impl EntryBody {
    /// Returns the heap memory of the body in bytes. The size of the type itself is not counted. Bytes that
    /// entries share are counted for each of them.
    pub fn weight(&self) -> usize {
        match self {
            Self::Verbatim(payload) => payload.weight(),
            Self::Account { result, .. } => result.len(),
            Self::Accounts { context, values, .. } => {
                // Each value keeps the whole answer about its single account in memory: the value, a context, and
                // the text around them.
                let texts: usize = values.iter().map(|value| value.text().len()).sum();
                let beside = values.len() * (context.len() + size_of::<AccountValue>() + ENVELOPE_BYTES);
                context.len() + texts + beside
            }
        }
    }
}

/// The class of an answer, which decides how long it may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Account data, token balances, and errors that depend on an account.
    Account(Commitment),
    /// The fee of a message. An answer without a fee is not stored.
    Fee(Commitment),
    Votes(Commitment),
    Samples,
    ClusterNodes,
    OneSlot(Commitment),
    /// What no node that may hold it has, as all of them have said when this slot was the newest known one at this
    /// commitment. The entry expires with the next slot, and is never served because a node does not answer.
    Absent(Slot, Commitment),
    /// An answer for which a node has walked over many accounts.
    Scan,
    Uncached,
    /// A final block, or the error -32015 (unsupported transaction version) about a final block. Also what never changes
    /// otherwise: final transactions and lists of final blocks, and what a cluster keeps for an epoch or for ever.
    BlockFinal,
    /// A block that is confirmed but not final, or the error -32015 (unsupported transaction version) about such a
    /// block.
    BlockConfirmed,
    /// The error -32004: the block does not exist yet at this commitment. The entry expires when the newest
    /// known slot reaches the block's slot.
    NotYet(Slot, Commitment),
    /// A slot that was certainly skipped: a later block names an earlier slot as its parent's.
    Skipped,
    /// A slot that nodes report as skipped. They may only have lost its block. Its TTL is `unconfirmed` in the setting
    /// `cache.ttl.no_block`.
    SkippedUnconfirmed,
}

/// The slot, age and class of an answer, which decide how long it may be served.
#[derive(Debug, Clone, Copy)]
pub struct EntryMeta {
    /// The slot of the answer's context. Without a context, the slot that the node was known to have reached
    /// before the call.
    pub slot: Slot,
    /// The moment at which the upstream call was sent. The answer's age counts from here.
    pub sent_at: Instant,
    /// The class, which decides how long the answer may be served.
    pub class: Class,
    /// True if the answer was made from stored answers to other calls.
    pub derived: bool,
    /// True if the answer was read at another slot or commitment than it shows. The followed blocks prove that the
    /// accounts are the same at the slot and commitment that it shows.
    pub carried: bool,
    /// The id of the node that gave the answer. `None` if several did, or another replica asked.
    pub node: Option<u32>,
}

impl EntryMeta {
    /// Returns what is known of an answer of this class when it arrives.
    pub(super) fn of(reply: &PoolReply, class: Class) -> Self {
        let node = u32::try_from(reply.node).ok();
        Self { slot: reply.slot, sent_at: reply.sent_at, class, derived: false, carried: false, node }
    }
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub body: EntryBody,
    pub meta: EntryMeta,
    /// The slot at which the accounts were read, and the run of blocks followed then. They allow the answer to be
    /// served at later slots. `None` if the answer is served at its own slot only.
    pub stamp: Option<Arc<FollowStamp>>,
    /// The compressed forms of the text, for callers who accept them.
    pub compressed: CompressedForms,
    /// The bytes of the text in answers that are not sent yet.
    pub unsent: TakenOnce,
}

impl Entry {
    pub fn new(body: EntryBody, meta: EntryMeta, stamp: Option<Arc<FollowStamp>>) -> Self {
        Self { body, meta, stamp, compressed: CompressedForms::default(), unsent: TakenOnce::default() }
    }
}

/// The compressed forms of one text. Each form is made once and shared by all callers who get the text. Most texts
/// have none, so the memory for the forms is allocated on first use.
#[derive(Debug, Clone, Default)]
pub struct CompressedForms(OnceLock<Arc<[OnceCell<Arc<CompressedText>>; 2]>>);

impl CompressedForms {
    /// Returns the cell of the form in `coding`. The cell is empty until a caller fills it.
    pub fn of(&self, coding: Coding) -> &OnceCell<Arc<CompressedText>> {
        &self.0.get_or_init(Arc::default)[coding as usize]
    }

    /// Returns the form in `coding`, if it has been made.
    pub fn made(&self, coding: Coding) -> Option<&Arc<CompressedText>> {
        self.0.get()?[coding as usize].get()
    }

    /// Returns the memory that the forms hold, in bytes.
    pub fn weight(&self) -> usize {
        let forms = self.0.get().into_iter().flat_map(|forms| forms.iter());
        forms.filter_map(OnceCell::get).map(|coded| coded.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_forms_weigh_their_bytes() {
        let (forms, text) = (CompressedForms::default(), Bytes::from(vec![b' '; 5000]));
        let mut expected = 0;
        assert_eq!(forms.weight(), 0);
        for coding in [Coding::Gzip, Coding::Zstd] {
            let compressed = Arc::new(CompressedText::new(coding, &text).unwrap());
            expected += compressed.bytes();
            forms.of(coding).set(compressed).unwrap();
            assert_eq!(forms.weight(), expected, "{coding:?}");
        }
    }
}
