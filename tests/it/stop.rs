//! How it ends: readiness first, then what is in flight, then what hangs.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fast_path::{NOT_PLAIN, exchange};
use crate::harness::Stage;
use crate::http::{connect, post, wire};

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

/// A call on the fast path, and by the other way of HTTP/1.1.
fn both_ways() -> [String; 2] {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"}).to_string();
    ["", NOT_PLAIN].map(|more| post("/v3/dev", more, &body))
}

#[tokio::test]
async fn during_the_notice_every_answer_says_close() {
    // The notice is a tenth of it, and nobody waits for its end.
    let stage = Stage::of(1, |config| config.server.drain_timeout = Duration::from_mins(5)).await;
    let app = stage.app.as_ref().expect("running");
    let close = "connection: close";
    let mut kept = Vec::new();
    for request in both_ways() {
        let mut socket = connect(&stage).await;
        let (status, fields, _) = exchange(&mut socket, request.as_bytes()).await;
        assert!(status.contains("200") && !fields.contains(close), "{fields:?}");
        kept.push((socket, request));
    }
    let seen = async {
        while stage.admin("/readyz").await.status == 200 {}
        let mut ended = Vec::new();
        for (mut socket, request) in kept {
            let newcomer = connect(&stage).await;
            for socket in [&mut socket, &mut { newcomer }] {
                let (status, fields, _) = exchange(socket, request.as_bytes()).await;
                assert!(status.contains("200") && fields.contains(close), "{fields:?}");
                ended.push(socket.read(&mut [0; 8]).await.ok());
            }
        }
        assert_eq!(ended, [Some(0); 4]);
    };
    tokio::select! {
        () = app.stop() => panic!("the notice ended first"),
        () = seen => {}
    }
}

#[tokio::test]
async fn an_idle_connection_is_heard_after_the_notice() {
    let stage = Stage::of(1, |config| config.server.drain_timeout = Duration::from_secs(30)).await;
    let app = stage.app.as_ref().expect("running");
    let mut kept = Vec::new();
    for request in both_ways() {
        let mut socket = connect(&stage).await;
        exchange(&mut socket, request.as_bytes()).await;
        kept.push((socket, request));
    }
    let mut silent = connect(&stage).await;
    exchange(&mut silent, both_ways()[0].as_bytes()).await;
    let seen = async {
        while TcpStream::connect(app.public).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for (mut socket, request) in kept {
            let (status, fields, _) = exchange(&mut socket, request.as_bytes()).await;
            assert!(status.contains("200") && fields.contains("connection: close"), "{fields:?}");
        }
        assert_eq!(silent.read(&mut [0; 8]).await.ok(), Some(0), "silence has an end, too");
    };
    tokio::join!(app.stop(), seen);
}

#[tokio::test]
async fn a_connection_in_the_queue_is_served() {
    let stage = Stage::of(1, |config| {
        config.server.drain_timeout = Duration::from_secs(30);
        config.server.max_connections = 2;
    })
    .await;
    let app = stage.app.as_ref().expect("running");
    let nodes = wire("getClusterNodes");
    // Two are open, so that the third waits in the kernel's queue until one of them goes.
    let mut open = [connect(&stage).await, connect(&stage).await];
    for socket in &mut open {
        exchange(socket, nodes.as_bytes()).await;
    }
    let mut queued = connect(&stage).await;
    queued.write_all(nodes.as_bytes()).await.unwrap();
    let seen = async {
        while TcpStream::connect(app.public).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(open);
        assert!(exchange(&mut queued, b"").await.0.contains("200"));
    };
    tokio::join!(app.stop(), seen);
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
