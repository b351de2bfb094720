//! A cache before one simulated node that stands still, so that a kept answer stays fresh.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use slotfront::cache::Cache;
use slotfront::config::{Config, Secret, Upstream};
use slotfront::frontier::Frontier;
use slotfront::methods::{PerCommitment, Pubkey};
use slotfront::pool::Pool;
use slotfront::telemetry::Metrics;
use slotfront_sim::{Cluster, Settings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A gateway without a socket that answers calls.
pub(crate) struct Scene {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) config: Config,
    pub(crate) cache: Arc<Cache>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let cluster = Cluster::new(Settings { nodes: 1, slot_time: None, ..Settings::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config::dev(any, any, vec![Upstream::plain("node", Secret::new(url))]);
        config.cache.ttl.account = PerCommitment::uniform(Duration::from_hours(1));
        Arc::clone(&cluster).serve(vec![listener], &TaskTracker::new(), CancellationToken::new()).await;
        let (metrics, frontier) = (Metrics::new(), Arc::new(Frontier::new(1)));
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).expect("a pool"));
        let cache = Cache::new(&config, frontier, pool, Arc::clone(&metrics), TaskTracker::new(), None);
        Self { cluster, config, cache, metrics }
    }
}

/// A call for a wallet, as a client writes it.
pub(crate) fn body(wallet: &Pubkey) -> Bytes {
    let params = json!([wallet.to_string(), {"encoding": "base64", "commitment": "confirmed"}]);
    json!({"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": params}).to_string().into()
}
