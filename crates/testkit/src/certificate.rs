//! A certificate for TLS listeners on this machine.

use std::path::{Path, PathBuf};

use slotfront::config::TlsFiles;

/// A self-signed certificate for `localhost`, in the files `cert.pem` and `key.pem` of a folder.
#[derive(Debug, Clone)]
pub struct TestCertificate {
    pub pem: String,
    cert: PathBuf,
    pub key: PathBuf,
}

impl TestCertificate {
    /// Creates a certificate, and writes `cert.pem` and `key.pem` into `folder`. Earlier files are replaced.
    pub fn write(folder: &Path) -> Self {
        Self::write_until(folder, 4096)
    }

    /// Creates a certificate that ends when `year` begins, as [`Self::write`] does.
    pub fn write_until(folder: &Path, year: i32) -> Self {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let pair = rcgen::KeyPair::generate().expect("a key");
        let pem = params.self_signed(&pair).expect("a certificate").pem();
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        std::fs::write(&key, pair.serialize_pem()).expect("a folder that may be written");
        std::fs::write(&cert, &pem).expect("a folder that may be written");
        Self { pem, cert, key }
    }

    /// Returns the setting `server.tls` for the certificate.
    pub fn files(&self) -> TlsFiles {
        TlsFiles { cert: self.cert.clone(), key: self.key.clone() }
    }

    pub fn trusting_client(&self) -> reqwest::ClientBuilder {
        let trusted = reqwest::Certificate::from_pem(self.pem.as_bytes()).expect("a certificate");
        reqwest::Client::builder().no_proxy().tls_certs_only([trusted])
    }
}
