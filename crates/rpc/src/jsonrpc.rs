//! JSON-RPC 2.0 in the dialect of Solana nodes (paritytech/jsonrpc 18): envelope, id, batch, reply.
//!
//! This module knows no methods. Parsing borrows from the body and builds no tree: `params` and `id` stay raw text.

pub mod envelope;
pub mod reply;
pub(crate) mod scan;

use bytes::Bytes;

/// A caller's id, echoed with its type: null, an unsigned 64-bit number, or a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Id {
    /// The id `null`, or an id that could not be read.
    Null,
    /// A number from 0 to 2^64 − 1.
    Number(u64),
    /// A string, as JSON text with its quotes, escaped as a node escapes it.
    Text(Bytes),
}

/// The `params` member as raw JSON text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Params {
    /// Absent or `null`.
    None,
    /// An array as JSON text.
    Array(Bytes),
    /// An object as JSON text.
    Object(Bytes),
}

/// A well-formed call with an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The id for the answer.
    pub id: Id,
    /// The name of the method, which may be unknown: a slice of the body, or the unescaped text.
    pub method: Bytes,
    /// The unparsed params.
    pub params: Params,
}
