//! What the cache keeps: an answer's bytes with its slot and the moment it was asked for.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::class::Class;
use super::derive::account::{ByteSpan, Value};
use crate::coding::{Coded, Coding};
use crate::methods::{AccountEncoding, Slot};

/// JSON text in one or several pieces, as far as possible slices of what a node sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextParts {
    /// All of it in one piece.
    One(Bytes),
    /// The pieces in order.
    Many(Arc<[Bytes]>),
}

impl TextParts {
    /// The pieces in order.
    pub fn pieces(&self) -> &[Bytes] {
        match self {
            Self::One(bytes) => std::slice::from_ref(bytes),
            Self::Many(pieces) => pieces,
        }
    }

    /// All of it in one piece; several are copied together.
    pub fn whole(&self) -> Bytes {
        match self {
            Self::One(bytes) => bytes.clone(),
            Self::Many(pieces) => pieces.concat().into(),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.pieces().iter().map(Bytes::len).sum()
    }

    /// Whether there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.pieces().iter().all(Bytes::is_empty)
    }

    /// The pieces as one body.
    pub fn of(mut pieces: Vec<Bytes>) -> Self {
        if pieces.len() == 1 { Self::One(pieces.swap_remove(0)) } else { Self::Many(pieces.into()) }
    }

    /// What it takes to hold the pieces together, in bytes beyond their own.
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

/// What a node said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// The `result` member.
    Result(TextParts),
    /// The `error` member, with its code read out.
    Error {
        /// The JSON-RPC code.
        code: i32,
        /// The error object.
        body: Bytes,
    },
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Result(body) => body.len(),
            Self::Error { body, .. } => body.len(),
        }
    }

    /// Whether there is no byte in it; never so for what a node said.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that it holds in memory, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::Result(body) => body.len() + body.binding_bytes(),
            Self::Error { body, .. } => body.len(),
        }
    }
}

/// What surrounds context and value in a single account's answer, and what the allocator adds to it.
const ENVELOPE_BYTES: usize = 64;

/// What is kept of an answer.
#[derive(Debug, Clone)]
pub enum EntryBody {
    /// What the node said, as it said it.
    Verbatim(Payload),
    /// One account, of which other forms can be made.
    Account {
        /// The whole result, of which the value is a part.
        result: Bytes,
        /// Where its context stands.
        context: ByteSpan,
        /// Its value.
        value: Value,
        /// In which encoding, without a slice, the caller asked for whom it was fetched.
        asked: Option<AccountEncoding>,
    },
    /// A list of accounts, each of whose bytes are shared with its single entry where that is long.
    Accounts {
        /// The context.
        context: Bytes,
        /// The values in the order of the keys.
        values: Arc<[Value]>,
        /// In which encoding, without a slice, the caller asked for whom it was fetched.
        asked: Option<AccountEncoding>,
    },
}

impl EntryBody {
    /// All that it holds in memory beyond its fixed size, in bytes; what entries share is counted for each.
    pub fn weight(&self) -> usize {
        match self {
            Self::Verbatim(payload) => payload.weight(),
            Self::Account { result, .. } => result.len(),
            Self::Accounts { context, values, .. } => {
                // Each holds on to its single answer: beside the value that is a context and the envelope.
                let texts: usize = values.iter().map(|value| value.text().len()).sum();
                let beside = values.len() * (context.len() + size_of::<Value>() + ENVELOPE_BYTES);
                context.len() + texts + beside
            }
        }
    }
}

/// What an answer stands for, and so how long it may be served.
#[derive(Debug, Clone, Copy)]
pub struct EntryMeta {
    /// The answer's slot: its context's, else the asked node's own as known before the call was sent.
    pub slot: Slot,
    /// When the upstream call was sent: the answer's age counts from here.
    pub sent_at: Instant,
    /// How long it may be served.
    pub class: Class,
    /// Whether it was made from an entry of another question.
    pub derived: bool,
}

/// One kept answer.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What is kept of it.
    pub kept: EntryBody,
    /// What it stands for.
    pub stamp: EntryMeta,
    /// Its text compressed, where a caller took it so.
    pub coded: CompressedForms,
}

/// The compressed forms of one text, each made once and shared by all who hold it. Most texts have none, and little room
/// for them.
#[derive(Debug, Clone, Default)]
pub struct CompressedForms(OnceLock<Arc<[OnceCell<Arc<Coded>>; 2]>>);

impl CompressedForms {
    /// The form in `coding`, once it is made.
    pub fn of(&self, coding: Coding) -> &OnceCell<Arc<Coded>> {
        &self.0.get_or_init(Arc::default)[coding as usize]
    }

    /// The form in `coding`, if it is made.
    pub fn made(&self, coding: Coding) -> Option<&Arc<Coded>> {
        self.0.get()?[coding as usize].get()
    }

    /// What they hold in memory, in bytes.
    pub fn weight(&self) -> usize {
        let forms = self.0.get().into_iter().flat_map(|forms| forms.iter());
        forms.filter_map(OnceCell::get).map(|coded| coded.len()).sum()
    }
}

impl EntryMeta {
    /// Whether it stands for at least `slot`.
    pub fn reaches(&self, slot: Option<Slot>) -> bool {
        slot.is_none_or(|slot| self.slot >= slot)
    }
}
