//! Behaviours through real sockets: a simulated cluster that is stepped by hand, and the whole gateway.

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
mod hedge;
mod http;
mod http2;
mod imports;
mod last_answer;
mod merge;
mod methods;
mod newer_nodes;
mod pages;
mod pool;
mod probes;
mod promises;
mod rate;
mod reload;
mod slow_reader;
mod stop;
mod tidy;
mod tls;
mod todays_nodes;
mod traces;
mod upstreams;
mod upstreams_api;
mod verify;
mod waits;
mod workspace;
