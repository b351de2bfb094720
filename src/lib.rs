//! slotfront: a caching read-through JSON-RPC proxy in front of Solana RPC nodes.
//!
//! The modules are listed from the top down: each calls only later ones. A request passes http, gateway, cache,
//! pool and node, as a typed value in each: bytes → `Call` → `Query` → `CacheAnswer` → bytes. `ARCHITECTURE.md` is the
//! map.

pub mod app;
pub mod cli;

pub(crate) mod admin;
pub mod http;

pub mod subscribe;

pub mod gateway;
use slotfront_rpc::named;
pub use slotfront_rpc::{jsonrpc, methods};

pub mod send;
pub mod tip;

pub mod cache;
pub mod follow;
pub mod pool;
pub mod redis_store;

pub mod frontier;
pub mod node;

pub mod breaker;
pub mod chunks;
pub mod coding;
pub mod config;
pub mod error;
mod fair;
mod limiter;
pub mod low_priority;
mod sync;
pub mod telemetry;
pub mod tls;
