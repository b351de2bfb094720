//! Behaviours through the real door: a simulated cluster stepped by hand, the whole gateway, a real socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod admin;
mod amiss;
mod attacks;
mod backwards;
mod cache;
mod contract;
mod dashboards;
mod derive;
mod fast_path;
mod faults;
mod floors;
mod further;
mod fuzz;
mod gateway;
mod harness;
mod hedge;
mod http;
mod http2;
mod merge;
mod methods;
mod pool;
mod probes;
mod promises;
mod redis_server;
mod reload;
mod shared;
mod spy;
mod standing;
mod stop;
mod tidy;
mod tls;
mod traces;
mod upstreams;
mod verify;
