//! A certificate for TLS listeners on this machine.

use std::path::{Path, PathBuf};

use slotfront::config::TlsFiles;

/// A self-signed certificate for `localhost`, in the files `cert.pem` and `key.pem` of a folder.
#[derive(Debug, Clone)]
pub struct TestCertificate {
    /// The certificate in PEM.
    pub pem: String,
    /// The file with the certificate.
    cert: PathBuf,
    /// The file with the private key.
    pub key: PathBuf,
}

impl TestCertificate {
    /// Creates a certificate, and writes `cert.pem` and `key.pem` into `folder`. Earlier files are replaced.
    pub fn write(folder: &Path) -> Self {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&key, pair.signing_key.serialize_pem()).expect("a folder that may be written");
        std::fs::write(&cert, pair.cert.pem()).expect("a folder that may be written");
        Self { pem: pair.cert.pem(), cert, key }
    }

    /// Returns the setting `server.tls` for the certificate.
    pub fn files(&self) -> TlsFiles {
        TlsFiles { cert: self.cert.clone(), key: self.key.clone() }
    }

    /// Returns the builder of a client that trusts this certificate only.
    pub fn trusting_client(&self) -> reqwest::ClientBuilder {
        let trusted = reqwest::Certificate::from_pem(self.pem.as_bytes()).expect("a certificate");
        reqwest::Client::builder().no_proxy().tls_certs_only([trusted])
    }
}
