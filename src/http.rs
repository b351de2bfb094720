//! The public listener: accept loop, routes, body limits, content types, CORS, compression, headers.
//!
//! The hot route is `POST /v3/<API_KEY>`, which carries the JSON-RPC calls. A request comes from `listener` over `visit` to
//! the router of `routes`, whose handler of calls ends in `request::serve`.

mod accepted;
mod access;
mod activity;
mod body_parts;
mod call;
mod client;
mod client_ip;
mod context;
mod cors;
mod fields;
mod forward;
mod front;
mod in_flight;
mod incoming;
mod key;
mod keyless;
pub mod listener;
mod log_sampler;
pub(crate) mod openrpc;
mod permits;
mod proxy_protocol;
pub(crate) mod readiness;
mod reply;
mod request;
mod routes;
mod send;
pub mod shutdown;
mod timed_socket;
mod tip;
mod uncached;
mod upgrade;
mod visit;

pub(crate) use fields::has_one_host;
pub use front::Front;
pub use log_sampler::LogSampler;
