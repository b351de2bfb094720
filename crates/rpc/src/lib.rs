//! JSON-RPC as Solana nodes speak it: the envelope, and the methods of slotfront as typed queries.
//!
//! It knows no HTTP and no runtime. `jsonrpc` splits a body into calls and writes answers; `methods` turns the params of a
//! call into one canonical query.

pub mod jsonrpc;
pub mod methods;
