//! Reads settings by name. The environment overrides the file, and the file overrides the default.
//!
//! If a value has a problem, the problem is recorded and the default is used, so that reading continues. A name that no
//! section has asked for is unknown; such names are reported at the end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::problem::{Problem, ValueOrigin};
use super::raw::{Raw, RawTable, RawValue};
use super::secret::Secret;
use super::value::Setting;

/// The prefix of all environment variables of slotfront.
pub(super) const PREFIX: &str = "SLOTFRONT_";

/// The values that settings are read from (environment and file), and the problems and names found so far.
pub(super) struct ConfigLayers<'a> {
    pub(super) file: &'a RawTable,
    pub(super) env: &'a BTreeMap<String, String>,
    /// The directory that relative paths start from.
    pub(super) base: &'a Path,
    found: RefCell<Findings>,
}

/// The results of reading a configuration, other than its values.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) problems: Vec<Problem>,
    /// The paths of all settings that sections have asked for.
    pub(super) known: BTreeSet<String>,
    /// The environment variables of all settings that sections have asked for.
    pub(super) variables: BTreeSet<String>,
    /// The origin of each value that was set.
    pub(super) origins: BTreeMap<String, ValueOrigin>,
}

impl Findings {
    /// Returns true if the value at `path` has a problem.
    pub(super) fn is_wrong(&self, path: &str) -> bool {
        self.problems.iter().any(|problem| problem.path == path)
    }

    /// Returns the origin of the value at `path`.
    pub(super) fn origin(&self, path: &str) -> ValueOrigin {
        self.origins.get(path).cloned().unwrap_or(ValueOrigin::Default)
    }
}

/// Returns the environment variable of `path`: `cache.ttl.account.finalized` is
/// `SLOTFRONT_CACHE__TTL__ACCOUNT__FINALIZED`.
pub(super) fn variable(path: &str) -> String {
    PREFIX.to_owned() + &path.to_uppercase().replace('.', "__").replace('-', "_")
}

impl<'a> ConfigLayers<'a> {
    pub(super) fn new(file: &'a RawTable, env: &'a BTreeMap<String, String>, base: &'a Path) -> Self {
        Self { file, env, base, found: RefCell::default() }
    }

    pub(super) fn root(&self) -> TableReader<'_> {
        TableReader { layers: self, path: String::new(), table: Some(self.file), in_env: true }
    }

    pub(super) fn finish(self) -> Findings {
        self.found.into_inner()
    }
}

/// A reader of one table of the configuration.
pub(super) struct TableReader<'a> {
    layers: &'a ConfigLayers<'a>,
    path: String,
    table: Option<&'a RawTable>,
    /// True if the table's settings have environment variables. Elements of lists have none.
    in_env: bool,
}

impl<'a> TableReader<'a> {
    /// Returns the path of `key` in the configuration, such as `server.listen`.
    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Returns the values that settings are read from, with the problems and names found so far.
    pub(super) fn layers(&self) -> &'a ConfigLayers<'a> {
        self.layers
    }

    /// Returns the raw value of `key`, or `None` if it is not set. Adds `key` to the known settings.
    pub(super) fn written(&self, key: &str) -> Option<RawValue> {
        let path = self.path(key);
        let mut found = self.layers.found.borrow_mut();
        found.known.insert(path.clone());
        let mut written = self.table.and_then(|table| table.get(key)).cloned();
        if self.in_env {
            let name = variable(&path);
            if let Some(text) = self.layers.env.get(&name) {
                let origin = ValueOrigin::Variable(name.clone());
                written = Some(RawValue { raw: Raw::Word(text.clone()), origin });
            }
            found.variables.insert(name);
        }
        if let Some(written) = &written {
            found.origins.insert(path, written.origin.clone());
        }
        written
    }

    /// Records a problem with `key`. `value` is the text to show; `None` shows none.
    pub(super) fn problem(
        &self,
        key: &str,
        value: Option<String>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let path = self.path(key);
        let mut found = self.layers.found.borrow_mut();
        let origin = found.origin(&path);
        found.problems.push(Problem { path, value, origin, rule: rule.into(), fix: fix.into() });
    }

    /// Returns true if the value of `key` has a problem.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        self.layers.found.borrow().is_wrong(&self.path(key))
    }

    /// Records the origin of the value of `key`, for a value that was not read through this reader.
    pub(super) fn set_origin(&self, key: &str, origin: ValueOrigin) {
        self.layers.found.borrow_mut().origins.insert(self.path(key), origin);
    }

    /// Reads a scalar. `None` if it is not set or invalid. An invalid value is recorded as a problem.
    pub(super) fn optional<T: Setting>(&self, key: &str) -> Option<T> {
        let raw = self.written(key)?.raw;
        let value = T::read(&raw);
        if value.is_none() {
            self.problem(
                key,
                Some(raw.show()),
                format!("expected {}", T::EXPECTED),
                format!("write it like {}", T::EXAMPLE),
            );
        }
        value
    }

    /// Reads a scalar within bounds. `None` if it is not set or invalid. An invalid value is recorded as a problem.
    pub(super) fn optional_within<T: Setting + PartialOrd>(
        &self,
        key: &str,
        bounds: RangeInclusive<T>,
    ) -> Option<T> {
        let value = self.optional::<T>(key)?;
        if bounds.contains(&value) {
            return Some(value);
        }
        let (low, high) = (bounds.start().show(), bounds.end().show());
        let fix = if value < *bounds.start() {
            format!("write at least {low}")
        } else {
            format!("write at most {high}")
        };
        self.problem(key, Some(value.show()), format!("expected a value from {low} to {high}"), fix);
        None
    }

    /// Reads a scalar, or returns `default` if it is not set or invalid.
    pub(super) fn get<T: Setting>(&self, key: &str, default: T) -> T {
        self.optional(key).unwrap_or(default)
    }

    /// Reads a scalar within bounds, or returns `default` if it is not set or invalid.
    pub(super) fn within<T: Setting + PartialOrd>(
        &self,
        key: &str,
        default: T,
        bounds: RangeInclusive<T>,
    ) -> T {
        self.optional_within(key, bounds).unwrap_or(default)
    }

    /// Reads a list of scalars. `None` if it is not set. Invalid elements are left out and recorded as problems. In the
    /// environment commas separate the elements.
    pub(super) fn list<T: Setting>(&self, key: &str) -> Option<Vec<T>> {
        let items: Vec<Raw> = match self.written(key)?.raw {
            Raw::List(items) => items.into_iter().map(|item| item.raw).collect(),
            Raw::Word(text) => text
                .split(',')
                .map(str::trim)
                .filter(|word| !word.is_empty())
                .map(|word| Raw::Word(word.to_owned()))
                .collect(),
            other => {
                self.problem(key, Some(other.show()), "expected a list", format!("write [{}]", T::EXAMPLE));
                return None;
            }
        };
        let mut values = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            if let Some(value) = T::read(item) {
                values.push(value);
            } else {
                let rule = format!("element {i}: expected {}", T::EXPECTED);
                self.problem(key, Some(item.show()), rule, format!("write it like {}", T::EXAMPLE));
            }
        }
        Some(values)
    }

    /// Reads a secret, written plainly or as a reference to a variable or file. `None` if it is not set or cannot be
    /// read. The secret is never shown.
    pub(super) fn secret(&self, key: &str) -> Option<Secret> {
        let raw = self.written(key)?.raw;
        let resolved = match raw.text() {
            Some(text) => Secret::resolve(text, self.layers.env, self.layers.base),
            None => Err("expected a string".to_owned()),
        };
        if let Some(name) = raw.text().and_then(|text| text.strip_prefix("env:")) {
            self.layers.found.borrow_mut().variables.insert(name.to_owned());
        }
        let complain = |rule: &String| {
            self.problem(key, Some("***".to_owned()), rule, "write \"env:NAME\" or \"file:PATH\"");
        };
        resolved.inspect_err(complain).ok()
    }

    /// Reads a path relative to the configuration file. `None` if it is not set.
    pub(super) fn file(&self, key: &str) -> Option<PathBuf> {
        self.optional::<String>(key).map(|path| self.layers.base.join(path))
    }

    /// Reads a path, or returns `default` if it is not set. `"off"` gives `None`.
    pub(super) fn file_or_off(&self, key: &str, default: &str) -> Option<PathBuf> {
        match self.optional::<String>(key).as_deref() {
            Some("off") => None,
            Some(path) => Some(self.layers.base.join(path)),
            None => Some(self.layers.base.join(default)),
        }
    }

    /// Returns a reader of the table `key` inside this one. If the file has no such table, the reader still reads the
    /// table's environment variables.
    pub(super) fn table(&self, key: &str) -> TableReader<'a> {
        let path = self.path(key);
        self.layers.found.borrow_mut().known.insert(path.clone());
        let table = match self.table.and_then(|table| table.get(key)) {
            None => None,
            Some(RawValue { raw: Raw::Table(table), .. }) => Some(table),
            Some(RawValue { raw, origin }) => {
                self.set_origin(key, origin.clone());
                let fix = format!("write [{path}], or {key} = {{ name = value }}");
                self.problem(key, Some(raw.show()), "expected a table", fix);
                None
            }
        };
        TableReader { layers: self.layers, path, table, in_env: self.in_env }
    }

    /// Returns readers of the tables in the list `key`. `None` if this list is not set.
    pub(super) fn tables(&self, key: &str) -> Option<Vec<TableReader<'a>>> {
        self.written(key)?;
        let path = self.path(key);
        // The tables are borrowed from the file, which outlives this reader. No variable sets a list of tables.
        let Some(RawValue { raw: Raw::List(items), .. }) = self.table.and_then(|table| table.get(key)) else {
            self.problem(
                key,
                None,
                "expected a list of tables",
                format!("write [[{path}]], in double brackets"),
            );
            return Some(Vec::new());
        };
        let element = |(i, item): (usize, &'a RawValue)| {
            let path = format!("{path}[{i}]");
            let mut found = self.layers.found.borrow_mut();
            found.known.insert(path.clone());
            found.origins.insert(path.clone(), item.origin.clone());
            let table = if let Raw::Table(table) = &item.raw { Some(table) } else { None };
            TableReader { layers: self.layers, path, table, in_env: false }
        };
        Some(items.iter().enumerate().map(element).collect())
    }

    /// Returns the names of the tables in this table, from the file and from variables such as
    /// `SLOTFRONT_PLANS__NAME__RPS`.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> =
            self.table.into_iter().flat_map(|table| table.keys().cloned()).collect();
        let prefix = variable(&self.path) + "__";
        let variables =
            self.layers.env.keys().filter_map(|name| name.strip_prefix(&prefix)?.split_once("__"));
        for (name, _) in variables {
            let known = names.iter().any(|known| variable(known) == variable(name));
            if !known {
                names.insert(name.to_lowercase());
            }
        }
        names
    }

    /// Returns the names in this table, from the file only.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.table.into_iter().flat_map(|table| table.keys().map(String::as_str))
    }
}
