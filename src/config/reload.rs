//! The configuration in force, and its reload: the source, and which changes need a restart.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use super::watch::Settling;
use super::{Config, Problems};

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

/// The settings that a reload changes, by their paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The settings whose changes are in force at once.
    pub at_once: Vec<String>,
    /// The settings whose changes take effect only after a restart.
    pub after_restart: Vec<String>,
}

/// A part of the configuration whose settings say when a change of them is in force.
pub(super) trait Reloaded {
    /// Adds the settings that differ in `new` to `changes`. `path` is that of this part.
    fn changes(&self, new: &Self, path: &str, changes: &mut Changes);

    /// Takes the settings from `new` that a reload puts in force at once.
    fn take_over(&mut self, new: &Self);
}

pub(super) fn joined((table, key): (&str, &str)) -> String {
    let between = if table.is_empty() || key.is_empty() { "" } else { "." };
    format!("{table}{between}{key}")
}

pub(super) fn changed<T: PartialEq>(old: &T, new: &T, path: (&str, &str)) -> Option<String> {
    (old != new).then(|| joined(path))
}

/// The one configuration in force: the live settings as they were loaded last, and the others as they were at the start.
#[derive(Debug)]
pub struct InForce(ArcSwap<Config>);

/// The configuration that was in force when it was asked for, for one request.
pub type ConfigNow = Guard<Arc<Config>>;

impl InForce {
    pub fn new(config: Config) -> Self {
        Self(ArcSwap::from_pointee(config))
    }

    pub fn now(&self) -> ConfigNow {
        self.0.load()
    }

    /// Returns a copy, to change and reload.
    pub fn copy(&self) -> Config {
        Config::clone(&self.now())
    }

    /// Returns what a reload of `new` puts in force, and what it changes.
    pub(crate) fn after(&self, new: &Config) -> (Config, Changes) {
        let (mut next, mut changes) = (self.copy(), Changes::default());
        next.changes(new, "", &mut changes);
        next.take_over(new);
        (next, changes)
    }

    pub(crate) fn put(&self, config: Config) {
        self.0.store(Arc::new(config));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    fn between(old: &Config, new: &Config) -> Changes {
        InForce::new(old.clone()).after(new).1
    }

    fn told(at_once: &[&str], after_restart: &[&str]) -> Changes {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Changes { at_once: named(at_once), after_restart: named(after_restart) }
    }

    #[test]
    fn changes_are_split_by_restart() {
        let any = ([127, 0, 0, 1], 0).into();
        let old = Config::dev(any, any, Vec::new());
        let mut new = old.clone();
        assert_eq!(between(&old, &new), Changes::default());
        new.plans.get_mut("dev").unwrap().rps = 1;
        new.server.max_batch = 7;
        new.pool.retries = 0;
        assert_eq!(between(&old, &new), told(&["plans", "pool.retries"], &["server.max_batch"]));
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
            assert_eq!(between(&before, &new), told(at_once, after_restart), "{name}");
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
