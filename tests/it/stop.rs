//! How it ends: readiness first, then what is in flight, then what hangs.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::Stage;
use crate::http::{connect, wire};

#[tokio::test]
async fn a_stop_fails_readiness_first_and_lets_the_held_call_finish() {
    let stage = Stage::of(1, |config| config.server.drain_timeout = Duration::from_secs(30)).await;
    let app = stage.app.as_ref().expect("running");
    assert_eq!(stage.admin("/readyz").await.status, 200);
    let gate = stage.cluster.node(0).hold("getVoteAccounts");
    let watched = async {
        gate.arrived(1).await;
        let stopping = async { tokio::join!(app.stop(), app.stop()) };
        let seen = async {
            let ready = stage.admin("/readyz").await;
            assert_eq!((ready.status, ready.text.contains("draining")), (503, true), "{}", ready.text);
            // A balancer that has not looked yet is still served.
            assert_eq!(stage.call("getClusterNodes", json!([])).await.status, 200);
            while TcpStream::connect(app.public).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(stage.admin("/readyz").await.status, 503, "admin goes last");
            gate.release();
        };
        tokio::join!(stopping, seen);
    };
    let (answer, ()) = tokio::join!(stage.call("getVoteAccounts", json!([])), watched);
    assert_eq!(answer.status, 200);
    assert!(TcpStream::connect(app.admin).await.is_err());
    app.stop().await;
}

#[tokio::test]
async fn past_the_drain_timeout_a_hung_call_is_cut() {
    let stage = Stage::of(1, |config| config.server.drain_timeout = Duration::from_millis(100)).await;
    let app = stage.app.as_ref().expect("running");
    let gate = stage.cluster.node(0).hold("getVoteAccounts");
    let mut socket = connect(&stage).await;
    socket.write_all(wire("getVoteAccounts").as_bytes()).await.unwrap();
    gate.arrived(1).await;
    let mut answer = [0; 64];
    let ((), cut) = tokio::join!(app.stop(), socket.read(&mut answer));
    assert!(matches!(cut, Ok(0) | Err(_)), "{cut:?}");
    assert_eq!(stage.front().in_flight.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(stage.front().metrics.connections.get(), 0);
}

#[tokio::test]
async fn a_stop_without_clients_is_at_once() {
    let stage = Stage::of(1, |config| config.server.drain_timeout = Duration::from_mins(5)).await;
    let begun = tokio::time::Instant::now();
    stage.app.as_ref().expect("running").stop().await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}
