//! What the cache keeps: an answer's bytes with its slot and the moment it was asked for.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::freshness::Class;
use crate::methods::Slot;

/// JSON text in one or several pieces, which are slices of what a node sent: a derived answer copies nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// All of it in one piece.
    One(Bytes),
    /// The pieces in order.
    Many(Arc<[Bytes]>),
}

impl Body {
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

    /// What it takes to hold the pieces together, in bytes beyond their own.
    pub fn binding_bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Many(pieces) => size_of_val::<[Bytes]>(pieces),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::One(bytes)
    }
}

/// What a node said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// The `result` member.
    Result(Body),
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

/// One kept answer.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What the node said.
    pub payload: Payload,
    /// The answer's slot: its context's, else the asked node's own as known before the call was sent.
    pub slot: Slot,
    /// When the upstream call was sent: the answer's age counts from here.
    pub sent_at: Instant,
    /// How long it may be served.
    pub class: Class,
}

impl Entry {
    /// Whether it stands for at least `slot`.
    pub fn reaches(&self, slot: Option<Slot>) -> bool {
        slot.is_none_or(|slot| self.slot >= slot)
    }
}
