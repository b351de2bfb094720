//! Secrets, references to them (`env:NAME` and `file:PATH`), and the hash by which they are kept and compared.

use std::collections::BTreeMap;
use std::path::Path;

use ring::digest::{SHA256, digest};

use super::problem::io_fault;
use super::watch::read_text;

/// A value that is never shown: `Debug` and `Display` print `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the secret in plain text. It must not be logged or shown.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Resolves a reference `env:NAME` or `file:PATH`. Any other text is the secret itself. A path is relative to
    /// `base`, and line breaks at the end of the file are dropped.
    ///
    /// # Errors
    /// The variable is not set, the file cannot be read, or the secret is empty. The message never shows the
    /// secret.
    pub fn resolve(text: &str, env: &BTreeMap<String, String>, base: &Path) -> Result<Self, String> {
        let found = if let Some(name) = text.strip_prefix("env:") {
            env.get(name).cloned().ok_or_else(|| format!("names the variable {name}, which is not set"))?
        } else if let Some(file) = text.strip_prefix("file:") {
            let path = base.join(file);
            let read = read_text(&path).map_err(|e| {
                format!("names the file {file}, which cannot be read: {}", io_fault(&path, &e))
            })?;
            read.trim_end_matches(['\r', '\n']).to_owned()
        } else {
            text.to_owned()
        };
        if !found.is_empty() {
            return Ok(Self(found));
        }
        Err(match text.split_once(':') {
            Some(("env", name)) => format!("names the variable {name}, which is empty"),
            Some(("file", file)) => format!("names the file {file}, which is empty"),
            _ => "is empty".to_owned(),
        })
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Returns the SHA-256 of `bytes`, by the crate that TLS uses as well.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_resolved_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "from-file\r\n").unwrap();
        let env =
            BTreeMap::from([("TOKEN".to_owned(), "from-env".to_owned()), ("NONE".to_owned(), String::new())]);
        let resolve = |text: &str| Secret::resolve(text, &env, dir.path()).map(|s| s.expose().to_owned());
        let rows = [
            ("plain", Ok("plain")),
            ("env:TOKEN", Ok("from-env")),
            ("file:token", Ok("from-file")),
            ("env:MISSING", Err("names the variable MISSING, which is not set")),
            ("env:NONE", Err("names the variable NONE, which is empty")),
            ("file:missing", Err("names the file missing, which cannot be read: it does not exist")),
        ];
        for (text, expected) in rows {
            assert_eq!(resolve(text), expected.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:#?}", Some(&secret)), "*** *** Some(\n    ***,\n)");
    }
}
