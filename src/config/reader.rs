//! Reads settings by name. The environment overrides the file, and the file overrides the default.
//!
//! If a value has a problem, the problem is recorded and the default is used, so that reading continues. A name that no
//! section has asked for is unknown; such names are reported at the end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::methods::AnyMethod;

use super::problem::{Problem, ValueOrigin};
use super::raw::{Raw, RawTable, RawValue};
use super::setting::Field;

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
    pub(super) origins: BTreeMap<String, ValueOrigin>,
    /// The declarations of all settings and tables, in the order in which sections have asked for them.
    pub(super) declared: Vec<Declared>,
}

/// What a section says about a setting or a table.
pub(super) struct Declared {
    pub(super) path: String,
    pub(super) help: String,
    pub(super) default: Option<Value>,
    /// A value for readers of the example file, if there is no default.
    pub(super) example: Option<Value>,
    /// The JSON Schema of the values; null for a table.
    pub(super) schema: Value,
}

impl Declared {
    pub(super) fn description(&self) -> String {
        let bounds = self.schema["description"].as_str().unwrap_or_default();
        format!("{} {bounds}", self.help).trim().to_owned()
    }

    pub(super) fn table(path: String, help: &str) -> Self {
        // The lines of a doc comment are joined.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        Self { path, help, default: None, example: None, schema: Value::Null }
    }
}

/// A table of the configuration whose settings are declared by [`section`](super::setting::section).
pub(super) trait Section: Sized {
    const HELP: &'static str;

    fn read(r: &TableReader<'_>) -> Self;

    /// Returns the section of an empty configuration.
    fn defaults() -> Self {
        let (file, env) = (RawTable::new(), BTreeMap::new());
        Self::read(&ConfigLayers::new(&file, &env, Path::new("")).root())
    }
}

impl Findings {
    /// Returns true if the value at `path` has a problem.
    pub(super) fn is_wrong(&self, path: &str) -> bool {
        self.problems.iter().any(|problem| problem.path == path)
    }

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
#[derive(Clone)]
pub(super) struct TableReader<'a> {
    layers: &'a ConfigLayers<'a>,
    path: String,
    table: Option<&'a RawTable>,
    /// True if the table's settings have environment variables. Elements of lists have none.
    in_env: bool,
}

impl<'a> TableReader<'a> {
    /// Returns the path of `key` in the configuration, such as `server.listen`. That of the empty key is the table's.
    pub(super) fn path(&self, key: &str) -> String {
        match (self.path.as_str(), key) {
            (path, "") => path.to_owned(),
            ("", key) => key.to_owned(),
            (path, key) => format!("{path}.{key}"),
        }
    }

    /// Returns the values that settings are read from, with the problems and names found so far.
    pub(super) fn layers(&self) -> &'a ConfigLayers<'a> {
        self.layers
    }

    /// Returns every method of which this configuration may speak. Those that only an earlier one has listed are not among
    /// them.
    pub(super) fn methods(&self) -> Vec<AnyMethod> {
        let listed = match self.layers.file.get("methods") {
            Some(RawValue { raw: Raw::Table(table), .. }) => Some(table),
            _ => None,
        };
        let is_listed = |name| listed.is_some_and(|table| table.contains_key(name));
        let mut methods: Vec<_> = AnyMethod::all().collect();
        methods.retain(|method| !matches!(method, AnyMethod::Listed(_)) || is_listed(method.as_str()));
        methods
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

    pub(super) fn is_wrong(&self, key: &str) -> bool {
        self.layers.found.borrow().is_wrong(&self.path(key))
    }

    /// Records the origin of the value of `key`, for a value that was not read through this reader.
    pub(super) fn set_origin(&self, key: &str, origin: ValueOrigin) {
        self.layers.found.borrow_mut().origins.insert(self.path(key), origin);
    }

    /// Returns the setting `key` of this table, or `table.name` of a table inside it. `help` describes it.
    pub(super) fn field<'h>(&self, key: &'h str, help: &'h str) -> Field<'a, 'h> {
        match key.split_once('.') {
            Some((table, key)) => Field { r: self.table(table), key, help },
            None => Field { r: self.clone(), key, help },
        }
    }

    pub(super) fn declare(&self, declared: Declared) {
        self.layers.found.borrow_mut().declared.push(declared);
    }

    /// Adds the name of an environment variable that a setting refers to.
    pub(super) fn know_variable(&self, name: &str) {
        self.layers.found.borrow_mut().variables.insert(name.to_owned());
    }

    pub(super) fn section<T: Section>(&self, key: &str) -> T {
        T::read(&self.declared_table(key, T::HELP))
    }

    /// Returns a reader of the table `key`, which `help` describes.
    pub(super) fn declared_table(&self, key: &str, help: &str) -> TableReader<'a> {
        self.declare(Declared::table(self.path(key), help));
        self.table(key)
    }

    /// Returns a reader of the table `key` inside this one. If the file has no such table, the reader still reads the
    /// table's environment variables.
    pub(super) fn table(&self, key: &str) -> TableReader<'a> {
        let path = self.path(key);
        self.layers.found.borrow_mut().known.insert(path.clone());
        let table = match self.table.and_then(|table| table.get(key)) {
            None => None,
            Some(RawValue { raw: Raw::Table(table), .. }) => Some(table),
            Some(RawValue { origin, .. }) => {
                self.set_origin(key, origin.clone());
                let fix = format!("write [{path}], or {key} = {{ name = value }}");
                // The value may be the secret of a header, or a URL with a password.
                self.problem(key, None, "expected a table", fix);
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
