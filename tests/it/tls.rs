//! TLS on the public listener: both HTTP versions by ALPN, certificates that change, and clients that do not
//! speak TLS.

use std::path::Path;
use std::time::Duration;

use reqwest::{Certificate, Version};
use serde_json::json;
use slotfront::config::TlsFiles;
use slotfront::http::tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{PATIENCE, Stage};

/// Writes a new certificate for localhost and its key into `dir`. Returns the certificate in PEM.
pub(crate) fn certify(dir: &Path) -> String {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("key.pem"), pair.signing_key.serialize_pem()).unwrap();
    std::fs::write(dir.join("cert.pem"), pair.cert.pem()).unwrap();
    pair.cert.pem()
}

pub(crate) fn files(dir: &Path) -> TlsFiles {
    TlsFiles { cert: dir.join("cert.pem"), key: dir.join("key.pem") }
}

async fn stage(dir: &Path, header_timeout: Duration) -> Stage {
    let tls = files(dir);
    let mut stage = Stage::of(1, |config| {
        config.server.tls = Some(tls);
        config.server.header_timeout = header_timeout;
    })
    .await;
    stage.url = format!("https://localhost:{}/v3/dev", stage.app.as_ref().unwrap().public.port());
    stage
}

/// Returns a client that trusts this certificate and keeps no connection, so that each call performs a
/// handshake.
fn trusting(pem: &str) -> reqwest::ClientBuilder {
    let trusted = Certificate::from_pem(pem.as_bytes()).unwrap();
    reqwest::Client::builder().no_proxy().tls_certs_only([trusted]).pool_max_idle_per_host(0)
}

async fn version(client: &reqwest::Client, stage: &Stage) -> Option<Version> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"}).to_string();
    let call = client.post(&stage.url).header("content-type", "application/json").body(body);
    let response = call.send().await.ok()?;
    let version = response.version();
    let body: serde_json::Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert!(body["result"].is_array(), "{body}");
    Some(version)
}

#[tokio::test]
async fn tls_client_chooses_the_http_version() {
    let dir = tempfile::tempdir().unwrap();
    let pem = certify(dir.path());
    let stage = stage(dir.path(), Duration::from_secs(10)).await;
    for (client, expected) in
        [(trusting(&pem), Version::HTTP_2), (trusting(&pem).http1_only(), Version::HTTP_11)]
    {
        assert_eq!(version(&client.build().unwrap(), &stage).await, Some(expected));
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = certify(dir.path());
    // A new client each time, because an earlier one would resume its session.
    let old = || trusting(&first).build().unwrap();
    let stage = stage(dir.path(), Duration::from_secs(10)).await;
    assert!(version(&old(), &stage).await.is_some());
    let new = trusting(&certify(dir.path())).build().unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while version(&new, &stage).await.is_none() {
        assert!(tokio::time::Instant::now() < deadline, "the new certificate is never shown");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(version(&old(), &stage).await.is_none(), "the old one is shown no more");
}

#[tokio::test]
async fn silent_and_plain_clients_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    let stage = stage(dir.path(), Duration::from_millis(100)).await;
    let address = stage.app.as_ref().unwrap().public;
    for said in ["", "POST /v3/dev HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(said.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        // The connection ends or is reset. There is no wait and no HTTP.
        let end = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut heard)).await;
        assert!(end.is_ok() && !heard.starts_with(b"HTTP"), "{said:?}: {heard:?}");
    }
    stage.until("their places are free", || stage.front().metrics.connections.get() == 0).await;
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
    assert!(refused(files(dir.path())).unwrap().starts_with("server.tls.cert: "), "neither is there");
    certify(dir.path());
    assert_eq!(refused(files(dir.path())), None);
    let swapped = TlsFiles { cert: dir.path().join("key.pem"), key: dir.path().join("cert.pem") };
    assert!(refused(swapped).unwrap().contains("key.pem: expected certificates in PEM"));
    let certificate_only = TlsFiles { cert: dir.path().join("cert.pem"), key: dir.path().join("cert.pem") };
    assert!(refused(certificate_only).unwrap().contains("cert.pem: expected a private key in PEM"));
    let other = tempfile::tempdir().unwrap();
    certify(other.path());
    let mixed = TlsFiles { cert: dir.path().join("cert.pem"), key: other.path().join("key.pem") };
    assert!(refused(mixed).unwrap().contains("the key does not go with the certificate"));
}
