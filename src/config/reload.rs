//! The reload of a configuration: its source, and the changes that need a restart.

use std::sync::Arc;

use super::watch::Settling;
use super::{Auth, Config, Problems};

/// A configuration, or all of its problems.
pub type Loaded = Result<Config, Problems>;
pub type LoadConfig = dyn Fn() -> Loaded + Send + Sync;

/// The source of a running gateway's configuration. What is watched is the result of loading it, so that every file
/// that has a part in it counts: the configuration file, each `file:PATH`, and each `ca_file`.
pub struct ConfigSource {
    load: Arc<LoadConfig>,
    is_watched: bool,
    /// The results of loading. The one that was taken last is in force or was refused.
    settling: Settling<Loaded>,
}

impl ConfigSource {
    /// Creates a source that reads with `load`, and is watched for changes.
    pub fn watched(load: impl Fn() -> Loaded + Send + Sync + 'static) -> Self {
        Self { is_watched: true, ..Self::unwatched(load) }
    }

    /// Creates a source that is read on request only.
    pub fn unwatched(load: impl Fn() -> Loaded + Send + Sync + 'static) -> Self {
        Self { load: Arc::new(load), is_watched: false, settling: Settling::of(None) }
    }

    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Returns the function that loads the current configuration. The function blocks while it reads files.
    pub fn loader(&self) -> Arc<LoadConfig> {
        Arc::clone(&self.load)
    }

    /// Loads the current configuration, which then counts as known.
    ///
    /// # Errors
    /// All problems of the configuration.
    pub fn load(&mut self) -> Loaded {
        let loaded = (self.load)();
        self.is_due(&loaded, true);
        loaded
    }

    /// Returns true if `loaded` is to be put in force: somebody has asked for it, or it is another result than the known
    /// one, and has settled. It then counts as known.
    pub fn is_due(&mut self, loaded: &Loaded, is_asked_for: bool) -> bool {
        let is_due = self.settling.is_due(loaded) || is_asked_for;
        if is_due {
            self.settling.take(loaded.clone());
        }
        is_due
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The sections whose changes a reload puts in force at once.
    pub at_once: Vec<&'static str>,
    /// The sections whose changes take effect only after a restart.
    pub after_restart: Vec<&'static str>,
}

impl Changes {
    pub fn between(old: &Config, new: &Config) -> Self {
        let named = |differs: &[(&'static str, bool)]| {
            differs.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name).collect()
        };
        let auth = |config: &Config| Auth { usage_file: None, admin_token: None, ..config.auth.clone() };
        Self {
            at_once: named(&[
                ("auth", auth(old) != auth(new)),
                ("gateway", old.deny != new.deny),
                ("plans", old.plans != new.plans),
                ("units", old.units != new.units),
                ("upstream", old.upstreams != new.upstreams),
                ("pool", old.pool != new.pool),
                ("telemetry.log", old.telemetry.log != new.telemetry.log),
                ("telemetry.key_series", old.telemetry.key_series != new.telemetry.key_series),
            ]),
            after_restart: named(&[
                ("compat", old.profile != new.profile),
                ("server", old.server != new.server),
                ("auth.usage_file", old.auth.usage_file != new.auth.usage_file),
                ("auth.admin_token", old.auth.admin_token != new.auth.admin_token),
                ("cache", old.cache != new.cache),
                ("follow", old.follow != new.follow),
                ("methods", old.methods != new.methods),
                ("send", old.send != new.send),
                ("shared", old.shared != new.shared),
                ("verify", old.verify != new.verify),
                ("telemetry.format", old.telemetry.format != new.telemetry.format),
                ("telemetry.otlp", old.telemetry.otlp != new.telemetry.otlp),
                (
                    "telemetry.trace_sample",
                    old.telemetry.trace_sample.to_bits() != new.telemetry.trace_sample.to_bits(),
                ),
            ]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    #[test]
    fn changes_are_split_by_restart() {
        let any = ([127, 0, 0, 1], 0).into();
        let old = Config::dev(any, any, Vec::new());
        let mut new = old.clone();
        assert_eq!(Changes::between(&old, &new), Changes::default());
        new.plans.get_mut("dev").unwrap().rps = 1;
        new.server.max_batch = 7;
        new.pool.retries = 0;
        let expected = Changes { at_once: vec!["plans", "pool"], after_restart: vec!["server"] };
        assert_eq!(Changes::between(&old, &new), expected);
    }

    /// Returns what a source that is watched makes of each result: true for a change.
    fn changes(source: &mut ConfigSource, found: &[&Loaded]) -> Vec<bool> {
        found.iter().map(|loaded| source.is_due(loaded, false)).collect()
    }

    #[test]
    fn changes_are_reported_once_settled() {
        let result = |rps: &str| {
            let text = format!("[plans.standard]\nrps = {rps}\n[[upstream]]\nurl = \"http://a.example\"");
            crate::config::from_text(&text, &BTreeMap::new(), Path::new(""))
        };
        let [a, b, faulty] = ["1", "2", "many"].map(result);
        assert!(a.is_ok() && faulty.is_err());
        let first = a.clone();
        let mut source = ConfigSource::watched(move || first.clone());
        source.load().unwrap();
        assert_eq!(changes(&mut source, &[&a, &a]), [false; 2]);
        assert_eq!(
            changes(&mut source, &[&b, &b, &b]),
            [false, true, false],
            "the first may be half written"
        );
        assert_eq!(changes(&mut source, &[&faulty, &b, &b]), [false; 3], "it was half written");
        assert_eq!(changes(&mut source, &[&faulty, &faulty, &faulty]), [false, true, false], "told once");
        assert_eq!(changes(&mut source, &[&b, &b]), [false, true]);
        assert!(source.is_due(&a, true));
        assert_eq!(changes(&mut source, &[&a, &a]), [false; 2], "somebody asked for it");
        let c = result("3");
        assert_eq!(changes(&mut source, &[&b, &faulty, &c]), [false, false, true], "it changes all the time");
    }

    /// Writes `..data` as Kubernetes does: a link to a folder with the files, which is replaced as a whole.
    fn swap(dir: &Path, version: &str, files: &[(&str, String)]) {
        std::fs::create_dir(dir.join(version)).unwrap();
        for (name, text) in files {
            std::fs::write(dir.join(version).join(name), text).unwrap();
        }
        std::os::unix::fs::symlink(version, dir.join("next")).unwrap();
        std::fs::rename(dir.join("next"), dir.join("..data")).unwrap();
    }

    #[test]
    fn every_file_that_a_setting_names_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let config = "
            [auth]
            admin_token = \"file:token\"
            [shared]
            url = \"file:store\"
            secret = \"file:secret\"
            ca_file = \"store.pem\"
            [telemetry]
            otlp = \"file:otlp\"
            [[upstream]]
            url = \"file:url\"
            ws_url = \"file:ws\"
            headers = { authorization = \"file:header\" }
            ca_file = \"ca.pem\"";
        let pem = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
        let files = [
            ("slotfront.toml", config),
            ("token", "token"),
            ("store", "redis://store.example"),
            ("secret", "secret"),
            ("store.pem", pem),
            ("otlp", "http://otlp.example"),
            ("url", "http://a.example"),
            ("ws", "ws://a.example"),
            ("header", "header"),
            ("ca.pem", pem),
        ];
        let mut files = files.map(|(name, text)| (name, text.to_owned()));
        swap(dir.path(), "0", &files);
        for (name, _) in &files {
            std::os::unix::fs::symlink(Path::new("..data").join(name), dir.path().join(name)).unwrap();
        }
        let file = dir.path().join("slotfront.toml");
        let mut source = ConfigSource::watched(move || crate::config::load(Some(&file), &BTreeMap::new()));
        let mut before = source.load().unwrap();
        for (name, at_once, after_restart) in [
            ("url", &["upstream"][..], &[][..]),
            ("ws", &["upstream"], &[]),
            ("header", &["upstream"], &[]),
            ("ca.pem", &["upstream"], &[]),
            ("token", &[], &["auth.admin_token"]),
            ("store", &[], &["shared"]),
            ("secret", &[], &["shared"]),
            ("store.pem", &[], &["shared"]),
            ("otlp", &[], &["telemetry.otlp"]),
        ] {
            let (_, text) = files.iter_mut().find(|(other, _)| *other == name).unwrap();
            text.push('x');
            swap(dir.path(), &format!("with-{name}"), &files);
            let loaded = source.loader()();
            assert_eq!(changes(&mut source, &[&loaded, &loaded]), [false, true], "{name}");
            let new = loaded.unwrap();
            let expected = Changes { at_once: at_once.to_vec(), after_restart: after_restart.to_vec() };
            assert_eq!(Changes::between(&before, &new), expected, "{name}");
            before = new;
        }
        std::fs::remove_file(dir.path().join("url")).unwrap();
        let loaded = source.loader()();
        assert!(
            loaded.as_ref().unwrap_err().to_string().contains("names the file url, which cannot be read")
        );
        assert_eq!(changes(&mut source, &[&loaded, &loaded]), [false, true], "that it is missing is said");
    }
}
