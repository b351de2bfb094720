//! The order of a stop: readiness first, then the listener, then requests in flight, then all remaining
//! connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use slotfront::app::App;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fast_path::{NOT_PLAIN, exchange};
use crate::harness::{PATIENCE, Stage};
use crate::http::{connect, post, wire};

/// A time that is over before anything waits for it.
const SHORT: Duration = Duration::from_millis(10);

/// Waits until the listener is closed.
pub(crate) async fn until_closed(app: &App) {
    while TcpStream::connect(app.public).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the gateway of `stage` reports that it drains.
async fn until_draining(stage: &Stage) {
    loop {
        let ready = stage.admin("/readyz").await;
        if ready.status == 503 && ready.text.contains("draining") {
            return;
        }
    }
}

/// Runs `seen` beside a stop whose notice outlasts it.
pub(crate) async fn during_the_notice(app: &App, seen: impl Future<Output = ()>) {
    tokio::select! {
        () = app.stop() => panic!("the notice ended first"),
        () = seen => {}
    }
}

/// Returns a call for the fast path, and one that hyper reads.
fn both_ways() -> [String; 2] {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"}).to_string();
    ["", NOT_PLAIN].map(|more| post("/v3/dev", more, &body))
}

#[tokio::test]
async fn readiness_fails_while_calls_are_served() {
    let stage = Stage::ending(|_| {}, |periods| periods.notice = PATIENCE).await;
    assert_eq!(stage.admin("/readyz").await.status, 200);
    let seen = async {
        until_draining(&stage).await;
        // A balancer that has not checked yet.
        assert_eq!(stage.call("getClusterNodes", json!([])).await.status, 200);
    };
    during_the_notice(stage.app.as_ref().expect("running"), seen).await;
}

#[tokio::test]
async fn calls_finish_before_the_admin_listener_ends() {
    let stage = Stage::ending(|_| {}, |periods| periods.notice = SHORT).await;
    let app = stage.app.as_ref().expect("running");
    let gate = stage.cluster.node(0).hold("getVoteAccounts");
    let watched = async {
        gate.arrived(1).await;
        let stopping = async { tokio::join!(app.stop(), app.stop()) };
        let seen = async {
            until_closed(app).await;
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
async fn during_the_notice_every_answer_says_close() {
    let stage = Stage::ending(|_| {}, |periods| periods.notice = PATIENCE).await;
    let close = "connection: close";
    let mut kept = Vec::new();
    for request in both_ways() {
        let mut socket = connect(&stage).await;
        let (status, fields, _) = exchange(&mut socket, request.as_bytes()).await;
        assert!(status.contains("200") && !fields.contains(close), "{fields:?}");
        kept.push((socket, request));
    }
    let seen = async {
        until_draining(&stage).await;
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
    during_the_notice(stage.app.as_ref().expect("running"), seen).await;
}

#[tokio::test]
async fn a_stop_without_clients_gives_notice() {
    let stage = Stage::ending(|_| {}, |periods| periods.notice = PATIENCE).await;
    assert_eq!(stage.front().metrics.connections.get(), 0);
    let seen = async {
        until_draining(&stage).await;
        let (status, fields, _) = exchange(&mut connect(&stage).await, both_ways()[0].as_bytes()).await;
        assert!(status.contains("200") && fields.contains("connection: close"), "{fields:?}");
    };
    during_the_notice(stage.app.as_ref().expect("running"), seen).await;
}

#[tokio::test]
async fn an_idle_connection_is_heard_after_the_notice() {
    let stage =
        Stage::ending(|_| {}, |periods| (periods.notice, periods.last_moment) = (SHORT, PATIENCE)).await;
    let app = stage.app.as_ref().expect("running");
    let mut kept = Vec::new();
    for request in both_ways() {
        let mut socket = connect(&stage).await;
        exchange(&mut socket, request.as_bytes()).await;
        kept.push((socket, request));
    }
    let seen = async {
        until_closed(app).await;
        for (mut socket, request) in kept {
            let (status, fields, _) = exchange(&mut socket, request.as_bytes()).await;
            assert!(status.contains("200") && fields.contains("connection: close"), "{fields:?}");
        }
    };
    tokio::join!(app.stop(), seen);
}

#[tokio::test]
async fn silent_connections_end_after_the_last_moment() {
    // No other timer ends a connection on which nothing was sent.
    let stage = Stage::ending(
        |config| {
            config.server.drain_timeout = PATIENCE * 10;
            config.server.header_timeout = PATIENCE * 10;
        },
        |periods| (periods.notice, periods.last_moment) = (SHORT, SHORT),
    )
    .await;
    let mut silent = vec![connect(&stage).await];
    for request in both_ways() {
        let mut socket = connect(&stage).await;
        exchange(&mut socket, request.as_bytes()).await;
        silent.push(socket);
    }
    stage.until("all are open", || stage.front().metrics.connections.get() == 3).await;
    let stopped = tokio::time::timeout(PATIENCE, stage.app.as_ref().expect("running").stop()).await;
    assert!(stopped.is_ok(), "somebody was waited for");
    for mut socket in silent {
        assert_eq!(socket.read(&mut [0; 8]).await.ok(), Some(0));
    }
}

#[tokio::test]
async fn a_connection_in_the_queue_is_served() {
    let stage = Stage::ending(
        |config| config.server.max_connections = 2,
        |periods| (periods.notice, periods.last_moment) = (SHORT, PATIENCE),
    )
    .await;
    let app = stage.app.as_ref().expect("running");
    let nodes = wire("getClusterNodes");
    // Two are open, so that the third waits in the kernel's queue until one of them ends.
    let mut open = [connect(&stage).await, connect(&stage).await];
    for socket in &mut open {
        exchange(socket, nodes.as_bytes()).await;
    }
    let mut queued = connect(&stage).await;
    queued.write_all(nodes.as_bytes()).await.unwrap();
    let seen = async {
        until_closed(app).await;
        drop(open);
        assert!(exchange(&mut queued, b"").await.0.contains("200"));
        drop(queued);
    };
    tokio::join!(app.stop(), seen);
}

#[tokio::test]
async fn drain_timeout_cuts_hung_calls() {
    let stage = Stage::of(1, |config| config.server.drain_timeout = Duration::from_millis(100)).await;
    let app = stage.app.as_ref().expect("running");
    let gate = stage.cluster.node(0).hold("getVoteAccounts");
    let mut socket = connect(&stage).await;
    socket.write_all(wire("getVoteAccounts").as_bytes()).await.unwrap();
    gate.arrived(1).await;
    let mut answer = [0; 64];
    let ((), cut) = tokio::join!(app.stop(), socket.read(&mut answer));
    assert!(matches!(cut, Ok(0) | Err(_)), "{cut:?}");
    assert_eq!(stage.front().in_flight.load(Ordering::Relaxed), 0);
    assert_eq!(stage.front().metrics.connections.get(), 0);
}
