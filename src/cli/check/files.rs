//! The problems that `check` finds in keys and files, each with a fix.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use super::doctor::Finding;
use crate::config::{Config, io_fault};
use crate::gateway::check_writable;
use crate::gateway::keys::{ApiKey, is_hidden};
use crate::tls::certificate::expiries;

/// The rest of a certificate's time from which on it is a finding. Renewal is usually due a month before the end, so by
/// then it has failed for two weeks. `deploy/prometheus/alerts.rules.yml` has the same time.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Returns the warnings about keys in the key file `path`. `trusted` are the networks of trusted proxies. Revoked keys
/// are left out.
pub(super) fn of_keys(path: &Path, keys: &[ApiKey], trusted: &[IpNet]) -> Vec<Finding> {
    let mut findings = repeated_names(path, keys);
    for ApiKey { id, name, scope, .. } in keys.iter().filter(|key| key.revoked.is_none()) {
        let path = path.display();
        // The key works. To refuse the file would lock out all keys of a gateway that reads it today.
        if name.chars().any(is_hidden) {
            findings.push(Finding::warning(
                format!("the name {name:?} of {id} in {path} has characters that hide or reorder text"),
                "change the name in the file; it may look like that of another key",
            ));
        }
        let overlaps = |network: &&IpNet| {
            let is_shared = |proxy: &IpNet| proxy.contains(*network) || network.contains(proxy);
            trusted.iter().any(is_shared)
        };
        if let Some(network) = scope.addresses.iter().flatten().find(overlaps) {
            findings.push(Finding::warning(
                format!(
                    "{id} in {path} may be used from {network}, and server.trusted_proxies has addresses of it: \
                     a request that such a proxy sends without a client address counts as the proxy's own"
                ),
                "leave the proxies out of the key's addresses, and make each of them write X-Forwarded-For \
                 (slotfront_client_addresses_missing_total counts requests without it)",
            ));
        }
    }
    findings
}

/// Returns a warning for each name that several keys in the key file `path` have. Revoked keys are left out.
fn repeated_names(path: &Path, keys: &[ApiKey]) -> Vec<Finding> {
    let mut ids: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for key in keys.iter().filter(|key| key.revoked.is_none()) {
        ids.entry(&key.name).or_default().push(&key.id);
    }
    let finding = |(name, ids): (&str, Vec<&str>)| {
        let (path, count, list) = (path.display(), ids.len(), ids.join(", "));
        Finding::warning(
            format!("{count} keys of {path} have the name {name:?}: {list}"),
            "revoke those that are not needed, or change their names in the file; until then rotate and revoke need an id",
        )
    };
    ids.into_iter().filter(|(_, ids)| ids.len() > 1).map(finding).collect()
}

/// Returns the problems with the permissions of the configuration file `file`, and of the key file, the usage file and the
/// TLS key that `config` names. A missing file has none.
pub(super) fn of_files(config: &Config, file: Option<&Path>) -> Vec<Finding> {
    let tls = config.server.tls.as_ref();
    let files = [
        ("the configuration", file, false),
        ("auth.keys_file", config.auth.keys_file.as_deref(), true),
        ("auth.usage_file", config.auth.usage_file.as_deref(), false),
        ("server.tls.key", tls.map(|tls| tls.key.as_path()), true),
    ];
    let finding = |(what, path, is_secret): (&str, Option<&Path>, bool)| {
        let mode = std::fs::metadata(path?).ok()?.mode() & 0o777;
        of_mode(what, path?, mode, is_secret)
    };
    files.into_iter().filter_map(finding).collect()
}

/// Returns the problem with the permission bits `mode` of the file `path`, which the setting `what` names. Other users must
/// not read a secret file.
fn of_mode(what: &str, path: &Path, mode: u32, is_secret: bool) -> Option<Finding> {
    let (path, shown) = (path.display(), format!("{mode:03o}"));
    if mode & 0o022 != 0 {
        let what = format!("{what} ({path}, mode {shown}) can be changed by other users");
        return Some(Finding::fault(what, format!("chmod go-w {path}")));
    }
    (is_secret && mode & 0o004 != 0).then(|| {
        let what = format!("{what} ({path}, mode {shown}) can be read by every user");
        Finding::warning(what, format!("chmod o-r {path}"))
    })
}

/// Returns the problem with the certificate of `server.tls`, or with the one of its chain that expires first: it has
/// expired, so that clients refuse it, or will soon.
pub(in crate::cli) fn of_certificate(config: &Config, now: Timestamp) -> Option<Finding> {
    let path = &config.server.tls.as_ref()?.cert;
    let chain = std::fs::read(path).ok()?;
    let dated = expiries(&chain).enumerate().filter_map(|(i, expiry)| Some((expiry?, i + 1)));
    let (expiry, number) = dated.min()?;
    let (is_fault, verb) = if expiry <= now { (true, "expired") } else { (false, "expires") };
    let day = expiry.strftime("%Y-%m-%d %H:%M UTC");
    let what = format!("certificate {number} of server.tls.cert ({}) {verb} on {day}", path.display());
    let fix = "renew it and replace the files; a running gateway shows the new one within seconds";
    let finding = Finding { fault: is_fault, what, fix: fix.to_owned() };
    (expiry.duration_since(now) < RENEW_BEFORE).then_some(finding)
}

/// Returns a fault if the user who runs this process cannot write the usage file at `path`. Leaves the file as it is.
pub(super) fn of_usage_file(path: &Path) -> Option<Finding> {
    let append = || match OpenOptions::new().append(true).open(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_fault(path, &error)),
        _ => Ok(()),
    };
    let refused = check_writable(path).map_err(|error| error.to_string()).and_then(|()| append()).err()?;
    let folder = path.parent().unwrap_or(path).display();
    Some(Finding::fault(
        format!("auth.usage_file ({}) cannot be written: {refused}", path.display()),
        format!(
            "create {folder}, and let the user of the gateway write there; run check as this user. \
             auth.usage_file = \"off\" keeps no usage over a restart"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TlsFiles;
    use crate::gateway::keys::file::{KeyFile, NewKey};

    #[test]
    fn repeated_key_names_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        let now = jiff::Timestamp::now();
        let create = |name: &str| file.create(&NewKey::of(name, "standard"), now).unwrap().id;
        let found = || of_keys(Path::new("k.toml"), &file.list().unwrap(), &[]);
        let (first, _) = (create("alice"), create("bob"));
        assert_eq!(found(), []);
        let second = create("alice");
        let [finding] = &found()[..] else { panic!("one finding: {:?}", found()) };
        assert!(!finding.fault, "a warning");
        assert_eq!(finding.what, format!("2 keys of k.toml have the name \"alice\": {first}, {second}"));
        file.revoke(&first, now).unwrap();
        assert_eq!(found(), [], "the revoked key does not count");
    }

    #[test]
    fn misleading_keys_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        let now = jiff::Timestamp::now();
        let mut new = NewKey::of("J\u{fc}rgen \u{5f20}\u{1f469}\u{fe0f}", "standard");
        file.create(&new, now).unwrap();
        let found = |trusted: &[&str]| {
            let trusted: Vec<_> = trusted.iter().map(|network| network.parse().unwrap()).collect();
            let findings = of_keys(Path::new("k.toml"), &file.list().unwrap(), &trusted);
            assert!(findings.iter().all(|finding| !finding.fault), "warnings");
            findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert_eq!(found(&["10.0.0.0/8"]), [""; 0]);
        let hidden = file.create(&NewKey::of("a\u{202e}b", "standard"), now).unwrap().id;
        let expected = format!(
            "the name \"a\\u{{202e}}b\" of {hidden} in k.toml has characters that hide or reorder text"
        );
        assert_eq!(found(&[]), [expected]);
        file.revoke(&hidden, now).unwrap();
        assert_eq!(found(&[]), [""; 0], "the revoked key does not count");

        new.scope.addresses = Some(vec!["10.1.0.0/16".parse().unwrap()]);
        new.name = "bob".to_owned();
        let id = file.create(&new, now).unwrap().id;
        let expected = format!(
            "{id} in k.toml may be used from 10.1.0.0/16, and server.trusted_proxies has addresses of it: \
             a request that such a proxy sends without a client address counts as the proxy's own"
        );
        for trusted in ["10.0.0.0/8", "10.1.2.3/32"] {
            assert_eq!(found(&["192.0.2.0/24", trusted]), std::slice::from_ref(&expected), "{trusted}");
        }
        assert_eq!(found(&["10.2.0.0/16"]), [""; 0]);
    }

    #[test]
    fn unwritable_usage_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let usage = dir.path().join("usage.json");
        let files = || {
            std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect::<Vec<_>>()
        };
        assert_eq!((of_usage_file(&usage), files()), (None, vec![]));
        std::fs::write(&usage, "{}").unwrap();
        assert_eq!((of_usage_file(&usage), files()), (None, vec!["usage.json".into()]));
        assert_eq!(std::fs::read_to_string(&usage).unwrap(), "{}");
        for path in
            [dir.path().join("missing/usage.json"), usage.join("usage.json"), "/proc/usage.json".into()]
        {
            let finding = of_usage_file(&path).unwrap();
            assert!(finding.fault && finding.what.contains("cannot be written: "), "{finding:?}");
            assert!(finding.fix.contains(&path.parent().unwrap().display().to_string()), "{finding:?}");
        }
        // A folder blocks the path to which the gateway writes the new content.
        std::fs::create_dir(dir.path().join("usage.json.new")).unwrap();
        assert!(of_usage_file(&usage).is_some());
        // What is there is appended to, so it must be a file.
        let folder = dir.path().join("folder.json");
        std::fs::create_dir(&folder).unwrap();
        assert!(of_usage_file(&folder).is_some());
    }

    #[test]
    fn ends_of_certificates_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let cert = dir.path().join("cert.pem");
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::dev(any, any, Vec::new());
        let at = |time: &str| time.parse().unwrap();
        assert_eq!(of_certificate(&config, at("2026-11-21T00:00:00Z")), None, "no TLS");
        config.server.tls = Some(TlsFiles { cert: cert.clone(), key: dir.path().join("key.pem") });
        let certificate = |year| {
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 3, 1);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
        };
        // The second certificate of the chain ends first.
        std::fs::write(&cert, certificate(2028) + &certificate(2027)).unwrap();
        for (now, expected) in [
            ("2027-02-15T00:00:00Z", None),
            ("2027-02-15T00:00:01Z", Some((false, "expires on 2027-03-01 00:00 UTC"))),
            ("2027-02-28T23:59:59Z", Some((false, "expires on 2027-03-01 00:00 UTC"))),
            ("2027-03-01T00:00:00Z", Some((true, "expired on 2027-03-01 00:00 UTC"))),
        ] {
            let what = |words| format!("certificate 2 of server.tls.cert ({}) {words}", cert.display());
            let found = of_certificate(&config, at(now)).map(|finding| (finding.fault, finding.what));
            assert_eq!(found, expected.map(|(fault, words)| (fault, what(words))), "{now}");
        }
    }

    #[test]
    fn exposed_files_are_reported() {
        for (mode, secret, expected) in [
            (0o600, true, None),
            (0o640, true, None),
            (0o644, false, None),
            (0o644, true, Some((false, "chmod o-r k.toml"))),
            (0o620, false, Some((true, "chmod go-w k.toml"))),
            (0o666, true, Some((true, "chmod go-w k.toml"))),
        ] {
            let finding = of_mode("auth.keys_file", Path::new("k.toml"), mode, secret);
            let found = finding.as_ref().map(|finding| (finding.fault, finding.fix.as_str()));
            assert_eq!(found, expected, "{mode:o}");
        }
    }
}
