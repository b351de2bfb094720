//! The settings that slotfront no longer has.
//!
//! Somebody may have copied the example file of an earlier version. A removed setting that only says what slotfront does
//! anyway is a warning, and any other value is a problem, because the gateway would not do what its file asks for.

use super::problem::Problem;
use super::raw::Raw;
use super::reader::TableReader;
use crate::methods::AnyMethod;

struct Removed {
    table: &'static str,
    key: &'static str,
    /// The value that says what slotfront does now, as it is written in the file.
    as_now: &'static str,
    /// What slotfront does now, as advice.
    fix: &'static str,
}

const REMOVED: [Removed; 3] = [
    Removed {
        table: "pool",
        key: "hedge",
        as_now: "off",
        fix: "remove it: pool.breaker.slow takes a node with slow answers out of use",
    },
    Removed {
        table: "pool",
        key: "merge",
        as_now: "false",
        fix: "remove it: each miss is a call of its own, and simultaneous callers with one question share one",
    },
    Removed {
        table: "server",
        key: "client_ip_header",
        as_now: "x-forwarded-for",
        fix: "remove it, and let the proxies write X-Forwarded-For: Forwarded (RFC 7239) is not read",
    },
];

/// Reads every removed setting, so that none is reported as unknown. Returns a warning for each one that is set to
/// what slotfront does anyway, and records a problem for any other value. Also warns of methods that need no listing.
pub(super) fn read(root: &TableReader<'_>) -> Vec<Problem> {
    REMOVED.iter().filter_map(|removed| removed.read(root)).chain(built_in(root)).collect()
}

/// Returns the warning about methods in `passthrough.methods` that slotfront answers itself.
fn built_in(root: &TableReader<'_>) -> Option<Problem> {
    let table = root.table("passthrough");
    let written = table.written("methods")?;
    let listed: Vec<&str> = match &written.raw {
        Raw::List(items) => items.iter().filter_map(|item| item.raw.text()).collect(),
        other => other.text().map(|text| text.split(',').collect()).unwrap_or_default(),
    };
    let is_built_in =
        |name: &&str| matches!(AnyMethod::from_name(name), Some(AnyMethod::Tip(_) | AnyMethod::Own(_)));
    let names = listed.into_iter().map(str::trim).filter(is_built_in).collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| Problem {
        path: table.path("methods"),
        value: None,
        origin: written.origin,
        rule: format!("lists methods that are built in, and not forwarded any more: {names}"),
        fix: "remove them from the list, and open them by plans.*.methods, where \"tip\" is open anyway"
            .to_owned(),
    })
}

impl Removed {
    fn read(&self, root: &TableReader<'_>) -> Option<Problem> {
        let table = root.table(self.table);
        let written = table.written(self.key)?;
        let shown = written.raw.show();
        // A variable of the environment has no type, so its text is compared without the quotes.
        let text = written.raw.text().unwrap_or(&shown);
        if text != self.as_now.trim_matches('"') {
            table.problem(self.key, Some(shown), "is no longer a setting", self.fix);
            return None;
        }
        Some(Problem {
            path: table.path(self.key),
            value: Some(shown),
            origin: written.origin,
            rule: "is no longer a setting, and says what slotfront does anyway".to_owned(),
            fix: "remove it".to_owned(),
        })
    }
}
