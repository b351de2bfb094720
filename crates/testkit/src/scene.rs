//! A cache without a gateway, for benchmarks and measurements.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use slotfront::cache::Cache;
use slotfront::frontier::Frontier;
use slotfront::methods::Pubkey;
use slotfront::pool::Pool;
use slotfront::telemetry::Metrics;
use tokio_util::task::TaskTracker;

use crate::cluster::TestCluster;

/// A cache in front of one simulated node. The node's slot never changes, so that entries stay fresh.
pub struct CacheScene {
    /// The simulated cluster to which the node belongs.
    pub cluster: TestCluster,
    pub cache: Arc<Cache>,
}

impl CacheScene {
    /// Starts the node, and creates a cache that calls it. Callers use the cache directly, without a socket.
    pub async fn start() -> Self {
        let cluster = TestCluster::start(1).await;
        let config = cluster.config();
        let (metrics, frontier) = (Metrics::new(), Arc::new(Frontier::new(1)));
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).expect("a pool"));
        let cache = Cache::new(&config, frontier, pool, Arc::default(), metrics, TaskTracker::new(), None);
        Self { cluster, cache }
    }

    /// Returns the body of a getAccountInfo request for an account, in base64 at confirmed.
    pub fn body(account: &Pubkey) -> Bytes {
        let params = json!([account.to_string(), {"encoding": "base64", "commitment": "confirmed"}]);
        json!({"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": params}).to_string().into()
    }
}
