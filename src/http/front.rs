//! What requests need of the program.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio_util::task::TaskTracker;

use super::log_sampler::LogSampler;
use super::shutdown::Signal;
use crate::cache::Cache;
use crate::config::reload::InForce;
use crate::fair::{ByteBudget, Share};
use crate::follow::FollowedChain;
use crate::frontier::Frontier;
use crate::gateway::{Gateway, PerAddress};
use crate::pool::Pool;
use crate::subscribe::Hub;
use crate::telemetry::{Metrics, Tracer};
use crate::tip::Tip;

/// The parts of the program that requests need.
pub struct Front {
    pub config: Arc<InForce>,
    /// The API keys and their limits.
    pub gateway: Arc<Gateway>,
    pub cache: Arc<Cache>,
    /// The nodes, for `/health` and for calls that the cache does not answer.
    pub pool: Arc<Pool>,
    /// The newest slots of the cluster, at each commitment.
    pub frontier: Arc<Frontier>,
    /// The slots that callers were shown, and the reads that never go back behind them.
    pub tip: Arc<Tip>,
    /// The run of blocks that is followed, for the status page.
    pub followed: Arc<FollowedChain>,
    pub metrics: Arc<Metrics>,
    pub tracer: Tracer,
    /// The subscriptions over WebSockets.
    pub subscriptions: Arc<Hub>,
    /// The limit on log lines about slow and failed requests.
    pub access: LogSampler,
    /// The number of requests in flight, which `server.max_in_flight` limits.
    pub in_flight: Arc<AtomicUsize>,
    /// Triggered once a stop has begun.
    pub draining: Signal,
    /// The tasks of calls that continue after their callers have disconnected.
    pub tasks: TaskTracker,
    /// The budget for the bytes of all unsent answers, and the bytes reserved from it.
    pub outgoing: Arc<ByteBudget>,
    /// The budget for the bytes of all bodies, and the bytes that bodies hold.
    pub incoming: Arc<ByteBudget>,
    /// The shares of that budget which client addresses have whose callers have no plan.
    pub(crate) incoming_shares: PerAddress<Share>,
}
