//! A connection's last answer reaches a client that is still sending (RFC 9112, 9.6).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use slotfront_testkit::wire::{is_whole, post, read_until};
use slotfront_testkit::{PATIENCE, TestCertificate, TestGateway};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}"#;
/// More bytes than the kernel accepts from a client with a small buffer, so that the client still sends when
/// the answer comes.
const MORE_BYTES: usize = 2 << 20;

/// Opens a connection with a small send buffer.
async fn narrow(gateway: &TestGateway) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_send_buffer_size(64 << 10)?;
    socket.connect(gateway.app.public).await
}

/// Sends `request` and [`MORE_BYTES`] further bytes on `socket` before it reads. Returns all that was
/// answered.
async fn answer_of<S: AsyncRead + AsyncWrite + Unpin>(mut socket: S, request: &str) -> io::Result<String> {
    let sent = request.to_owned() + &post("/v3/dev", "", CALL).repeat(MORE_BYTES / CALL.len())[..MORE_BYTES];
    socket.write_all(sent.as_bytes()).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("an end")?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[track_caller]
fn assert_last(name: &str, answer: io::Result<String>, status: &str) {
    let answer = answer.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(answer.starts_with("HTTP/1.") && answer[9..].starts_with(status), "{name}: {answer:?}");
    assert!(is_whole(&answer) && answer.matches("HTTP/1.").count() == 1, "{name}: {answer:?}");
}

#[tokio::test]
async fn client_that_keeps_sending_gets_last_answer() {
    let gateway =
        TestGateway::builder().nodes(1).grace_periods(|periods| periods.linger = PATIENCE).start().await;
    let plain = post("/v3/dev", "", CALL);
    let long = " ".repeat(60 << 10);
    let chunked = plain.replace(&format!("content-length: {}", CALL.len()), "transfer-encoding: chunked");
    let chunked = format!("{}{:x}\r\n{long}\r\n", chunked.trim_end_matches(CALL), long.len());
    for (name, request, status) in [
        ("a caller's own close", post("/v3/dev", "connection: close\r\n", CALL), "200"),
        ("HTTP/1.0", plain.replace("HTTP/1.1", "HTTP/1.0"), "200"),
        ("a body over the limit", post("/v3/dev", "", &long), "413"),
        ("a body over the limit in chunks", chunked, "413"),
        ("a body that nobody needs", post("/unknown", "", &long), "404"),
        ("a head over the limit", post("/v3/dev", &format!("x-long: {long}\r\n"), CALL), "431"),
        ("no HTTP", "no HTTP\r\n\r\n".to_owned(), "400"),
    ] {
        assert_last(name, answer_of(narrow(&gateway).await.unwrap(), &request).await, status);
    }
}

#[tokio::test]
async fn draining_gateway_reads_past_the_last_answer() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .grace_periods(|periods| (periods.notice, periods.linger) = (PATIENCE, PATIENCE))
        .start()
        .await;
    let seen = async {
        while gateway.admin("/readyz").await.status == 200 {}
        let answer = answer_of(narrow(&gateway).await.unwrap(), &post("/v3/dev", "", CALL)).await;
        if let Ok(answer) = &answer {
            assert!(answer.contains("connection: close"), "{answer:?}");
        }
        assert_last("during the notice", answer, "200");
    };
    gateway.during_the_notice(seen).await;
}

#[tokio::test]
async fn tls_client_that_keeps_sending_gets_answer() {
    let dir = tempfile::tempdir().unwrap();
    let mut trusted = RootCertStore::empty();
    let certificate = TestCertificate::write(dir.path());
    trusted.add(CertificateDer::from_pem_slice(certificate.pem.as_bytes()).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(client));
    let gateway = TestGateway::builder()
        .nodes(1)
        .tls(&certificate)
        .config(|config| config.server.body_timeout = Duration::from_millis(50))
        .grace_periods(|periods| periods.linger = PATIENCE)
        .start()
        .await;
    // A late body times out. The answer is the connection's last.
    let begin = post("/v3/dev", "", CALL).replace("content-length: ", "content-length: 1");
    let socket = narrow(&gateway).await.unwrap();
    let mut socket = connector.connect("localhost".try_into().unwrap(), socket).await.unwrap();
    socket.write_all(begin.as_bytes()).await.unwrap();
    socket.flush().await.unwrap();
    // The first byte of the answer shows that it is on its way.
    let mut first = [0];
    socket.read_exact(&mut first).await.unwrap();
    let answer = answer_of(socket, "").await.map(|rest| format!("{}{rest}", char::from(first[0])));
    assert_last("a late body", answer, "408");
}

#[tokio::test]
async fn a_lingering_connection_counts_until_the_drain_ends() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.body_timeout = Duration::from_millis(50);
            config.server.drain_timeout = Duration::from_millis(100);
        })
        .grace_periods(|periods| periods.linger = PATIENCE * 10)
        .start()
        .await;
    let request = post("/v3/dev", "", CALL);
    let mut socket = gateway.connect().await;
    socket.write_all(&request.as_bytes()[..request.len() - 1]).await.unwrap();
    // The client reads to the end of the answer, and does not close.
    let answer = read_until(&mut socket, |_| false).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer:?}");
    let (connections, in_flight) = (&gateway.front().metrics.connections, &gateway.front().in_flight);
    assert_eq!((connections.get(), in_flight.load(Ordering::Relaxed)), (1, 0));
    let stopped = tokio::time::timeout(PATIENCE, gateway.app.stop()).await;
    assert!(stopped.is_ok() && connections.get() == 0, "{stopped:?}");
}
