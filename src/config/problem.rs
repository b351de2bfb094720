//! What is wrong with a configuration: all of it at once, each with its path, value, rule, fix and origin.
//!
//! A problem never holds a secret: whoever makes one decides whether its value may be shown.

use std::path::{Path, PathBuf};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Nowhere: it is the default, or it is missing.
    Default,
    /// In the configuration file, on this line (from 1).
    Line(usize),
    /// In this environment variable.
    Variable(String),
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The setting, such as `cache.ttl.account.finalized` or `upstream[1].url`; empty for the file as a whole.
    pub path: String,
    /// What was written there, where it may be shown.
    pub value: Option<String>,
    /// Where it was written.
    pub origin: Origin,
    /// The rule that it breaks.
    pub rule: String,
    /// What to write instead.
    pub fix: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.path.is_empty() { "the file" } else { &self.path })?;
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        match &self.origin {
            Origin::Default => {}
            Origin::Line(line) => write!(f, " (line {line})")?,
            Origin::Variable(name) => write!(f, " (from {name})")?,
        }
        write!(f, "\n    {}\n    fix: {}", self.rule, self.fix)
    }
}

/// All that is wrong with a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// The configuration file; `None` when there was only the environment.
    pub file: Option<PathBuf>,
    /// What is missing, then what is wrong in the file, line by line, then what is wrong in the environment.
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
            None => f.write_str("configuration")?,
        }
        let n = self.list.len();
        write!(f, ": {n} {}", if n == 1 { "problem" } else { "problems" })?;
        self.list.iter().try_for_each(|problem| write!(f, "\n\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
