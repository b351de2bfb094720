//! JSON-RPC in the dialect of Solana nodes: the envelope, and the methods of slotfront as typed queries.
//!
//! [`jsonrpc`] parses a body into calls and writes answers, and [`methods`] turns the params of a call into one
//! canonical query. Two callers may write the same question in different words, and both get the same query:
//!
//! ```
//! use bytes::Bytes;
//! use slotfront_rpc::jsonrpc::envelope::{Element, Request, parse};
//! use slotfront_rpc::methods::{Method, Profile, Query};
//!
//! fn query(body: &'static str) -> Query {
//!     let request = parse(&Bytes::from_static(body.as_bytes()));
//!     let Request::One(Element::Call(call)) = request else { panic!("not a call") };
//!     let method = Method::from_name(str::from_utf8(&call.method).unwrap()).unwrap();
//!     Query::parse(method, &call.params, Profile::Node).unwrap()
//! }
//!
//! let short = query(r#"{"jsonrpc":"2.0","id":1,"method":"getVoteAccounts"}"#);
//! let long = query(
//!     r#"{"id":"a","params":[{"commitment":"finalized"}],"method":"getVoteAccounts","jsonrpc":"2.0"}"#,
//! );
//! assert_eq!(short, long);
//! ```
//!
//! The crate needs neither HTTP nor a runtime.

#![warn(missing_docs)]

#[macro_use]
mod named;

pub mod jsonrpc;
pub mod methods;
