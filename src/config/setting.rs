//! The declaration of a setting: its name, type, default, bounds and help, and when a change of it is in force, said
//! once.
//!
//! Reading a setting also records its declaration. The JSON Schema and the example file are made from these records.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::methods::{AnyMethod, PerCommitment};

use super::problem::io_fault;
use super::raw::Raw;
use super::reader::{Declared, Section, TableReader};
use super::secret::Secret;
use super::value::{ByteSize, MethodOrGroup, OrForever, OrOff, Setting};
use super::watch::read_text;

/// The bounds of lifetimes. More than ten years is not plausible.
const LIFETIME: RangeInclusive<&str> = "off"..="87600h";

/// Declares a section: a struct whose doc comments are the help, when a change of each of its settings is in force, and
/// how it is read. What follows `=` is one of
///
/// - `live`: a reload puts a change in force at once,
/// - `restart`: a change waits for a restart,
/// - `each`: each of the settings inside says so,
/// - `note`: no setting; a reload replaces it, and tells nobody;
///
/// and then a method of [`Field`] with a default or an example, and bounds; it may use the fields above. A field named
/// otherwise than its setting has the setting's name in brackets. Comments `//` give the reasons of defaults.
macro_rules! section {
    (
        $(#[doc = $section:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $name:ident {
            $($(#[doc = $help:literal])* $field:ident $([$key:literal])?: $type:ty = $when:ident.$how:ident($($argument:expr),*),)+
        }
    ) => {
        $(#[doc = $section])+
        #[derive(Debug, Clone, PartialEq)]
        $(#[derive($($derive),+)])?
        pub struct $name {
            $($(#[doc = $help])* pub $field: $type,)+
        }

        impl $crate::config::reader::Section for $name {
            const HELP: &'static str = concat!($($section, "\n"),+);

            fn read(r: &$crate::config::reader::TableReader<'_>) -> Self {
                $(
                    let key = [$($key,)? stringify!($field)][0];
                    let $field: $type = r.field(key, concat!($($help, "\n"),*)).$how($($argument),*);
                )+
                Self { $($field),+ }
            }
        }

        impl $crate::config::reload::Reloaded for $name {
            fn changes(&self, new: &Self, path: &str, changes: &mut $crate::config::reload::Changes) {
                $(
                    let key = [$($key,)? stringify!($field)][0];
                    $crate::config::setting::change!($when, self.$field, new.$field, (path, key), changes);
                )+
            }

            fn take_over(&mut self, new: &Self) {
                $($crate::config::setting::take_over!($when, self.$field, new.$field);)+
            }
        }
    };
}
pub(super) use section;

/// Notes that a setting has changed, in the list of its kind.
macro_rules! change {
    (live, $old:expr, $new:expr, $path:expr, $changes:expr) => {
        $changes.at_once.extend($crate::config::reload::changed(&$old, &$new, $path))
    };
    (restart, $old:expr, $new:expr, $path:expr, $changes:expr) => {
        $changes.after_restart.extend($crate::config::reload::changed(&$old, &$new, $path))
    };
    (each, $old:expr, $new:expr, $path:expr, $changes:expr) => {
        $crate::config::reload::Reloaded::changes(
            &$old,
            &$new,
            &$crate::config::reload::joined($path),
            $changes,
        )
    };
    (note, $old:expr, $new:expr, $path:expr, $changes:expr) => {
        _ = $path
    };
}
pub(super) use change;

/// Replaces a setting, if a reload may.
macro_rules! take_over {
    (restart, $old:expr, $new:expr) => {
        _ = &$new
    };
    (each, $old:expr, $new:expr) => {
        $crate::config::reload::Reloaded::take_over(&mut $old, &$new)
    };
    ($when:ident, $old:expr, $new:expr) => {
        Clone::clone_from(&mut $old, &$new)
    };
}
pub(super) use take_over;

/// The certificates of a file, as they were when the configuration was read. A reload thus sees that they have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaFile {
    pub path: PathBuf,
    pub pem: String,
}

/// One setting of a table, which the methods read and declare. `default` is the value of a setting that is missing or
/// invalid, and `example` one for a setting without a default, both as in the file.
pub(super) struct Field<'a, 'h> {
    pub(super) r: TableReader<'a>,
    pub(super) key: &'h str,
    pub(super) help: &'h str,
}

impl Field<'_, '_> {
    /// A value that no setting changes.
    #[expect(clippy::unused_self, reason = "the other fields of a section are read by methods")]
    pub(super) fn fixed<T>(&self, value: T) -> T {
        value
    }

    pub(super) fn with<T>(&self, read: impl Fn(&Self) -> T) -> T {
        read(self)
    }

    pub(super) fn section<T: Section>(&self) -> T {
        self.r.section(self.key)
    }

    pub(super) fn table(&self) -> TableReader<'_> {
        self.r.declared_table(self.key, self.help)
    }

    pub(super) fn get<T: Setting>(&self, default: impl Into<Value>) -> T {
        let default = default.into();
        self.declare(T::schema(), Some(&default), None);
        self.parsed().unwrap_or_else(|| read(&default))
    }

    pub(super) fn within<T: Setting + PartialOrd>(
        &self,
        default: impl Into<Value>,
        bounds: RangeInclusive<impl Into<Value> + Clone>,
    ) -> T {
        let (default, bounds) = (default.into(), Bounds::from(bounds));
        self.declare(bounds.schema::<T>(), Some(&default), None);
        self.parsed_within(&bounds).unwrap_or_else(|| read(&default))
    }

    pub(super) fn bytes(&self, default: &str, bounds: RangeInclusive<&str>) -> u64 {
        self.within::<ByteSize>(default, bounds).0
    }

    pub(super) fn size(&self, default: &str, bounds: RangeInclusive<&str>) -> usize {
        usize::try_from(self.bytes(default, bounds)).unwrap_or(usize::MAX)
    }

    /// A duration, or `"off"`, which is zero.
    pub(super) fn lifetime(&self, default: &str) -> Duration {
        self.within::<OrOff>(default, LIFETIME).0
    }

    pub(super) fn lifetimes(&self, defaults: [&str; 3]) -> PerCommitment<Duration> {
        self.each(defaults, |field, default| field.within::<OrOff>(default, LIFETIME).0)
    }

    /// A duration, `"off"`, or `"forever"`, which is `None`.
    pub(super) fn lifetime_or_forever(&self, default: &str) -> Option<Duration> {
        self.get::<OrForever>(default).0
    }

    /// A table with a value for each commitment.
    pub(super) fn each<D, T>(
        &self,
        defaults: [D; 3],
        read: impl Fn(&Field<'_, '_>, D) -> T,
    ) -> PerCommitment<T> {
        let table = self.table();
        let one = |key, default| read(&table.field(key, ""), default);
        let [processed, confirmed, finalized] = defaults;
        PerCommitment {
            processed: one("processed", processed),
            confirmed: one("confirmed", confirmed),
            finalized: one("finalized", finalized),
        }
    }

    pub(super) fn optional<T: Setting>(&self, example: impl Into<Value>) -> Option<T> {
        self.declare(T::schema(), None, Some(&example.into()));
        self.parsed()
    }

    pub(super) fn optional_within<T: Setting + PartialOrd>(
        &self,
        example: impl Into<Value>,
        bounds: RangeInclusive<impl Into<Value> + Clone>,
    ) -> Option<T> {
        let bounds = Bounds::from(bounds);
        self.declare(bounds.schema::<T>(), None, Some(&example.into()));
        self.parsed_within(&bounds)
    }

    pub(super) fn list<T: Setting>(&self, default: &[&str]) -> Vec<T> {
        self.declare(list_of::<T>(), Some(&default.into()), None);
        self.parsed_list().unwrap_or_else(|| default.iter().map(|item| read(&(*item).into())).collect())
    }

    pub(super) fn optional_list<T: Setting>(&self, example: &[&str]) -> Option<Vec<T>> {
        self.declare(list_of::<T>(), None, Some(&example.into()));
        self.parsed_list()
    }

    /// Methods by name, or by the name of their group. `None` if it is not set or cannot be read.
    pub(super) fn methods(&self, example: &[&str]) -> Option<Vec<AnyMethod>> {
        let (named, all) = (self.optional_list::<MethodOrGroup>(example)?, self.r.methods());
        let mut methods = Vec::new();
        for named in named {
            match named {
                MethodOrGroup::Group(group) => {
                    methods.extend(all.iter().filter(|method| method.group() == Some(group)));
                }
                MethodOrGroup::Method(method) if all.contains(&method) => methods.push(method),
                MethodOrGroup::Method(method) => {
                    let fix = format!("add [methods.{}]", method.as_str());
                    self.problem(
                        Some(method.as_str().to_owned()),
                        "names a method that [methods] does not list",
                        fix,
                    );
                }
            }
        }
        Some(methods)
    }

    /// Text, or a reference to a variable or a file. `None` if it is not set or cannot be read. It is never shown.
    pub(super) fn secret(&self, example: &str) -> Option<Secret> {
        self.declare(String::schema(), None, Some(&example.into()));
        self.parsed_secret()
    }

    /// A path relative to the configuration file.
    pub(super) fn file(&self, example: &str) -> Option<PathBuf> {
        self.optional::<String>(example).map(|path| self.r.layers().base.join(path))
    }

    /// A path relative to the configuration file, or `"off"`, which is `None`.
    pub(super) fn file_or_off(&self, default: &str) -> Option<PathBuf> {
        let path: String = self.get(default);
        (path != "off").then(|| self.r.layers().base.join(path))
    }

    /// Certificates in PEM, by the path of their file. Records a problem if the file is unreadable or has none.
    pub(super) fn ca_file(&self) -> Option<CaFile> {
        let path = self.file("ca.pem")?;
        let fault = match read_text(&path) {
            Err(e) => format!("cannot be read: {}", io_fault(&path, &e)),
            Ok(pem) if pem.contains("-----BEGIN CERTIFICATE-----") => return Some(CaFile { path, pem }),
            Ok(_) => "has no certificate".to_owned(),
        };
        let rule = format!("names the file {}, which {fault}", path.display());
        self.problem(None, rule, "name a readable file with certificates in PEM");
        None
    }

    pub(super) fn declare(&self, schema: Value, default: Option<&Value>, example: Option<&Value>) {
        let mut declared = Declared::table(self.r.path(self.key), self.help);
        (declared.schema, declared.default, declared.example) = (schema, default.cloned(), example.cloned());
        self.r.declare(declared);
    }

    /// Records a problem with this setting. `value` is the text to show; `None` shows none.
    pub(super) fn problem(&self, value: Option<String>, rule: impl Into<String>, fix: impl Into<String>) {
        self.r.problem(self.key, value, rule, fix);
    }

    /// Records a problem with a setting whose value must not be shown.
    pub(super) fn secret_problem(&self, rule: impl Into<String>, fix: &str) {
        self.problem(Some("***".to_owned()), rule, fix);
    }

    /// Reads the value. `None` if it is not set or invalid. An invalid value is recorded as a problem.
    pub(super) fn parsed<T: Setting>(&self) -> Option<T> {
        let raw = self.r.written(self.key)?.raw;
        let value = T::read(&raw);
        if value.is_none() {
            let (rule, fix) = (format!("expected {}", T::EXPECTED), format!("write it like {}", T::EXAMPLE));
            self.problem(Some(raw.show()), rule, fix);
        }
        value
    }

    fn parsed_within<T: Setting + PartialOrd>(&self, bounds: &Bounds) -> Option<T> {
        let value = self.parsed::<T>()?;
        let Bounds(low, high) = bounds;
        let fix = if value < read(low) {
            format!("write at least {low}")
        } else if value > read(high) {
            format!("write at most {high}")
        } else {
            return Some(value);
        };
        let shown = self.r.written(self.key).map(|written| written.raw.show());
        self.problem(shown, format!("expected a value from {low} to {high}"), fix);
        None
    }

    /// Reads a list. `None` if it is not set. Invalid elements are left out and recorded as problems. In the
    /// environment commas separate the elements.
    fn parsed_list<T: Setting>(&self) -> Option<Vec<T>> {
        let items: Vec<Raw> = match self.r.written(self.key)?.raw {
            Raw::List(items) => items.into_iter().map(|item| item.raw).collect(),
            Raw::Word(text) => text
                .split(',')
                .map(str::trim)
                .filter(|word| !word.is_empty())
                .map(|word| Raw::Word(word.to_owned()))
                .collect(),
            _ => {
                // The value may be a URL in the place of names.
                self.problem(
                    None,
                    "expected a list",
                    format!("write [{}]", T::EXAMPLE.replace(" or ", ", ")),
                );
                return None;
            }
        };
        let mut values = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            if let Some(value) = T::read(item) {
                values.push(value);
            } else {
                let rule = format!("element {i}: expected {}", T::EXPECTED);
                self.problem(Some(item.show()), rule, format!("write it like {}", T::EXAMPLE));
            }
        }
        Some(values)
    }

    pub(super) fn parsed_secret(&self) -> Option<Secret> {
        let raw = self.r.written(self.key)?.raw;
        let layers = self.r.layers();
        let resolved = match raw.text() {
            Some(text) => Secret::resolve(text, layers.env, layers.base),
            None => Err("expected a string".to_owned()),
        };
        if let Some(name) = raw.text().and_then(|text| text.strip_prefix("env:")) {
            self.r.know_variable(name);
        }
        resolved.inspect_err(|rule| self.secret_problem(rule, "write \"env:NAME\" or \"file:PATH\"")).ok()
    }
}

/// The lowest and the highest valid value, as in the file.
struct Bounds(Value, Value);

impl<T: Into<Value> + Clone> From<RangeInclusive<T>> for Bounds {
    fn from(bounds: RangeInclusive<T>) -> Self {
        let (low, high) = bounds.into_inner();
        Self(low.into(), high.into())
    }
}

impl Bounds {
    fn schema<T: Setting>(&self) -> Value {
        let mut schema = T::schema();
        let Self(low, high) = self;
        if low.is_number() {
            (schema["minimum"], schema["maximum"]) = (low.clone(), high.clone());
        }
        schema["description"] = format!("From {low} to {high}.").into();
        schema
    }
}

fn list_of<T: Setting>() -> Value {
    json!({ "type": "array", "items": T::schema() })
}

fn read<T: Setting>(value: &Value) -> T {
    T::read(&Raw::from(value)).expect("a test reads every default and bound")
}
