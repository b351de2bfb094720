//! JSON-RPC in the dialect of Solana nodes: the envelope, and the methods of slotfront as typed queries.
//!
//! The crate needs neither HTTP nor a runtime. `jsonrpc` parses a body into calls and writes answers. `methods` turns the
//! params of a call into one canonical query.

#![warn(missing_docs)]

#[macro_use]
mod named;

pub mod jsonrpc;
pub mod methods;
