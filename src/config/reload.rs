//! The reload of a configuration: its source, and the changes that need a restart.

use std::sync::Arc;

use super::{Config, Problems};

pub type LoadConfig = dyn Fn() -> Result<Config, Problems> + Send + Sync;

/// The source of a running gateway's configuration.
pub struct ConfigSource {
    load: Arc<LoadConfig>,
    file: Option<super::watch::Watched>,
}

impl ConfigSource {
    /// Creates a source that reads with `load`. `file`, if there is one, is watched for changes.
    pub fn new(
        load: impl Fn() -> Result<Config, Problems> + Send + Sync + 'static,
        file: Option<std::path::PathBuf>,
    ) -> Self {
        let file = file.map(super::watch::Watched::new);
        let mut source = Self { load: Arc::new(load), file };
        // The gateway starts with the current content.
        source.mark_read();
        source
    }

    /// Returns true if the file has changed and settled. An unreadable file counts as unchanged.
    pub fn changed(&mut self) -> bool {
        self.file
            .as_mut()
            .is_some_and(|file| file.look_again().is_ok_and(|new| new.is_some_and(|new| new.is_whole)))
    }

    /// Marks the current content of the file as known, so that the next [`Self::changed`] returns false.
    pub fn mark_read(&mut self) {
        if let Some(file) = &mut self.file {
            let _ = file.look();
        }
    }

    /// Returns the function that loads the current configuration. The function blocks while it reads files.
    pub fn loader(&self) -> Arc<LoadConfig> {
        Arc::clone(&self.load)
    }

    /// Loads the current configuration.
    ///
    /// # Errors
    /// All problems of the configuration.
    pub fn load(&self) -> Result<Config, Problems> {
        (self.load)()
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
        Self {
            at_once: named(&[
                ("auth", old.auth != new.auth),
                ("plans", old.plans != new.plans),
                ("units", old.units != new.units),
                ("upstream", old.upstreams != new.upstreams),
                ("pool", old.pool != new.pool),
                ("telemetry.log", old.telemetry.log != new.telemetry.log),
            ]),
            after_restart: named(&[
                ("compat", old.profile != new.profile),
                ("server", old.server != new.server),
                ("auth.usage_file", old.auth.usage_file != new.auth.usage_file),
                ("auth.admin_token", old.auth.admin_token != new.auth.admin_token),
                ("cache", old.cache != new.cache),
                ("follow", old.follow != new.follow),
                ("passthrough", old.passthrough != new.passthrough),
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

    #[test]
    fn changed_files_are_reported_once_settled() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slotfront.toml");
        std::fs::write(&file, "a").unwrap();
        let mut source = ConfigSource::new(|| unreachable!("not asked"), Some(file.clone()));
        assert!(!source.changed());
        std::fs::write(&file, "b").unwrap();
        assert!(!source.changed(), "it may be half written");
        assert!(source.changed());
        assert!(!source.changed());
        std::fs::write(&file, "c").unwrap();
        source.mark_read();
        assert!(!source.changed(), "the content was marked as read");
    }
}
