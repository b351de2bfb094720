//! The time limits of requests to the store, and of connecting to one of several servers.

use std::sync::Arc;
use std::time::Duration;

use slotfront::config::{Secret, SharedSettings};
use slotfront::redis_store::Store;
use slotfront::telemetry::Metrics;
use slotfront_testkit::PATIENCE;
use slotfront_testkit::redis_server::Redis;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Returns a connected store, and the guard that keeps it connected.
async fn store(settings: SharedSettings) -> (Arc<Store>, DropGuard) {
    let store = Store::new(&settings, Metrics::new(), TaskTracker::new()).unwrap();
    let stop = CancellationToken::new();
    store.watch(&stop);
    timeout(PATIENCE, store.connected()).await.expect("the store is connected");
    (store, stop.drop_guard())
}

/// Makes `server` answer no command for the time `pause`.
fn delay(server: &Redis, pause: Duration) {
    let millis = u64::try_from(pause.as_millis()).unwrap();
    redis::cmd("CLIENT").arg("PAUSE").arg(millis).exec(&mut server.connection()).unwrap();
}

#[tokio::test]
async fn timeouts_above_a_second_are_kept() {
    let server = Redis::start(&[]);
    let (store, _guard) = store(SharedSettings { timeout: PATIENCE, ..server.settings() }).await;
    // On a busy machine, the delay may be over before the request.
    for _ in 0..20 {
        delay(&server, Duration::from_millis(1500));
        let started = Instant::now();
        let found = store.get(&["test:key".to_owned()]).await;
        assert!(found.is_ok(), "{found:?} after {:?}", started.elapsed());
        if started.elapsed() > Duration::from_millis(1100) {
            return;
        }
    }
    panic!("every delay was over before the request");
}

#[tokio::test]
async fn unusable_servers_do_not_hide_the_next() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("redis://{}", silent.local_addr().unwrap());
    let (old, good) = (Redis::start(&["--rename-command", "HELLO", ""]), Redis::start(&[]));
    for unusable in [vec![old.url()], vec![silent; 3]] {
        let urls =
            unusable.iter().map(String::as_str).chain([good.url().as_str()]).map(Secret::new).collect();
        let (store, _guard) = store(SharedSettings { urls, ..good.settings() }).await;
        assert!(store.get(&["test:key".to_owned()]).await.is_ok(), "after {unusable:?}");
    }
}
