//! The usage file: what each key has used, by day and method. A line says what was used since the line before, so lines are
//! only appended, and the calls and units of a key are the sums over its lines. Only the units that count for quotas are
//! told as they are, by the last line of a key.
//!
//! A line that a crash has cut is the last one, and has no end. A file that has grown is written anew, with one line for a
//! key and a day, and without the oldest days. Which days these are does not depend on a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::thousandths::Thousandths;
use super::write::{self, FileError};
use crate::config::io_fault;

/// The number of days, the newest ones of the file, that stay: 13 months with calls on each day.
const KEPT_DAYS: usize = 400;
/// The growth after which the file is written anew, unless half of it is new.
const MIN_GROWTH: u64 = 1 << 20;
/// The maximum length of a line in bytes. A key that calls each method there is needs less.
const MAX_LINE: u64 = 1 << 20;

/// What a key has used on a day since its line before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageLine {
    pub(crate) day: Date,
    pub(crate) key: String,
    pub(crate) name: String,
    /// The units that count for the key's quotas of this day and its month, over all replicas.
    pub(crate) used: [Thousandths; 2],
    pub(crate) calls: BTreeMap<String, (u64, Thousandths)>,
}

impl UsageLine {
    pub(crate) fn new(day: Date, key: &str, name: &str, used: [Thousandths; 2]) -> Self {
        Self { day, key: key.to_owned(), name: name.to_owned(), used, calls: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, method: String, calls: u64, units: Thousandths) {
        let (number, sum) = self.calls.entry(method).or_default();
        *number = number.saturating_add(calls);
        sum.add(units);
    }

    fn join(&mut self, later: Self) {
        let calls = std::mem::take(&mut self.calls);
        *self = Self { calls, ..later.clone() };
        for (method, (calls, units)) in later.calls {
            self.add(method, calls, units);
        }
    }

    /// Appends the line to `out`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        // Writing to memory does not fail. A part of a line would make the file faulty.
        match serde_json::to_writer(&mut *out, self) {
            Ok(()) => out.push(b'\n'),
            Err(_) => out.truncate(start),
        }
    }
}

/// The whole lines of a usage file. A missing file has none.
pub(crate) struct UsageLines {
    path: PathBuf,
    file: Option<BufReader<File>>,
    number: usize,
    /// The length of the lines so far, in bytes.
    pub(crate) len: u64,
    /// The number of the last line, if a crash has cut it. It does not count.
    pub(crate) cut: Option<usize>,
}

impl UsageLines {
    /// # Errors
    /// The file cannot be read, or is no plain file, so that reading might not end. The error is text for people.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let fault = |cause| format!("cannot be read: {}", io_fault(path, &cause));
        let file = match std::fs::metadata(path) {
            Ok(known) if !known.is_file() => return Err("is no plain file".to_owned()),
            Ok(_) => Some(File::open(path).map_err(fault)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(fault(error)),
        };
        Ok(Self { path: path.to_owned(), file: file.map(BufReader::new), number: 0, len: 0, cut: None })
    }
}

impl Iterator for UsageLines {
    type Item = Result<UsageLine, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut text, file) = (Vec::new(), self.file.as_mut()?);
        if let Err(cause) = file.take(MAX_LINE).read_until(b'\n', &mut text) {
            return Some(Err(format!("cannot be read: {}", io_fault(&self.path, &cause))));
        }
        self.number += 1;
        if text.last() != Some(&b'\n') && (text.len() as u64) < MAX_LINE {
            self.cut = (!text.is_empty()).then_some(self.number);
            return None;
        }
        self.len += text.len() as u64;
        let line = serde_json::from_slice(&text);
        Some(line.map_err(|cause| {
            format!("line {}: {cause}; repair it, or remove the file to count from zero", self.number)
        }))
    }
}

#[derive(Debug)]
pub(crate) struct UsageFile {
    pub(crate) path: PathBuf,
    pub(crate) unwritten: Vec<u8>,
    /// The length of what was read and written so far. What a failed write has left lies beyond it.
    len: u64,
    rewrite_at: u64,
}

impl UsageFile {
    /// `len` is the length of the whole lines of the file.
    pub(crate) fn new(path: &Path, len: u64) -> Self {
        Self { path: path.to_owned(), unwritten: Vec::new(), len, rewrite_at: MIN_GROWTH }
    }

    /// Appends the lines that the file does not have yet, and writes the file anew if it has grown.
    ///
    /// # Errors
    /// The file cannot be written. The lines stay, to be written by the next call.
    pub(crate) fn save(&mut self) -> Result<(), FileError> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        self.append().map_err(|cause| FileError { path: self.path.clone(), cause })?;
        if self.len >= self.rewrite_at {
            // A failure is not repeated at once, because it costs reading the whole file.
            let rewritten = rewrite(&self.path);
            self.len = *rewritten.as_ref().unwrap_or(&self.len);
            self.rewrite_at = self.len.saturating_mul(2).max(self.len + MIN_GROWTH);
            rewritten?;
        }
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let mut file = match OpenOptions::new().append(true).open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => write::create_beside(&self.path, 0o040)?,
            opened => opened?,
        };
        let there = file.metadata()?.len();
        if there > self.len {
            file.set_len(self.len)?;
        }
        self.len = self.len.min(there);
        file.write_all(&self.unwritten)?;
        file.sync_data()?;
        self.len += self.unwritten.len() as u64;
        self.unwritten.clear();
        Ok(())
    }
}

/// Writes the file anew, with the newest days and one line for a key and a day that follows itself. Returns its length.
fn rewrite(path: &Path) -> Result<u64, FileError> {
    let fault = |text: String| io::Error::new(ErrorKind::InvalidData, text);
    let lines = || UsageLines::open(path).map_err(fault);
    let mut len = 0;
    write::atomically(path, |file| {
        let mut days = BTreeSet::new();
        for line in lines()? {
            days.insert(line.map_err(fault)?.day);
            if days.len() > KEPT_DAYS {
                days.pop_first();
            }
        }
        let (mut out, mut text) = (BufWriter::new(file), Vec::new());
        let mut keys = BTreeMap::<String, UsageLine>::new();
        let mut put = |keys: &mut BTreeMap<String, UsageLine>| {
            text.clear();
            for line in std::mem::take(keys).into_values() {
                line.write(&mut text);
            }
            len += text.len() as u64;
            out.write_all(&text)
        };
        let mut of = None;
        for line in lines()? {
            let line = line.map_err(fault)?;
            if of.replace(line.day) != Some(line.day) {
                put(&mut keys)?;
            }
            if !days.contains(&line.day) {
                continue;
            }
            match keys.get_mut(&line.key) {
                Some(known) => known.join(line),
                None => _ = keys.insert(line.key.clone(), line),
            }
        }
        put(&mut keys)?;
        out.flush()
    })?;
    Ok(len)
}

#[cfg(test)]
mod tests;
