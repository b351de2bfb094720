//! Behaviours through the real door: a simulated cluster stepped by hand, the whole gateway, a real socket.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod admin;
mod amiss;
mod attacks;
mod backwards;
mod billing;
mod cache;
mod client_address;
mod client_libraries;
mod clusters;
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
mod last_answer;
mod merge;
mod methods;
mod newer_nodes;
mod pool;
mod probes;
mod promises;
mod rate;
mod redis_server;
mod reload;
mod shared;
mod slow_reader;
mod spy;
mod stop;
mod tidy;
mod tls;
mod todays_nodes;
mod traces;
mod upstreams;
mod upstreams_api;
mod verify;
mod waits;
