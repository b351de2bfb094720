//! TLS of the public listener, by rustls. The certificate and its key are two files, which are read again after a
//! change.
//!
//! A handshake uses the pair that is in force at its start. Open connections keep the pair of their handshake. While
//! only one file is replaced, the two files do not match, and the previous pair stays in force. A changed pair is used
//! only once it has settled. Without this rule, a half-written certificate chain could be used, because it looks like a
//! complete one.

pub(crate) mod certificate;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ProducesTickets;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::certificate::expiries;
use crate::config::watch::{LOOK_EVERY, Settling, read_file};
use crate::config::{self, Config};
use crate::telemetry::Metrics;

/// The ALPN names (RFC 7301) in order of preference.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
pub(crate) const HTTP2: &[u8] = b"h2";

/// The reason why the certificate and the key cannot be used, after the rest of the setting's name.
#[derive(Debug, thiserror::Error)]
#[error("server.tls{0}")]
pub struct TlsError(String);

/// The certificate and key in force, and the files that they are read from.
pub struct Tls {
    files: config::TlsFiles,
    found: Mutex<FoundPairs>,
    in_force: ArcSwap<ShownPair>,
    /// The keys of session tickets. A new certificate does not change them, so that clients can resume their sessions.
    tickets: Arc<dyn ProducesTickets>,
}

/// A certificate with its key, ready for handshakes.
struct ShownPair {
    config: Arc<ServerConfig>,
    /// The earliest end of a certificate of the chain, which clients get as a whole. `None` if none could be read.
    expires: Option<Timestamp>,
}

/// What the checks of the files have found.
struct FoundPairs {
    settling: Settling<PemPair>,
    /// The reason why the last pair was refused. A repeated reason is not logged again.
    refused: Option<String>,
}

/// The contents of the file of the certificate, and of the file of its key.
#[derive(Clone, PartialEq, Eq)]
struct PemPair {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Reads the certificate and the key that `config` names. `None` if `server.tls` is not set.
    ///
    /// # Errors
    /// A file cannot be read or used, or the key does not match the certificate.
    pub fn of(config: &Config) -> Result<Option<Arc<Self>>, TlsError> {
        let Some(files) = config.server.tls.clone() else { return Ok(None) };
        let tickets = ring::Ticketer::new().map_err(|error| {
            TlsError(format!(": the system gives no random numbers for session tickets: {error}"))
        })?;
        let pair = read(&files)?;
        let in_force = ArcSwap::from_pointee(shown(&pair, &files, &tickets)?);
        let found = Mutex::new(FoundPairs { settling: Settling::of(Some(pair)), refused: None });
        Ok(Some(Arc::new(Self { files, found, in_force, tickets })))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.in_force.load().config))
    }

    /// Spawns a task on `tasks` that checks the files about once a second until `stop`. A metric says when the certificate
    /// in force expires.
    pub fn watch(self: &Arc<Self>, metrics: &Metrics, tasks: &TaskTracker, stop: &CancellationToken) {
        let (tls, stop) = (Arc::clone(self), stop.clone());
        metrics.before_render(move |metrics| {
            if let Some(expires) = tls.in_force.load().expires {
                metrics.tls_certificate_expiry.at(()).set(expires.as_second());
            }
        });
        let tls = Arc::clone(self);
        tasks.spawn(async move {
            while stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
                let tls = Arc::clone(&tls);
                // Reading files blocks. A panic ends only this check.
                let _ = tokio::task::spawn_blocking(move || tls.check_files()).await;
            }
        });
    }

    /// Puts the pair of the files in force if it is another one, has settled, and the two match. A
    /// refused pair is tried again at each check, because its fault may end without a change of the files. For example,
    /// an operator may grant the permission to read them.
    fn check_files(&self) {
        let mut found = self.found.lock();
        let FoundPairs { settling, refused } = &mut *found;
        let taken = read(&self.files).and_then(|pair| {
            if settling.is_due(&pair) {
                let new = shown(&pair, &self.files, &self.tickets)?;
                let expires = new.expires.map(|time| time.to_string());
                self.in_force.store(Arc::new(new));
                settling.take(pair);
                *refused = None;
                tracing::info!(cert = %self.files.cert.display(), expires, "new certificate in force");
            }
            Ok(())
        });
        if let Err(error) = taken.map_err(|error| error.to_string())
            && refused.as_ref() != Some(&error)
        {
            tracing::error!(
                error,
                "certificate refused: the previous one stays in force, and the files are checked again each second"
            );
            *refused = Some(error);
        }
    }
}

fn fault(setting: &str, path: &Path, what: &dyn Display) -> TlsError {
    TlsError(format!(".{setting}: {}: {what}", path.display()))
}

fn read(files: &config::TlsFiles) -> Result<PemPair, TlsError> {
    let content = |setting, path: &Path| read_file(path).map_err(|cause| fault(setting, path, &cause));
    Ok(PemPair { cert: content("cert", &files.cert)?, key: content("key", &files.key)? })
}

fn shown(
    pair: &PemPair,
    files: &config::TlsFiles,
    tickets: &Arc<dyn ProducesTickets>,
) -> Result<ShownPair, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pair.cert).collect();
    let chain = chain
        .ok()
        .filter(|chain| !chain.is_empty())
        .ok_or_else(|| fault("cert", &files.cert, &"expected certificates in PEM, the server's own first"))?;
    let key = PrivateKeyDer::from_pem_slice(&pair.key)
        .map_err(|_| fault("key", &files.key, &"expected a private key in PEM that is not encrypted"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| {
            TlsError(format!(": the key does not match the certificate, or cannot be used: {error}"))
        })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    config.ticketer = Arc::clone(tickets);
    Ok(ShownPair { config: Arc::new(config), expires: expiries(&pair.cert).flatten().min() })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CertifiedKey, KeyPair};

    use super::*;

    fn write(files: &config::TlsFiles, pair: &CertifiedKey<KeyPair>) {
        std::fs::write(&files.cert, pair.cert.pem()).unwrap();
        std::fs::write(&files.key, pair.signing_key.serialize_pem()).unwrap();
    }

    fn certify() -> CertifiedKey<KeyPair> {
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
    }

    /// Writes a new certificate and its key, a pair, to two files. Returns the folder and paths of the files, the
    /// pair, and a [`Tls`] with the pair in force.
    fn certified() -> (tempfile::TempDir, config::TlsFiles, CertifiedKey<KeyPair>, Arc<Tls>) {
        let dir = tempfile::tempdir().unwrap();
        let files = config::TlsFiles { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
        let pair = certify();
        write(&files, &pair);
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::dev(any, any, Vec::new());
        config.server.tls = Some(files.clone());
        let tls = Tls::of(&config).unwrap().unwrap();
        (dir, files, pair, tls)
    }

    /// Runs `checks` checks of the certificate files. Returns true if the checks put another certificate in force.
    fn takes(tls: &Tls, checks: usize) -> bool {
        let before = tls.in_force.load_full();
        (0..checks).for_each(|_| tls.check_files());
        !Arc::ptr_eq(&before, &tls.in_force.load_full())
    }

    #[test]
    fn a_pair_waits_until_its_files_match() {
        let (_dir, files, _, tls) = certified();
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
    fn a_half_written_chain_is_not_shown() {
        let (_dir, files, pair, tls) = certified();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let renewed = params.self_signed(&pair.signing_key).unwrap().pem();
        std::fs::write(&files.cert, &renewed).unwrap();
        assert!(!takes(&tls, 1), "the server's own certificate may be half of the chain");
        std::fs::write(&files.cert, renewed + &certify().cert.pem()).unwrap();
        assert!(!takes(&tls, 1), "it is still being written");
        assert!(takes(&tls, 1), "the whole chain");
    }

    #[test]
    fn files_that_change_all_the_time_are_taken_at_the_third_check() {
        let (_dir, files, pair, tls) = certified();
        for third in [false, false, true, false, false, true] {
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            std::fs::write(&files.cert, params.self_signed(&pair.signing_key).unwrap().pem()).unwrap();
            assert_eq!(takes(&tls, 1), third);
        }
    }

    #[test]
    fn a_certificate_waits_for_its_key() {
        let (_dir, files, pair, tls) = certified();
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
        let (_dir, files, pair, tls) = certified();
        for organisation in [b"# M\xfcller\n", b"# M\xf6ller\n"] {
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let renewed = params.self_signed(&pair.signing_key).unwrap().pem();
            std::fs::write(&files.cert, [&organisation[..], renewed.as_bytes()].concat()).unwrap();
            assert!(takes(&tls, 2), "{}", organisation.escape_ascii());
        }
    }
}
