//! Behaviours through the real door: a simulated cluster stepped by hand, the whole gateway, a real socket.

mod cache;
mod contract;
mod dashboards;
mod gateway;
mod harness;
mod http;
mod methods;
mod pool;
mod tidy;
