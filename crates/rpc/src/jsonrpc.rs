//! JSON-RPC 2.0 as Solana nodes speak it (paritytech/jsonrpc 18): envelope, id, batch, reply.
//!
//! Knows no method. Parsing borrows from the body and builds no tree: `params` and `id` stay raw text.

pub mod envelope;
pub mod reply;
pub(crate) mod scan;

use bytes::Bytes;

/// A caller's id, echoed with its type: null, an unsigned 64-bit number, or a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Id {
    /// `null`, or unknown.
    Null,
    /// A number from 0 to 2^64 − 1.
    Number(u64),
    /// A string, as JSON text including its quotes, escaped the way a node writes it.
    Text(Bytes),
}

/// The `params` member as raw JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Params {
    /// Absent or `null`.
    None,
    /// An array, as text.
    Array(Bytes),
    /// An object, as text.
    Object(Bytes),
}

/// One well-formed call that wants an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Whom to answer.
    pub id: Id,
    /// The method's name, not yet looked up. A slice of the body, or the unescaped text.
    pub method: Bytes,
    /// Its params, not yet read.
    pub params: Params,
}
