//! The configuration as written: a tree of values that remember their lines. Nothing is judged here.
//!
//! serde would be shorter, but it stops at its first error, and an operator wants all of them: so values stay raw
//! until [`super::reader`] asks for each by name.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Origin, Problem};

/// A table of the file, by name.
pub(super) type Table = BTreeMap<String, Written>;

/// A value, and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Written {
    pub(super) raw: Raw,
    pub(super) origin: Origin,
}

/// A value as the file's grammar knows it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    /// A quoted string.
    Text(String),
    /// The text of an environment variable: it may mean a number as well.
    Word(String),
    /// A whole number; `None` past 64 bits.
    Integer(Option<i64>),
    /// A number with a fraction.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A date or a time, which no setting is.
    Date,
    /// `[…]`, also of tables.
    List(Vec<Written>),
    /// `{…}` or `[name]`.
    Table(Table),
}

impl Raw {
    /// The text of a string, quoted or from the environment.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Word(text) => Some(text),
            _ => None,
        }
    }

    /// The value as the file would have it, to be shown in a problem.
    pub(super) fn show(&self) -> String {
        match self {
            Self::Text(text) | Self::Word(text) => format!("{text:?}"),
            Self::Integer(Some(n)) => n.to_string(),
            Self::Integer(None) => "a number past 64 bits".to_owned(),
            Self::Float(n) => n.to_string(),
            Self::Bool(b) => b.to_string(),
            Self::Date => "a date".to_owned(),
            Self::List(_) => "[…]".to_owned(),
            Self::Table(_) => "{…}".to_owned(),
        }
    }
}

/// Reads TOML. All syntax errors are found, none shows the text around it, which may be a secret.
pub(super) fn parse(text: &str) -> Result<Table, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let lines = Lines::of(text);
    if errors.is_empty() {
        return Ok(lines.table(table.get_ref()));
    }
    let problem = |e: &toml::de::Error| Problem {
        path: String::new(),
        value: None,
        origin: Origin::Line(lines.at(e.span().map_or(0, |span| span.start))),
        rule: format!("is no TOML here: {}", e.message()),
        fix: "correct the syntax; strings need quotes, tables are [name], lists of tables [[name]]"
            .to_owned(),
    };
    Err(errors.iter().map(problem).collect())
}

/// Where each line ends, in bytes.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line of a byte, from 1.
    fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|end| *end < byte) + 1
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        let entry = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            (key.get_ref().to_string(), self.written(key.span().start, value.get_ref()))
        };
        table.iter().map(entry).collect()
    }

    fn written(&self, at: usize, value: &DeValue<'_>) -> Written {
        let raw = match value {
            DeValue::String(text) => Raw::Text(text.to_string()),
            DeValue::Integer(n) => Raw::Integer(i64::from_str_radix(n.as_str(), n.radix()).ok()),
            // Unreachable in practice: the grammar has already read it as a number.
            DeValue::Float(n) => Raw::Float(n.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(b) => Raw::Bool(*b),
            DeValue::Datetime(_) => Raw::Date,
            DeValue::Array(list) => {
                Raw::List(list.iter().map(|item| self.written(item.span().start, item.get_ref())).collect())
            }
            DeValue::Table(table) => Raw::Table(self.table(table)),
        };
        Written { raw, origin: Origin::Line(self.at(at)) }
    }
}
