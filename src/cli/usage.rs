//! `slotfront usage`: prints what each key has used.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use jiff::civil::Date;
use serde::Serialize;

use super::table::TextTable;
use super::{Failure, World};
use crate::gateway::keys::is_hidden;
use crate::gateway::thousandths::Thousandths;
use crate::gateway::usage_file::UsageLines;

/// Print what each key has used, by day and method
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Print what each key has used: a table by month, or each day and method as CSV or JSON.\n\
                  The files are those of auth.usage_file; name those of all replicas to get their sum. A file may be in use.",
    after_help = "Examples:\n    slotfront usage usage.json\n    \
                  slotfront usage --month 2026-11 --csv replica-1/usage.json replica-2/usage.json > november.csv"
)]
pub(super) struct Args {
    /// The month, such as 2026-11 [default: all]
    #[arg(long, value_name = "MONTH", value_parser = month)]
    month: Option<Date>,
    /// Print CSV: a line for each day, key and method
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON: an object for each day, key and method
    #[arg(long)]
    json: bool,
    /// The usage files, one of each replica
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// What a key has used of a method on a day.
#[derive(Serialize)]
struct Row<'a> {
    day: Date,
    key: &'a str,
    name: &'a str,
    method: &'a str,
    calls: u64,
    units: Thousandths,
}

/// The calls and units of all files.
#[derive(Default)]
struct Sums {
    by_day: BTreeMap<(Date, String, String), (u64, Thousandths)>,
    /// The newest name of each key, and the day on which it was seen.
    names: BTreeMap<String, (Date, String)>,
}

/// Returns the first day of the month.
fn month(text: &str) -> Result<Date, String> {
    let day = (text.len() == 7).then(|| format!("{text}-01").parse().ok()).flatten();
    day.ok_or_else(|| "expected a month such as 2026-11".to_owned())
}

pub(super) fn run(args: &Args, world: &mut World<'_>) -> Result<(), Failure> {
    let mut sums = Sums::default();
    for path in &args.files {
        let fault = |problem: String| Failure::Runtime(format!("{}: {problem}", path.display()));
        if !path.exists() {
            return Err(fault("does not exist".to_owned()));
        }
        let mut lines = UsageLines::open(path).map_err(fault)?;
        for line in &mut lines {
            let line = line.map_err(fault)?;
            if args.month.is_some_and(|month| line.day.first_of_month() != month) {
                continue;
            }
            let named = sums.names.entry(line.key.clone()).or_default();
            if named.0 <= line.day {
                *named = (line.day, line.name);
            }
            for (method, (calls, units)) in line.calls {
                let (number, sum) = sums.by_day.entry((line.day, line.key.clone(), method)).or_default();
                *number = number.saturating_add(calls);
                sum.add(units);
            }
        }
        if let Some(line) = lines.cut {
            let path = path.display();
            writeln!(
                world.err,
                "{path}: line {line} is the last one and was not written to its end; it does not count"
            )?;
        }
    }
    if args.json {
        let rows: Vec<_> = sums.rows().collect();
        serde_json::to_writer(&mut *world.out, &rows).map_err(std::io::Error::from)?;
        writeln!(world.out)?;
    } else if args.csv {
        writeln!(world.out, "day,key,name,method,calls,units")?;
        for Row { day, key, name, method, calls, units } in sums.rows() {
            let [key, name, method] = [key, name, method].map(csv_field);
            writeln!(world.out, "{day},{key},{name},{method},{calls},{units}")?;
        }
    } else {
        writeln!(world.out, "{}", sums.by_month())?;
    }
    Ok(())
}

impl Sums {
    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.by_day.iter().map(|((day, key, method), (calls, units))| {
            let name = self.names.get(key).map_or("", |(_, name)| name);
            Row { day: *day, key, name, method, calls: *calls, units: *units }
        })
    }

    fn by_month(&self) -> TextTable {
        let mut months = BTreeMap::<(Date, &str, &str), (u64, Thousandths)>::new();
        for Row { day, key, name, calls, units, .. } in self.rows() {
            let (number, sum) = months.entry((day.first_of_month(), key, name)).or_default();
            *number = number.saturating_add(calls);
            sum.add(units);
        }
        let mut table = TextTable::new(["MONTH", "KEY", "NAME", "CALLS", "UNITS"]);
        for ((month, key, name), (calls, units)) in months {
            let month = month.strftime("%Y-%m").to_string();
            table.row(vec![month, shown(key), shown(name), calls.to_string(), units.to_string()]);
        }
        table
    }
}

/// Returns a text without the characters that a terminal or a reader of lines takes for something else.
fn shown(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}

/// Returns a field of a CSV file. A program for tables takes a text that begins like a formula for one, so that a name would
/// be run; it is marked as text.
fn csv_field(text: &str) -> String {
    let mut field = shown(text);
    if field.trim_start().starts_with(['=', '+', '-', '@']) {
        field.insert(0, '\'');
    }
    if field.contains([',', '"', '\'', ' ']) {
        let quoted = field.replace('"', "\"\"");
        field.clear();
        let _ = write!(field, "\"{quoted}\"");
    }
    field
}
