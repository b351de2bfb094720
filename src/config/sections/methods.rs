//! `[methods.NAME]`: methods that slotfront does not know, and forwards as reads because the operator's nodes have them.

use std::collections::BTreeMap;

use crate::config::reload::{Changes, Reloaded, joined};
use crate::config::setting::{Field, section};
use crate::methods::{AnyMethod, Group, ListedMethod, SubscriptionMethod, write_method};

/// The method by which the example file and the schema show the settings of any.
pub const EXAMPLE_METHOD: &str = "getAsset";
/// The maximum length of a method's name. Names become metric labels.
const MAX_NAME: usize = 64;

section! {
    /// A read method that slotfront does not know itself: it is forwarded to a node as it came, and nothing of it is cached.
    /// `[units]` sets its price by name.
    pub struct ListedSettings {
        /// The names of the upstreams that get its calls. Default: all.
        upstreams: Vec<String> = live.list(&[]),
        /// The group by which plans open it, whose time, shares and health at a node its calls have: "provider", "core",
        /// "history", "owners" or "scans".
        // A name keeps its group for the life of the process, because tables of methods are built by it.
        group: Group = restart.get("provider"),
    }
}

impl ListedSettings {
    /// Returns the settings of a method of `group` that any upstream may get.
    pub fn of(group: Group) -> Self {
        Self { group, upstreams: Vec::new() }
    }
}

/// A method that is listed or no longer listed is so at once.
impl Reloaded for BTreeMap<AnyMethod, ListedSettings> {
    fn changes(&self, new: &Self, path: &str, changes: &mut Changes) {
        for (method, listed) in new {
            let path = joined((path, method.as_str()));
            let before = self.get(method);
            // The name may have been listed before, with another group.
            let known = ListedSettings { group: method.group().unwrap_or(listed.group), ..listed.clone() };
            before.unwrap_or(&known).changes(listed, &path, changes);
            changes.at_once.extend(before.is_none().then_some(path));
        }
        let gone = self.keys().filter(|method| !new.contains_key(method));
        changes.at_once.extend(gone.map(|method| joined((path, method.as_str()))));
    }

    fn take_over(&mut self, new: &Self) {
        self.retain(|method, _| new.contains_key(method));
        for (method, listed) in new {
            self.entry(*method).or_insert_with(|| listed.clone()).take_over(listed);
        }
    }
}

/// Reads the methods that the file lists. Variables cannot name one, because they know no capitals.
pub(super) fn methods(f: &Field<'_, '_>) -> BTreeMap<AnyMethod, ListedSettings> {
    let r = f.table();
    let mut methods = BTreeMap::new();
    for name in r.keys() {
        let settings: ListedSettings = r.section(name);
        let listed = match fault(name) {
            None => ListedMethod::new(name, settings.group).ok_or((
                "is one name too many for this process",
                format!(
                    "list at most {}; a restart forgets the names of earlier configurations",
                    ListedMethod::MAX
                ),
            )),
            Some((rule, fix)) => Err((rule, fix.to_owned())),
        };
        match listed {
            Ok(method) => _ = methods.insert(AnyMethod::Listed(method), settings),
            Err((rule, fix)) => r.problem(name, None, rule, fix),
        }
    }
    methods
}

/// Returns why no operator can list a method of this name, and what to do instead.
fn fault(name: &str) -> Option<(&'static str, &'static str)> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_plain) {
        return Some((
            "expected letters, digits and '_', at most 64 of them",
            "write the name as callers do",
        ));
    }
    let is_own = AnyMethod::built_in().any(|method| method.as_str() == name);
    if is_own || SubscriptionMethod::from_unsubscribe(name).is_some() {
        return Some((
            "is a method that slotfront answers itself",
            "remove it, and open it by the methods of a plan",
        ));
    }
    write_method(name).map(|_| ("writes, and only reads are forwarded", "remove it"))
}
