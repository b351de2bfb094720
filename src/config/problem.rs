//! The problems of a configuration, each with its path, value, rule, fix and origin.
//!
//! A problem never holds a secret; its creator decides whether the value may be shown.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueOrigin {
    /// The value is the default, or missing.
    Default,
    /// The value comes from this line of the configuration file, counted from 1.
    Line(usize),
    /// The value comes from the environment variable of this name.
    Variable(String),
}

/// Says why the file `path` cannot be read or written, as in "cannot be read: …". If it may not, both users are named, because
/// a file that is mounted into a container often belongs to a user of the host. For a file that cannot be created, its
/// folder is what counts.
pub(crate) fn io_fault(path: &Path, error: &io::Error) -> String {
    let of = |path: &Path, what| Some((what, std::fs::metadata(path).ok()?));
    match (error.kind(), of(path, "it").or_else(|| of(folder_of(path), "its folder"))) {
        (io::ErrorKind::NotFound, None) => "it does not exist, nor does its folder".to_owned(),
        (io::ErrorKind::NotFound, Some(_)) => "it does not exist".to_owned(),
        (io::ErrorKind::PermissionDenied, Some((what, file))) => format!(
            "permission denied; {what} belongs to user {} with mode {:03o}, and slotfront runs as user {}",
            file.uid(),
            file.mode() & 0o777,
            rustix::process::geteuid().as_raw()
        ),
        (io::ErrorKind::InvalidInput, _) => error.to_string(),
        (kind, _) => kind.to_string(),
    }
}

/// Returns the folder of a file, which is the working directory for a mere name.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The setting, such as `cache.ttl.account.finalized` or `upstream[1].url`. Empty for the file as a whole.
    pub path: String,
    /// The faulty value as text. `None` if the value is missing, or may not be shown.
    pub value: Option<String>,
    pub origin: ValueOrigin,
    /// The rule that the value breaks, as text for people.
    pub rule: String,
    /// The advice on how to solve the problem, as text for people.
    pub fix: String,
}

impl Problem {
    /// A problem whose value is missing, or may not be shown.
    pub(super) fn new(
        path: impl Into<String>,
        origin: ValueOrigin,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), value: None, origin, rule: rule.into(), fix: fix.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.path.is_empty() { "the file" } else { &self.path })?;
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        match &self.origin {
            ValueOrigin::Default => {}
            ValueOrigin::Line(line) => write!(f, " (line {line})")?,
            ValueOrigin::Variable(name) => write!(f, " (from {name})")?,
        }
        write!(f, "\n    {}\n    fix: {}", self.rule, self.fix)
    }
}

/// All problems of a configuration; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// The configuration file; `None` if only the environment was read.
    pub file: Option<PathBuf>,
    /// The problems: missing settings, then those of the file by line, then those of the environment.
    pub list: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(file: Option<&Path>, mut list: Vec<Problem>) -> Self {
        list.sort_by(|a, b| a.origin.cmp(&b.origin).then_with(|| a.path.cmp(&b.path)));
        Self { file: file.map(Path::to_path_buf), list }
    }
}

impl std::fmt::Display for Problems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}", file.display())?,
            None => f.write_str("configuration without a file (--config FILE or SLOTFRONT_CONFIG)")?,
        }
        let n = self.list.len();
        write!(f, ": {n} {}", if n == 1 { "problem" } else { "problems" })?;
        self.list.iter().try_for_each(|problem| write!(f, "\n\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
