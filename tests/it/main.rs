//! Behaviours through the real door: a simulated cluster stepped by hand, the whole gateway, a real socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cache;
mod contract;
mod dashboards;
mod gateway;
mod harness;
mod http;
mod methods;
mod pool;
mod tidy;
