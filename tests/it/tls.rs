//! TLS on the public listener: both HTTP versions by ALPN, certificates that change, and clients that do not
//! speak TLS.

use std::time::Duration;

use reqwest::Version;
use slotfront::config::TlsFiles;
use slotfront::tls;
use slotfront_testkit::{PATIENCE, TestCertificate, TestGateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns a client that trusts this certificate and keeps no connection, so that each call makes a
/// handshake.
fn trusting(certificate: &TestCertificate) -> reqwest::ClientBuilder {
    certificate.trusting_client().pool_max_idle_per_host(0)
}

async fn version(client: &reqwest::Client, gateway: &TestGateway) -> Option<Version> {
    let response = gateway.get_nodes().client(client).request().build().send().await.ok()?;
    let version = response.version();
    let body: serde_json::Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert!(body["result"].is_array(), "{body}");
    Some(version)
}

#[tokio::test]
async fn tls_client_chooses_the_http_version() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = TestCertificate::write(dir.path());
    let gateway = TestGateway::builder().nodes(1).tls(&certificate).start().await;
    for (client, expected) in
        [(trusting(&certificate), Version::HTTP_2), (trusting(&certificate).http1_only(), Version::HTTP_11)]
    {
        assert_eq!(version(&client.build().unwrap(), &gateway).await, Some(expected));
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = TestCertificate::write(dir.path());
    // Each call has a new client, because an earlier one would resume its session.
    let old = || trusting(&first).build().unwrap();
    let gateway = TestGateway::builder().nodes(1).tls(&first).start().await;
    assert!(version(&old(), &gateway).await.is_some());
    let new = trusting(&TestCertificate::write(dir.path())).build().unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while version(&new, &gateway).await.is_none() {
        assert!(tokio::time::Instant::now() < deadline, "the new certificate is never shown");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(version(&old(), &gateway).await.is_none(), "the old certificate is no longer shown");
}

#[tokio::test]
async fn plain_http_is_told_of_tls() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = TestGateway::builder().nodes(1).tls(&TestCertificate::write(dir.path())).start().await;
    for request in ["GET /v3/dev HTTP/1.1\r\nhost: x\r\n\r\n", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut socket = TcpStream::connect(gateway.app.public).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut seen = String::new();
        socket.read_to_string(&mut seen).await.unwrap();
        assert!(seen.starts_with("HTTP/1.1 400 ") && slotfront_testkit::wire::is_whole(&seen), "{seen}");
        assert!(
            seen.ends_with("\r\n\r\nthis port expects TLS: begin the URL with https:// or wss://\n"),
            "{seen}"
        );
    }
}

#[tokio::test]
async fn the_end_of_the_certificate_in_force_is_a_metric() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = TestCertificate::write(dir.path());
    let renew = |year| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        std::fs::write(&certificate.key, key.serialize_pem()).unwrap();
        std::fs::write(certificate.files().cert, params.self_signed(&key).unwrap().pem()).unwrap();
    };
    renew(2001);
    let gateway = TestGateway::builder().nodes(1).tls(&certificate).start().await;
    let series = "slotfront_tls_certificate_expiry_seconds";
    assert_eq!(gateway.metric(series), 978_307_200);
    renew(2051);
    gateway.until_metric(series, 978_307_201).await;
    assert_eq!(gateway.metric(series), 2_556_144_000);

    let plain = TestGateway::builder().nodes(1).start().await;
    let metrics = plain.front().metrics.render();
    assert!(!metrics.contains("\nslotfront_tls_certificate_expiry_seconds"), "there is no certificate");
}

#[tokio::test]
async fn silent_and_senseless_clients_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = TestCertificate::write(dir.path());
    let briefly = Duration::from_millis(100);
    let gateway = TestGateway::builder().nodes(1).tls(&certificate);
    let gateway = gateway.config(|config| config.server.header_timeout = briefly).start().await;
    let address = gateway.app.public;
    for said in ["", "hello\r\n\r\n"] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(said.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        // The connection ends or is reset, without a wait and without an HTTP answer.
        let end = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut heard)).await;
        assert!(end.is_ok() && !heard.starts_with(b"HTTP"), "{said:?}: {heard:?}");
    }
    gateway.until("the connections are closed", || gateway.connections() == 0).await;
}

#[test]
fn unusable_certificates_are_refused_by_file() {
    let config = |tls: TlsFiles| {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = slotfront::config::Config::dev(any, any, Vec::new());
        config.server.tls = Some(tls);
        config
    };
    let dir = tempfile::tempdir().unwrap();
    let refused = |tls| tls::Tls::of(&config(tls)).err().map(|error| error.to_string());
    let absent = TlsFiles { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
    assert!(refused(absent).unwrap().starts_with("server.tls.cert: "), "neither file exists");
    let TlsFiles { cert, key } = TestCertificate::write(dir.path()).files();
    assert_eq!(refused(TlsFiles { cert: cert.clone(), key: key.clone() }), None);
    let swapped = TlsFiles { cert: key, key: cert.clone() };
    assert!(refused(swapped).unwrap().contains("key.pem: expected certificates in PEM"));
    let certificate_only = TlsFiles { cert: cert.clone(), key: cert.clone() };
    assert!(refused(certificate_only).unwrap().contains("cert.pem: expected a private key in PEM"));
    let other = tempfile::tempdir().unwrap();
    let mixed = TlsFiles { cert, key: TestCertificate::write(other.path()).key };
    assert!(refused(mixed).unwrap().contains("the key does not match the certificate"));
}
