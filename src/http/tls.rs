//! TLS of the public listener, by rustls: a certificate and its key from two files, read again when they change.
//!
//! A handshake takes the pair that is in force at its start; connections that stand keep theirs. Until both files have
//! been replaced they do not go together, and the pair before stays in force.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ProducesTickets;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::watch::Watched;
use crate::config::{self, Config};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// ALPN names (RFC 7301), the better first.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
/// HTTP/2's ALPN name.
pub(super) const HTTP2: &[u8] = b"h2";

/// Why a certificate cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("server.tls.{setting}: {}: {cause}", path.display())]
    Read {
        /// `cert` or `key`.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// A file holds something else.
    #[error("server.tls.{setting}: {}: expected {expected}", path.display())]
    Pem {
        /// `cert` or `key`.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What should be in it.
        expected: &'static str,
    },
    /// Both are fine, but not for each other.
    #[error("server.tls: the key does not go with the certificate, or cannot be used: {0}")]
    Pair(rustls::Error),
    /// There is no randomness for session tickets.
    #[error("server.tls: session tickets cannot be made: {0}")]
    Tickets(rustls::Error),
}

/// The certificate in force.
pub struct Tls {
    files: config::Tls,
    watched: Mutex<[Watched; 2]>,
    in_force: ArcSwap<ServerConfig>,
    /// Kept over a change of certificate, so that clients go on without a full handshake.
    tickets: Arc<dyn ProducesTickets>,
}

impl Tls {
    /// The pair that `config` names, if it names one.
    ///
    /// # Errors
    /// A file that cannot be read or used, or a key of another certificate.
    pub fn of(config: &Config) -> Result<Option<Arc<Self>>, TlsError> {
        let Some(files) = config.server.tls.clone() else { return Ok(None) };
        let tickets = ring::Ticketer::new().map_err(TlsError::Tickets)?;
        let mut watched = [Watched::new(&files.cert), Watched::new(&files.key)];
        // Looked at before they are read: a change in between is seen at the next look.
        for file in &mut watched {
            let _ = file.look();
        }
        let in_force = ArcSwap::new(read(&files, &tickets)?);
        Ok(Some(Arc::new(Self { files, watched: Mutex::new(watched), in_force, tickets })))
    }

    /// Shakes hands with the pair in force.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.in_force.load_full())
    }

    /// Follows the files until `stop`.
    pub fn watch(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        let (tls, stop) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
                let tls = Arc::clone(&tls);
                // Files block; a panic in there ends with this look.
                let _ = tokio::task::spawn_blocking(move || tls.follow()).await;
            }
        });
    }

    /// Takes the pair if a file is another and both go together.
    fn follow(&self) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        // Both are looked at, or a change of the second would be told at the next look again.
        let looks = watched.each_mut().map(Watched::look);
        if !looks.iter().any(|look| matches!(look, Ok(Some(_)) | Err(_))) {
            return;
        }
        match read(&self.files, &self.tickets) {
            Ok(pair) => {
                self.in_force.store(pair);
                tracing::info!(cert = %self.files.cert.display(), "certificate taken");
            }
            Err(error) => tracing::error!(%error, "certificate refused: the one before stays in force"),
        }
    }
}

fn read(files: &config::Tls, tickets: &Arc<dyn ProducesTickets>) -> Result<Arc<ServerConfig>, TlsError> {
    let text = |setting, path: &PathBuf| {
        std::fs::read(path).map_err(|cause| TlsError::Read { setting, path: path.clone(), cause })
    };
    let (cert, key) = (text("cert", &files.cert)?, text("key", &files.key)?);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&cert).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| TlsError::Pem {
        setting: "cert",
        path: files.cert.clone(),
        expected: "certificates in PEM, the server's own first",
    })?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| TlsError::Pem {
        setting: "key",
        path: files.key.clone(),
        expected: "a private key in PEM that is not encrypted",
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key))
        .map_err(TlsError::Pair)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    config.ticketer = Arc::clone(tickets);
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certify(files: &config::Tls) {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&files.cert, pair.cert.pem()).unwrap();
        std::fs::write(&files.key, pair.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn a_pair_is_taken_once_both_files_are_of_one_mind() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = |dir: &tempfile::TempDir| config::Tls {
            cert: dir.path().join("cert.pem"),
            key: dir.path().join("key.pem"),
        };
        let (mine, new) = (files(&dir), files(&other));
        certify(&mine);
        certify(&new);
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::dev(any, any, Vec::new());
        config.server.tls = Some(mine.clone());
        let tls = Tls::of(&config).unwrap().unwrap();
        let shown = || Arc::as_ptr(&tls.in_force.load_full());
        let before = shown();
        tls.follow();
        assert_eq!(shown(), before, "nothing has changed");
        std::fs::copy(&new.key, &mine.key).unwrap();
        tls.follow();
        assert_eq!(shown(), before, "a key without its certificate");
        std::fs::remove_file(&mine.cert).unwrap();
        tls.follow();
        assert_eq!(shown(), before, "no certificate at all");
        std::fs::copy(&new.cert, &mine.cert).unwrap();
        tls.follow();
        assert_ne!(shown(), before, "both");
    }
}
