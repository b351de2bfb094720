//! The public listener: accept loop, routes, body limits, content types, CORS, compression, headers.
//!
//! The hot route is `POST /v3/<API_KEY>`, which carries the JSON-RPC calls. A request comes from `listener` over `service`
//! to the router of `routes`, whose handler of calls ends in `request::serve`.

mod accepted;
pub mod access;
mod activity;
mod call;
pub(crate) mod certificate;
mod client;
mod client_ip;
mod cors;
mod fields;
mod in_flight;
mod incoming;
mod key;
mod keyless;
pub mod listener;
pub(crate) mod openrpc;
mod permits;
mod proxy_protocol;
pub(crate) mod readiness;
mod reply;
mod request;
mod routes;
mod send;
mod service;
pub mod shutdown;
mod timed_socket;
mod tip;
pub mod tls;
mod uncached;
mod upgrade;
mod visit;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio_util::task::TaskTracker;

pub(crate) use fields::has_one_host;
pub use in_flight::Outgoing;
pub use incoming::Incoming;

use crate::cache::Cache;
use crate::config::reload::InForce;
use crate::follow::FollowedChain;
use crate::frontier::Frontier;
use crate::gateway::Gateway;
use crate::pool::Pool;
use crate::subscribe::Hub;
use crate::telemetry::{Metrics, Tracer};
use crate::tip::Tip;

/// The parts of the program that requests need.
pub struct Front {
    /// The settings in force.
    pub config: Arc<InForce>,
    /// The API keys and their limits.
    pub gateway: Arc<Gateway>,
    /// The cache, which answers calls.
    pub cache: Arc<Cache>,
    /// The nodes, for `/health` and for calls that the cache does not answer.
    pub pool: Arc<Pool>,
    /// The newest slots of the cluster, at each commitment.
    pub frontier: Arc<Frontier>,
    /// The slots that callers were shown, and the reads that never go back behind them.
    pub tip: Arc<Tip>,
    /// The run of blocks that is followed, for the status page.
    pub followed: Arc<FollowedChain>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The recorder of traces.
    pub tracer: Tracer,
    /// The subscriptions over WebSockets.
    pub subscriptions: Arc<Hub>,
    /// The limit on log lines about slow and failed requests.
    pub access: access::LogSampler,
    /// The number of requests in flight, which `server.max_in_flight` limits.
    pub in_flight: Arc<AtomicUsize>,
    /// Triggered once a stop has begun.
    pub draining: shutdown::Signal,
    /// The tasks of calls that continue after their callers have disconnected.
    pub tasks: TaskTracker,
    /// The budget for the bytes of all unsent answers, and the bytes reserved from it.
    pub outgoing: Arc<Outgoing>,
    /// The budget for the bytes of all bodies, and the bytes that bodies hold.
    pub incoming: Arc<Incoming>,
}
