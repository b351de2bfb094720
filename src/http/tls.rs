//! TLS of the public listener, by rustls: a certificate and its key from two files, read again when they change.
//!
//! A handshake takes the pair that is in force at its start; connections that stand keep theirs. Until both files have
//! been replaced they do not go together, and the pair before stays in force. A file that was just written is taken once
//! two looks have found the same content: a chain of certificates that is cut short is no fault that could be seen.

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
    followed: Mutex<Followed>,
    in_force: ArcSwap<ServerConfig>,
    /// Kept over a change of certificate, so that clients go on without a full handshake.
    tickets: Arc<dyn ProducesTickets>,
}

/// The files, as they were seen last.
struct Followed {
    watched: [Watched; 2],
    /// A file has changed, and no pair was taken since.
    is_due: bool,
    /// The reason why the last pair was refused, which is told once.
    refused: Option<String>,
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
        let followed = Mutex::new(Followed { watched, is_due: false, refused: None });
        Ok(Some(Arc::new(Self { files, followed, in_force, tickets })))
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

    /// Takes the pair if a file is another and both go together. A pair that is refused is tried again at each look: its
    /// fault may be one that leaves no trace in the files, such as a key that could not be read for a while.
    fn follow(&self) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let Followed { watched, is_due, refused } = &mut *followed;
        // Both are looked at, or a change of the second would be told at the next look again.
        let looks = watched.each_mut().map(Watched::changes);
        *is_due |= looks.iter().any(|look| matches!(look, Ok(true) | Err(_)));
        if !*is_due || watched.iter().any(Watched::is_unsettled) {
            return;
        }
        match read(&self.files, &self.tickets) {
            Ok(pair) => {
                self.in_force.store(pair);
                (*is_due, *refused) = (false, None);
                tracing::info!(cert = %self.files.cert.display(), "certificate taken");
            }
            Err(error) => {
                let error = error.to_string();
                if refused.as_ref() != Some(&error) {
                    tracing::error!(
                        error,
                        "certificate refused: the one before stays in force, and the files are tried again each second"
                    );
                    *refused = Some(error);
                }
            }
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
    use rcgen::{CertificateParams, CertifiedKey, KeyPair};

    use super::*;

    fn write(files: &config::Tls, pair: &CertifiedKey<KeyPair>) {
        std::fs::write(&files.cert, pair.cert.pem()).unwrap();
        std::fs::write(&files.key, pair.signing_key.serialize_pem()).unwrap();
    }

    fn certify() -> CertifiedKey<KeyPair> {
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
    }

    /// Files with a first pair, and the pair as it is shown.
    fn shown() -> (tempfile::TempDir, config::Tls, CertifiedKey<KeyPair>, Arc<Tls>) {
        let dir = tempfile::tempdir().unwrap();
        let files = config::Tls { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
        let pair = certify();
        write(&files, &pair);
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::dev(any, any, Vec::new());
        config.server.tls = Some(files.clone());
        let tls = Tls::of(&config).unwrap().unwrap();
        (dir, files, pair, tls)
    }

    /// Returns true if another pair is in force after `looks`.
    fn takes(tls: &Tls, looks: usize) -> bool {
        let before = tls.in_force.load_full();
        (0..looks).for_each(|_| tls.follow());
        !Arc::ptr_eq(&before, &tls.in_force.load_full())
    }

    #[test]
    fn a_pair_is_taken_once_both_files_are_of_one_mind() {
        let (_dir, files, _, tls) = shown();
        let new = certify();
        assert!(!takes(&tls, 3), "nothing has changed");
        std::fs::write(&files.key, new.signing_key.serialize_pem()).unwrap();
        assert!(!takes(&tls, 3), "a key without its certificate");
        std::fs::remove_file(&files.cert).unwrap();
        assert!(!takes(&tls, 3), "no certificate at all");
        std::fs::write(&files.cert, new.cert.pem()).unwrap();
        assert!(takes(&tls, 2), "both");
        assert!(!takes(&tls, 3), "taken once");
    }

    #[test]
    fn a_chain_that_is_being_written_is_not_shown() {
        let (_dir, files, pair, tls) = shown();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let renewed = params.self_signed(&pair.signing_key).unwrap().pem();
        std::fs::write(&files.cert, &renewed).unwrap();
        assert!(!takes(&tls, 1), "the server's own certificate may be half of the chain");
        std::fs::write(&files.cert, renewed + &certify().cert.pem()).unwrap();
        assert!(!takes(&tls, 1), "it is still being written");
        assert!(takes(&tls, 1), "the whole chain");
    }

    #[test]
    fn a_certificate_is_taken_once_its_unchanged_key_is_back() {
        let (_dir, files, pair, tls) = shown();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let aside = files.key.with_extension("aside");
        std::fs::rename(&files.key, &aside).unwrap();
        std::fs::write(&files.cert, params.self_signed(&pair.signing_key).unwrap().pem()).unwrap();
        assert!(!takes(&tls, 3), "there is no key");
        std::fs::rename(&aside, &files.key).unwrap();
        assert!(takes(&tls, 2), "the key is the same as before");
    }

    #[test]
    fn files_with_words_in_another_charset_are_followed() {
        let (_dir, files, pair, tls) = shown();
        for organisation in [b"# M\xfcller\n", b"# M\xf6ller\n"] {
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let renewed = params.self_signed(&pair.signing_key).unwrap().pem();
            std::fs::write(&files.cert, [&organisation[..], renewed.as_bytes()].concat()).unwrap();
            assert!(takes(&tls, 2), "{}", organisation.escape_ascii());
        }
    }
}
