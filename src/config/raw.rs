//! The configuration as a tree of unchecked values with their lines.
//!
//! serde stops at the first error, but all problems should be reported. Values therefore stay raw until
//! [`super::reader`] asks for them by name.

use std::collections::BTreeMap;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Problem, ValueOrigin};

/// A table of the configuration file: its values by name.
pub(super) type RawTable = BTreeMap<String, RawValue>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct RawValue {
    pub(super) raw: Raw,
    pub(super) origin: ValueOrigin,
}

/// A TOML value of the file, or the text of an environment variable.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    Text(String),
    /// The text of an environment variable, which may stand for any type.
    Word(String),
    /// An integer; `None` beyond 64 bits.
    Integer(Option<i64>),
    Float(f64),
    Bool(bool),
    /// A date or time, which is not a valid value of any setting.
    Date,
    /// A list `[…]`, or a list of tables `[[name]]`.
    List(Vec<RawValue>),
    /// A table `{…}` or `[name]`.
    Table(RawTable),
}

impl From<&Value> for Raw {
    fn from(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Bool(b) => Self::Bool(*b),
            Value::Number(n) if n.is_f64() => Self::Float(n.as_f64().unwrap_or(f64::NAN)),
            value => Self::Integer(value.as_i64()),
        }
    }
}

impl Raw {
    /// Returns the text of a string from the file or the environment. `None` for any other value.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Word(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value in the syntax of the file, to be shown in a problem.
    pub(super) fn show(&self) -> String {
        match self {
            Self::Text(text) | Self::Word(text) => format!("{text:?}"),
            Self::Integer(Some(n)) => n.to_string(),
            Self::Integer(None) => "a number beyond 64 bits".to_owned(),
            Self::Float(n) => n.to_string(),
            Self::Bool(b) => b.to_string(),
            Self::Date => "a date".to_owned(),
            Self::List(_) => "[…]".to_owned(),
            Self::Table(_) => "{…}".to_owned(),
        }
    }
}

/// Parses TOML. Reports all syntax errors, but not the text around an error, which may be a secret.
pub(super) fn parse(text: &str) -> Result<RawTable, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let lines = LineIndex::of(text);
    if errors.is_empty() {
        return Ok(lines.table(table.get_ref()));
    }
    let problem = |e: &toml::de::Error| {
        let origin = ValueOrigin::Line(lines.at(e.span().map_or(0, |span| span.start)));
        let fix = "correct the syntax; strings need quotes, tables are [name], lists of tables [[name]]";
        Problem::new("", origin, format!("is not valid TOML: {}", e.message()), fix)
    };
    Err(errors.iter().map(problem).collect())
}

/// The positions of the line ends of a text, in bytes from its start.
struct LineIndex(Vec<usize>);

impl LineIndex {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// Returns the number of the line, from 1, that has the byte at position `byte`.
    fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|end| *end < byte) + 1
    }

    fn table(&self, table: &DeTable<'_>) -> RawTable {
        let entry = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            (key.get_ref().to_string(), self.written(key.span().start, value.get_ref()))
        };
        table.iter().map(entry).collect()
    }

    fn written(&self, at: usize, value: &DeValue<'_>) -> RawValue {
        let raw = match value {
            DeValue::String(text) => Raw::Text(text.to_string()),
            DeValue::Integer(n) => Raw::Integer(i64::from_str_radix(n.as_str(), n.radix()).ok()),
            // Unreachable: the grammar has already accepted it as a number.
            DeValue::Float(n) => Raw::Float(n.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(b) => Raw::Bool(*b),
            DeValue::Datetime(_) => Raw::Date,
            DeValue::Array(list) => {
                Raw::List(list.iter().map(|item| self.written(item.span().start, item.get_ref())).collect())
            }
            DeValue::Table(table) => Raw::Table(self.table(table)),
        };
        RawValue { raw, origin: ValueOrigin::Line(self.at(at)) }
    }
}
