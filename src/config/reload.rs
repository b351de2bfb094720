//! Which parts of a changed configuration take effect at once, and which wait for a restart.

use std::sync::Arc;

use super::{Config, Problems};

/// Reads the configuration as it is written now, or says everything that is wrong with it.
pub type Load = dyn Fn() -> Result<Config, Problems> + Send + Sync;

/// Where a running gateway's configuration comes from, to be read again.
pub struct Source {
    load: Arc<Load>,
    file: Option<super::watch::Watched>,
}

impl Source {
    /// Read by `load`; `file`, if there is one, is looked at now and then, and read again when it has changed.
    pub fn new(
        load: impl Fn() -> Result<Config, Problems> + Send + Sync + 'static,
        file: Option<std::path::PathBuf>,
    ) -> Self {
        let file = file.map(super::watch::Watched::new);
        let mut source = Self { load: Arc::new(load), file };
        // What is there now is what the gateway starts with.
        source.taken();
        source
    }

    /// Returns true if the file has another content than was taken last, and was not just written: two looks must find the
    /// same. A file that cannot be read has not changed.
    pub fn changed(&mut self) -> bool {
        self.file.as_mut().is_some_and(|file| file.look_twice().is_ok_and(|text| text.is_some()))
    }

    /// Takes the file as it is now, since it is read at once: that is no change at the next look.
    pub fn taken(&mut self) {
        if let Some(file) = &mut self.file {
            let _ = file.look();
        }
    }

    /// What reads the configuration, to be done elsewhere: it blocks.
    pub fn loader(&self) -> Arc<Load> {
        Arc::clone(&self.load)
    }

    /// The configuration as it is written now.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(&self) -> Result<Config, Problems> {
        (self.load)()
    }
}

/// What differs between two configurations, by section.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// In force at once: who may do what, and which nodes are asked how.
    pub at_once: Vec<&'static str>,
    /// In force after a restart.
    pub after_restart: Vec<&'static str>,
}

impl Changes {
    /// What differs between `old` and `new`.
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
                ("passthrough", old.passthrough != new.passthrough),
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
    fn a_plan_holds_at_once_and_a_listener_waits() {
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
    fn a_file_is_read_again_when_it_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("slotfront.toml");
        std::fs::write(&file, "a").unwrap();
        let mut source = Source::new(|| unreachable!("not asked"), Some(file.clone()));
        assert!(!source.changed());
        std::fs::write(&file, "b").unwrap();
        assert!(!source.changed(), "it may be half of what is being written");
        assert!(source.changed());
        assert!(!source.changed());
        std::fs::write(&file, "c").unwrap();
        source.taken();
        assert!(!source.changed(), "it was read when it was asked for");
    }
}
