//! Slow clients: a client that reads a long answer slowly gets all of it, and one that reads nothing is cut
//! off.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::{Client, ClientBuilder};
use serde_json::Value;
use slotfront::config::Config;
use slotfront_testkit::wire::post;
use slotfront_testkit::{TestCertificate, TestGateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::task::TaskTracker;

/// The longest time for which a client may read nothing. A slow client takes less time for each step, even on a
/// busy machine.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of bytes that a slow client reads in each step. Reading a third of the kernel's usual buffer at this
/// pace takes longer than [`WRITE_TIMEOUT`].
const STEP_BYTES: usize = 24 * 1024;
const STEP: Duration = Duration::from_millis(150);
/// The number of slow steps before the client speeds up. Together they take longer than [`WRITE_TIMEOUT`].
const STEPS: usize = 50;

fn settings(config: &mut Config) {
    config.server.write_timeout = WRITE_TIMEOUT;
    (config.server.max_batch, config.server.max_body) = (1000, 64 << 10);
    config.plans.get_mut("dev").expect("the dev plan").max_batch = None;
}

/// Returns a request whose answer exceeds the kernel's buffers of both sides.
fn long_request(gateway: &TestGateway) -> String {
    let block = gateway.get_block(gateway.cluster.examples().block_with_v0).version_0();
    Value::from(vec![block.json(); 600]).to_string()
}

/// Starts a proxy for one connection, and returns its address. The proxy forwards requests at once, and reads
/// from `gateway` slowly.
async fn slowly(gateway: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    TaskTracker::new().spawn(async move {
        let (mut client_reads, mut client) = listener.accept().await.unwrap().0.into_split();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(32 << 10).unwrap();
        let (mut gateway, mut gateway_writes) = socket.connect(gateway).await.unwrap().into_split();
        let tells = async { tokio::io::copy(&mut client_reads, &mut gateway_writes).await };
        let reads = async {
            let (mut part, mut clock) = (vec![0; STEP_BYTES], tokio::time::interval(STEP));
            for _ in 0..STEPS {
                clock.tick().await;
                match gateway.read(&mut part).await? {
                    0 => return client.shutdown().await,
                    read => client.write_all(&part[..read]).await?,
                }
            }
            tokio::io::copy(&mut gateway, &mut client).await?;
            client.shutdown().await
        };
        let _ = tokio::join!(tells, reads);
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_gets_the_whole_answer() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = TestCertificate::write(dir.path());
    let plain = TestGateway::builder().nodes(1).config(settings).start().await;
    let secured = plain.beside().tls(&certificate).start().await;
    let request = long_request(&plain);
    let whole = plain.post(request.clone()).send().await.text.len();
    assert!(whole > 4 << 20, "{whole} bytes fit into the kernel's buffers");

    let ask = async |name: &str, gateway: &TestGateway, scheme: &str, client: ClientBuilder| {
        let address = slowly(gateway.app.public).await;
        let client: Client = client.no_proxy().no_gzip().no_zstd().build().unwrap();
        let request = client
            .post(format!("{scheme}://localhost:{}/v3/dev", address.port()))
            .header("content-type", "application/json")
            .body(request.clone());
        let body = match request.send().await {
            Ok(response) => response.bytes().await,
            Err(error) => Err(error),
        };
        assert_eq!(body.map(|body| body.len()).map_err(|error| format!("{error:?}")), Ok(whole), "{name}");
    };
    tokio::join!(
        ask("HTTP/1.1", &plain, "http", Client::builder().http1_only()),
        ask("HTTP/2", &plain, "http", Client::builder().http2_prior_knowledge()),
        ask("TLS", &secured, "https", certificate.trusting_client().http1_only()),
        ask("HTTP/2 over TLS", &secured, "https", certificate.trusting_client()),
    );
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            settings(config);
            config.server.write_timeout = Duration::from_secs(1);
        })
        .start()
        .await;
    let request = long_request(&gateway);
    let mut socket = gateway.connect().await;
    socket.write_all(post("/v3/dev", "", &request).as_bytes()).await.unwrap();
    gateway.until("it is served", || gateway.connections() == 1).await;
    gateway.until("it is cut", || gateway.connections() == 0).await;
    drop(socket);
}
