//! Asks for each setting by name: the environment first, then the file, then the default.
//!
//! A problem never stops the reading: it is noted, the default stands in, and the next setting is read. What was
//! asked for is what exists, so that at the end every other name in the file or environment is an unknown one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::problem::{Origin, Problem};
use super::raw::{Raw, Table, Written};
use super::secret::Secret;
use super::value::Setting;

/// What every environment variable of ours begins with.
pub(super) const PREFIX: &str = "SLOTFRONT_";

/// One configuration while it is read: its layers, and what has been found so far.
pub(super) struct Sheet<'a> {
    pub(super) file: &'a Table,
    pub(super) env: &'a BTreeMap<String, String>,
    /// The directory that relative paths start from.
    pub(super) base: &'a Path,
    found: RefCell<Found>,
}

/// What the reading has found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) problems: Vec<Problem>,
    /// Every path asked for.
    pub(super) known: BTreeSet<String>,
    /// Every variable that could have been one of those.
    pub(super) variables: BTreeSet<String>,
    /// Where each value that was written was found.
    pub(super) origins: BTreeMap<String, Origin>,
}

impl Found {
    /// Whether a problem with the value at `path` has been noted.
    pub(super) fn is_wrong(&self, path: &str) -> bool {
        self.problems.iter().any(|problem| problem.path == path)
    }

    /// Where the value at `path` was written.
    pub(super) fn origin(&self, path: &str) -> Origin {
        self.origins.get(path).cloned().unwrap_or(Origin::Default)
    }
}

/// The variable that stands for `path`: `cache.ttl.account.finalized` is `SLOTFRONT_CACHE__TTL__ACCOUNT__FINALIZED`.
pub(super) fn variable(path: &str) -> String {
    PREFIX.to_owned() + &path.to_uppercase().replace('.', "__").replace('-', "_")
}

impl<'a> Sheet<'a> {
    pub(super) fn new(file: &'a Table, env: &'a BTreeMap<String, String>, base: &'a Path) -> Self {
        Self { file, env, base, found: RefCell::default() }
    }

    pub(super) fn root(&self) -> Reader<'_> {
        Reader { sheet: self, path: String::new(), table: Some(self.file), in_env: true }
    }

    pub(super) fn finish(self) -> Found {
        self.found.into_inner()
    }
}

/// One table of the sheet.
pub(super) struct Reader<'a> {
    sheet: &'a Sheet<'a>,
    path: String,
    table: Option<&'a Table>,
    /// Elements of arrays have no variables of their own.
    in_env: bool,
}

impl<'a> Reader<'a> {
    /// The full name of `key`.
    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The whole configuration.
    pub(super) fn sheet(&self) -> &'a Sheet<'a> {
        self.sheet
    }

    /// The value as written, if it was. Asking makes the name known.
    pub(super) fn written(&self, key: &str) -> Option<Written> {
        let path = self.path(key);
        let mut found = self.sheet.found.borrow_mut();
        found.known.insert(path.clone());
        let mut written = self.table.and_then(|table| table.get(key)).cloned();
        if self.in_env {
            let name = variable(&path);
            if let Some(text) = self.sheet.env.get(&name) {
                let origin = Origin::Variable(name.clone());
                written = Some(Written { raw: Raw::Word(text.clone()), origin });
            }
            found.variables.insert(name);
        }
        if let Some(written) = &written {
            found.origins.insert(path, written.origin.clone());
        }
        written
    }

    /// Notes a problem with the value of `key`; `value` is what may be shown of it.
    pub(super) fn problem(
        &self,
        key: &str,
        value: Option<String>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let path = self.path(key);
        let mut found = self.sheet.found.borrow_mut();
        let origin = found.origin(&path);
        found.problems.push(Problem { path, value, origin, rule: rule.into(), fix: fix.into() });
    }

    /// Whether a problem with the value of `key` has been noted.
    pub(super) fn is_wrong(&self, key: &str) -> bool {
        self.sheet.found.borrow().is_wrong(&self.path(key))
    }

    /// Says where the value of `key` came from, when it was not read here.
    pub(super) fn place(&self, key: &str, origin: Origin) {
        self.sheet.found.borrow_mut().origins.insert(self.path(key), origin);
    }

    /// A scalar, if it was written and is one.
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

    /// A scalar between two bounds, if it was written and is one.
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
        self.problem(
            key,
            Some(value.show()),
            format!("expected a value from {low} to {high}"),
            format!("write {}", if value < *bounds.start() { low } else { high }),
        );
        None
    }

    /// A scalar, or its default.
    pub(super) fn get<T: Setting>(&self, key: &str, default: T) -> T {
        self.optional(key).unwrap_or(default)
    }

    /// A scalar between two bounds, or its default.
    pub(super) fn within<T: Setting + PartialOrd>(
        &self,
        key: &str,
        default: T,
        bounds: RangeInclusive<T>,
    ) -> T {
        self.optional_within(key, bounds).unwrap_or(default)
    }

    /// A list of scalars, in the environment separated by commas, if it was written.
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
                let rule = format!("expected {} as element {i}", T::EXPECTED);
                self.problem(key, Some(item.show()), rule, format!("write it like {}", T::EXAMPLE));
            }
        }
        Some(values)
    }

    /// A secret, followed to where it is kept, if it was written. It is never shown.
    pub(super) fn secret(&self, key: &str) -> Option<Secret> {
        let raw = self.written(key)?.raw;
        let resolved = match raw.text() {
            Some(text) => Secret::resolve(text, self.sheet.env, self.sheet.base),
            None => Err("expected a string".to_owned()),
        };
        if let Some(name) = raw.text().and_then(|text| text.strip_prefix("env:")) {
            self.sheet.found.borrow_mut().variables.insert(name.to_owned());
        }
        let complain = |rule: &String| {
            self.problem(key, Some("***".to_owned()), rule, "write \"env:NAME\" or \"file:PATH\"");
        };
        resolved.inspect_err(complain).ok()
    }

    /// A path, relative to the configuration file, if it was written.
    pub(super) fn file(&self, key: &str) -> Option<PathBuf> {
        self.optional::<String>(key).map(|path| self.sheet.base.join(path))
    }

    /// A path, or the default, or nothing where it says `"off"`.
    pub(super) fn file_or_off(&self, key: &str, default: &str) -> Option<PathBuf> {
        match self.optional::<String>(key).as_deref() {
            Some("off") => None,
            Some(path) => Some(self.sheet.base.join(path)),
            None => Some(self.sheet.base.join(default)),
        }
    }

    /// A table inside this one; empty where it was not written.
    pub(super) fn table(&self, key: &str) -> Reader<'a> {
        let path = self.path(key);
        self.sheet.found.borrow_mut().known.insert(path.clone());
        let table = match self.table.and_then(|table| table.get(key)) {
            None => None,
            Some(Written { raw: Raw::Table(table), .. }) => Some(table),
            Some(Written { raw, origin }) => {
                self.place(key, origin.clone());
                let fix = format!("write [{path}], or {key} = {{ name = value }}");
                self.problem(key, Some(raw.show()), "expected a table", fix);
                None
            }
        };
        Reader { sheet: self.sheet, path, table, in_env: self.in_env }
    }

    /// The elements of a list of tables; `None` where it was not written.
    pub(super) fn tables(&self, key: &str) -> Option<Vec<Reader<'a>>> {
        self.written(key)?;
        let path = self.path(key);
        // From the file itself, which outlives this reader; a list of tables has no variable.
        let Some(Written { raw: Raw::List(items), .. }) = self.table.and_then(|table| table.get(key)) else {
            self.problem(
                key,
                None,
                "expected a list of tables",
                format!("write [[{path}]], in double brackets"),
            );
            return Some(Vec::new());
        };
        let element = |(i, item): (usize, &'a Written)| {
            let path = format!("{path}[{i}]");
            let mut found = self.sheet.found.borrow_mut();
            found.known.insert(path.clone());
            found.origins.insert(path.clone(), item.origin.clone());
            let table = if let Raw::Table(table) = &item.raw { Some(table) } else { None };
            Reader { sheet: self.sheet, path, table, in_env: false }
        };
        Some(items.iter().enumerate().map(element).collect())
    }

    /// The names in this table of tables, from the file and from variables such as `SLOTFRONT_PLANS__NAME__RPS`.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> =
            self.table.into_iter().flat_map(|table| table.keys().cloned()).collect();
        let prefix = variable(&self.path) + "__";
        let variables = self.sheet.env.keys().filter_map(|name| name.strip_prefix(&prefix)?.split_once("__"));
        for (name, _) in variables {
            let known = names.iter().any(|known| variable(known) == variable(name));
            if !known {
                names.insert(name.to_lowercase());
            }
        }
        names
    }

    /// The names in this table, from the file alone.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.table.into_iter().flat_map(|table| table.keys().map(String::as_str))
    }
}
