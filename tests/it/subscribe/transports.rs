//! WebSockets over TLS, and behind a balancer that names its clients.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use slotfront::config::AuthMode;
use slotfront_testkit::{RefusedHandshake, TestCertificate, TestGateway, TestSocket};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

#[tokio::test]
async fn a_socket_opens_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = TestCertificate::write(dir.path());
    let gateway = TestGateway::builder().nodes(1).tls(&certificate).start().await;
    let client = certificate.trusting_client().http1_only().build().unwrap();
    let url = format!("https://localhost:{}/v3/dev", gateway.app.public.port());
    let handshake = client
        .get(url)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let upgraded = handshake.send().await.unwrap().upgrade().await.unwrap();
    let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "slotSubscribe" });
    socket.send(Message::text(call.to_string())).await.unwrap();
    let answer: Value =
        serde_json::from_str(socket.next().await.unwrap().unwrap().to_text().unwrap()).unwrap();
    assert!(answer["result"].is_u64(), "{answer}");
}

#[tokio::test]
async fn a_socket_behind_a_balancer_is_that_of_its_client() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.proxy_protocol = true;
            config.server.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
            // Each client address may have one socket.
            config.auth.mode = AuthMode::Open;
            config.auth.open_plan = Some("dev".to_owned());
            config.plans.get_mut("dev").unwrap().connections = 1;
        })
        .start()
        .await;
    let open = async |client: &str| -> Result<TestSocket, RefusedHandshake> {
        let mut stream = TcpStream::connect(gateway.app.public).await.unwrap();
        stream.write_all(format!("PROXY TCP4 {client} 10.0.0.1 1 2\r\n").as_bytes()).await.unwrap();
        TestSocket::open(stream, "/v3/x", "").await
    };
    let mut one = open("192.0.2.1").await.unwrap();
    one.subscribe("slotSubscribe", json!([])).await;
    assert_eq!(open("192.0.2.1").await.err().map(|refused| refused.status), Some(429));
    open("192.0.2.2").await.unwrap().subscribe("slotSubscribe", json!([])).await;
}
