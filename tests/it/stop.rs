//! The order of a stop: readiness first, then the listener, then requests in flight, then all remaining
//! connections.

use std::time::Duration;

use slotfront_testkit::wire::{self, exchange};
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The length of those phases of the stop that should end almost at once.
const SHORT: Duration = Duration::from_millis(10);

/// Waits until the admin listener reports that the gateway drains.
async fn until_draining(gateway: &TestGateway) {
    loop {
        let ready = gateway.admin("/readyz").await;
        if ready.status == 503 && ready.text.contains("draining") {
            return;
        }
    }
}

#[tokio::test]
async fn readiness_fails_while_calls_are_served() {
    let gateway =
        TestGateway::builder().nodes(1).grace_periods(|periods| periods.notice = PATIENCE).start().await;
    assert_eq!(gateway.admin("/readyz").await.status, 200);
    assert_eq!((gateway.get("/health").await.status, gateway.get("/v3/dev/health").await.status), (200, 200));
    let seen = async {
        until_draining(&gateway).await;
        for path in ["/health", "/v3/dev/health"] {
            let health = gateway.get(path).await;
            assert_eq!((health.status, &*health.text), (503, "unknown"), "{path}");
        }
        // A load balancer that has not checked readiness yet still sends calls.
        assert_eq!(gateway.get_nodes().send().await.status, 200);
    };
    gateway.during_the_notice(seen).await;
}

#[tokio::test]
async fn both_ports_are_unready_before_a_node_has_answered() {
    let start = TestGateway::builder().nodes(2).prepare(|cluster| {
        cluster.nodes().iter().for_each(|node| node.set_healthy(false));
    });
    let gateway = start
        .config(|config| {
            config
                .upstreams
                .iter_mut()
                .for_each(|node| node.url = slotfront::config::Secret::new("http://127.0.0.1:1"));
        })
        .start_unprobed()
        .await;
    assert_eq!(gateway.admin("/readyz").await.status, 503);
    let health = gateway.get("/health").await;
    assert_eq!((health.status, &*health.text), (503, "unknown"));
}

#[tokio::test]
async fn calls_finish_before_the_admin_listener_ends() {
    let gateway =
        TestGateway::builder().nodes(1).grace_periods(|periods| periods.notice = SHORT).start().await;
    let app = &gateway.app;
    let gate = gateway.cluster.node(0).hold("getVoteAccounts");
    let watched = async {
        gate.arrived(1).await;
        let stopping = async { tokio::join!(app.stop(), app.stop()) };
        let seen = async {
            gateway.until_closed().await;
            assert_eq!(gateway.admin("/readyz").await.status, 503, "the admin listener ends last");
            gate.release();
        };
        tokio::join!(stopping, seen);
    };
    let (answer, ()) = tokio::join!(gateway.get_votes().send(), watched);
    assert_eq!(answer.status, 200);
    assert!(TcpStream::connect(app.admin).await.is_err());
    app.stop().await;
}

#[tokio::test]
async fn during_the_notice_every_answer_says_close() {
    let gateway =
        TestGateway::builder().nodes(1).grace_periods(|periods| periods.notice = PATIENCE).start().await;
    let close = "connection: close";
    let request = wire::call("getClusterNodes");
    let mut kept = gateway.connect().await;
    let (status, fields, _) = exchange(&mut kept, request.as_bytes()).await;
    assert!(status.contains("200") && !fields.contains(close), "{fields:?}");
    let seen = async {
        until_draining(&gateway).await;
        for socket in [&mut kept, &mut gateway.connect().await] {
            let (status, fields, _) = exchange(socket, request.as_bytes()).await;
            assert!(status.contains("200") && fields.contains(close), "{fields:?}");
            assert_eq!(socket.read(&mut [0; 8]).await.ok(), Some(0));
        }
    };
    gateway.during_the_notice(seen).await;
}

#[tokio::test]
async fn a_stop_without_clients_gives_notice() {
    let gateway =
        TestGateway::builder().nodes(1).grace_periods(|periods| periods.notice = PATIENCE).start().await;
    assert_eq!(gateway.connections(), 0);
    let seen = async {
        until_draining(&gateway).await;
        let (status, fields, _) =
            exchange(&mut gateway.connect().await, wire::call("getClusterNodes").as_bytes()).await;
        assert!(status.contains("200") && fields.contains("connection: close"), "{fields:?}");
    };
    gateway.during_the_notice(seen).await;
}

#[tokio::test]
async fn an_idle_connection_is_heard_after_the_notice() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .grace_periods(|periods| (periods.notice, periods.last_moment) = (SHORT, PATIENCE))
        .start()
        .await;
    let app = &gateway.app;
    let (mut kept, request) = (gateway.connect().await, wire::call("getClusterNodes"));
    exchange(&mut kept, request.as_bytes()).await;
    let seen = async {
        gateway.until_closed().await;
        let (status, fields, _) = exchange(&mut kept, request.as_bytes()).await;
        assert!(status.contains("200") && fields.contains("connection: close"), "{fields:?}");
    };
    tokio::join!(app.stop(), seen);
}

#[tokio::test]
async fn silent_connections_end_after_the_last_moment() {
    // The drain timeout and the header timeout are too long to end a connection on which nothing was sent.
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.drain_timeout = PATIENCE * 10;
            config.server.header_timeout = PATIENCE * 10;
        })
        .grace_periods(|periods| (periods.notice, periods.last_moment) = (SHORT, SHORT))
        .start()
        .await;
    let (new, mut served) = (gateway.connect().await, gateway.connect().await);
    exchange(&mut served, wire::call("getClusterNodes").as_bytes()).await;
    gateway.until("both are open", || gateway.connections() == 2).await;
    let stopped = tokio::time::timeout(PATIENCE, gateway.app.stop()).await;
    assert!(stopped.is_ok(), "the stop waited for a silent connection");
    for mut socket in [new, served] {
        assert_eq!(socket.read(&mut [0; 8]).await.ok(), Some(0));
    }
}

#[tokio::test]
async fn a_connection_in_the_queue_is_served() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.server.max_connections = 2)
        .grace_periods(|periods| (periods.notice, periods.last_moment) = (SHORT, PATIENCE))
        .start()
        .await;
    let app = &gateway.app;
    let nodes = wire::call("getClusterNodes");
    // Two connections are open, so the third waits in the kernel's queue until one of them ends.
    let mut open = [gateway.connect().await, gateway.connect().await];
    for socket in &mut open {
        exchange(socket, nodes.as_bytes()).await;
    }
    let mut queued = gateway.connect().await;
    queued.write_all(nodes.as_bytes()).await.unwrap();
    let seen = async {
        gateway.until_closed().await;
        drop(open);
        assert!(exchange(&mut queued, b"").await.0.contains("200"));
        drop(queued);
    };
    tokio::join!(app.stop(), seen);
}

#[tokio::test]
async fn drain_timeout_cuts_hung_calls() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.server.drain_timeout = Duration::from_millis(100))
        .start()
        .await;
    let app = &gateway.app;
    let gate = gateway.cluster.node(0).hold("getVoteAccounts");
    let mut socket = gateway.connect().await;
    socket.write_all(wire::call("getVoteAccounts").as_bytes()).await.unwrap();
    gate.arrived(1).await;
    let mut answer = [0; 64];
    let ((), cut) = tokio::join!(app.stop(), socket.read(&mut answer));
    assert!(matches!(cut, Ok(0) | Err(_)), "{cut:?}");
    assert_eq!(gateway.in_flight(), 0);
    assert_eq!(gateway.connections(), 0);
}

#[tokio::test]
async fn a_websocket_that_opens_before_the_stop_is_told_of_it() {
    let gateway =
        TestGateway::builder().nodes(1).grace_periods(|periods| periods.notice = PATIENCE / 20).start().await;
    let opening = async {
        until_draining(&gateway).await;
        let mut socket = gateway.try_socket("/v3/dev", "").await.unwrap();
        socket.subscribe("slotSubscribe", serde_json::json!([])).await;
        socket
    };
    let ((), mut socket) = tokio::join!(gateway.app.stop(), opening);
    assert_eq!(socket.closed().await, 1001);
}
