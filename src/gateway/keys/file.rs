//! Changes a key file: creates, revokes and rotates keys. The comments and the order of keys are kept.
//!
//! Concurrent changes wait for each other. A gateway reads the file either as it was before a change or as it is after
//! it.

use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

use super::scope::Scope;
use super::{ApiKey, KeyFileError, KeyHash, generate_id, generate_key};
use crate::config::{Secret, io_fault};
use crate::gateway::write;

const HEAD: &str =
    "# API keys of slotfront: hashes only. Written by `slotfront keys`, read again whenever it changes.\n";

/// A key file on disk. The file may not exist yet.
#[derive(Debug, Clone)]
pub struct KeyFile {
    path: PathBuf,
}

#[derive(Debug, Clone)]
pub struct NewKey {
    /// The name of the owner, as free text.
    pub name: String,
    pub plan: String,
    /// The time at which the key expires. `None` if it never expires.
    pub expires: Option<Timestamp>,
    /// The restrictions beyond those of the plan.
    pub scope: Scope,
}

impl NewKey {
    /// Describes a key that never expires and has no restrictions beyond those of `plan`. `name` is the owner's name.
    pub fn of(name: impl Into<String>, plan: impl Into<String>) -> Self {
        Self { name: name.into(), plan: plan.into(), expires: None, scope: Scope::default() }
    }
}

/// A new secret and the id of its key. The secret is shown once and not stored.
#[derive(Debug)]
pub struct IssuedKey {
    pub id: String,
    /// The secret, to be sent in the path of requests.
    pub key: Secret,
    /// The replaced secrets that are still valid, the newest last, each with the time at which it ceases to be valid.
    pub earlier: Vec<(KeyHash, Timestamp)>,
}

/// The reason why a key file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The file, its lock or the new file beside it cannot be read or written.
    #[error("{path}: {}", io_fault(path, cause))]
    Io { path: PathBuf, cause: std::io::Error },
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// No key has this id or name.
    #[error("{path}: no key has the id or name {wanted:?}; `slotfront keys list` shows the ids and names")]
    Unknown { path: PathBuf, wanted: String },
    /// Several keys have this name.
    #[error("{path}: {count} keys have the name {wanted:?}; use the id of one of them")]
    Ambiguous { path: PathBuf, wanted: String, count: usize },
    #[error("{path}: the key {id} is revoked; create another")]
    Revoked { path: PathBuf, id: String },
    /// The operating system's random source fails.
    #[error("the operating system's random source fails: {0}")]
    Random(#[from] getrandom::Error),
}

impl From<write::FileError> for ChangeError {
    fn from(write::FileError { path, cause }: write::FileError) -> Self {
        Self::Io { path, cause }
    }
}

impl KeyFile {
    /// Returns a handle to the key file at `path`. Does not read the file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all keys, in the order of the file. A missing file has none.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid.
    pub fn list(&self) -> Result<Vec<ApiKey>, ChangeError> {
        self.read().and_then(|text| self.parse(&text))
    }

    /// Creates a key and appends it to the file. Creates the file if it is missing.
    ///
    /// # Errors
    /// The file cannot be read or written, is invalid, or the random source fails.
    pub fn create(&self, new: &NewKey, now: Timestamp) -> Result<IssuedKey, ChangeError> {
        self.change(|document, keys| {
            let key = generate_key()?;
            let id = loop {
                let id = generate_id()?;
                if keys.iter().all(|key| key.id != id) {
                    break id;
                }
            };
            let mut table = Table::new();
            table["id"] = value(&id);
            table["name"] = value(&new.name);
            table["plan"] = value(&new.plan);
            table["sha256"] = value(KeyHash::of(key.expose()).to_string());
            table["created"] = value(written(now));
            if let Some(expires) = new.expires {
                table["expires"] = value(written(expires));
            }
            write_scope(&mut table, &new.scope);
            // The comments at the end of the file stay before the new key.
            let comments = document.trailing().as_str().unwrap_or_default().to_owned();
            document.set_trailing("");
            table.decor_mut().set_prefix(comments + "\n");
            tables(document).push(table);
            Ok(IssuedKey { id, key, earlier: Vec::new() })
        })
    }

    /// Changes the table of the key with the id or name `wanted`, and returns the key's id.
    ///
    /// # Errors
    /// No key or several keys match, the key is revoked, or the file cannot be changed.
    pub(super) fn change_table(
        &self,
        wanted: &str,
        change: impl FnOnce(&mut Table, &ApiKey),
    ) -> Result<String, ChangeError> {
        self.change(|document, keys| {
            let i = self.find(keys, wanted)?;
            self.not_revoked(&keys[i])?;
            change(table(document, i), &keys[i]);
            Ok(keys[i].id.clone())
        })
    }

    fn not_revoked(&self, key: &ApiKey) -> Result<(), ChangeError> {
        let revoked = || ChangeError::Revoked { path: self.path.clone(), id: key.id.clone() };
        key.revoked.map_or(Ok(()), |_| Err(revoked()))
    }

    /// Removes the key with the id or name `wanted` from the file, with all that is known of it, and returns its id. The
    /// file keeps an empty list if it was the last one, because a blank file would be taken for a half-written one.
    ///
    /// # Errors
    /// No key or several keys match, or the file cannot be changed.
    pub fn remove(&self, wanted: &str) -> Result<String, ChangeError> {
        self.change(|document, keys| {
            let i = self.find(keys, wanted)?;
            tables(document).remove(i);
            if keys.len() == 1 {
                document["key"] = value(Array::new());
            }
            Ok(keys[i].id.clone())
        })
    }

    /// Revokes the key with the id or name `wanted`, and returns its id. The key's replaced secrets become invalid
    /// as well. A revocation cannot be undone.
    ///
    /// # Errors
    /// No key or several keys match, or the file cannot be changed.
    pub fn revoke(&self, wanted: &str, now: Timestamp) -> Result<String, ChangeError> {
        self.change(|document, keys| {
            let i = self.find(keys, wanted)?;
            if keys[i].revoked.is_none() {
                let table = table(document, i);
                table["revoked"] = value(written(now));
                table.remove("previous");
            }
            Ok(keys[i].id.clone())
        })
    }

    /// Gives the key with the id or name `wanted` a new secret. No earlier secret stays valid beyond `old_until`,
    /// also if an earlier rotation has promised it more: whoever rotates because a secret leaked knows rarely which one.
    ///
    /// # Errors
    /// No key or several keys match, the key is revoked, or the file cannot be changed.
    pub fn rotate(
        &self,
        wanted: &str,
        old_until: Timestamp,
        now: Timestamp,
    ) -> Result<IssuedKey, ChangeError> {
        self.change(|document, keys| {
            let old = &keys[self.find(keys, wanted)?];
            self.not_revoked(old)?;
            let key = generate_key()?;
            let earlier = old.previous.iter().map(|(hash, until)| (*hash, old_until.min(*until)));
            let earlier = earlier.chain([(old.hash, old_until)]);
            let earlier: Vec<_> = earlier.filter(|(_, until)| *until > now).collect();
            let mut previous = Array::new();
            for (hash, until) in &earlier {
                let mut entry = InlineTable::new();
                entry.insert("sha256", hash.to_string().into());
                entry.insert("until", written(*until).into());
                previous.push(entry);
            }
            let table = table(document, self.find(keys, wanted)?);
            table["sha256"] = value(KeyHash::of(key.expose()).to_string());
            if previous.is_empty() {
                table.remove("previous");
            } else {
                table["previous"] = value(Value::Array(previous));
            }
            Ok(IssuedKey { id: old.id.clone(), key, earlier })
        })
    }

    /// Returns the index of the key with the id `wanted`. If no key has this id, returns the index of the only key with
    /// this name.
    pub(super) fn find(&self, keys: &[ApiKey], wanted: &str) -> Result<usize, ChangeError> {
        if let Some(i) = keys.iter().position(|key| key.id == wanted) {
            return Ok(i);
        }
        let named: Vec<usize> =
            keys.iter().enumerate().filter(|(_, k)| k.name == wanted).map(|(i, _)| i).collect();
        let (path, wanted) = (self.path.clone(), wanted.to_owned());
        match named[..] {
            [i] => Ok(i),
            [] => Err(ChangeError::Unknown { path, wanted }),
            _ => Err(ChangeError::Ambiguous { path, wanted, count: named.len() }),
        }
    }

    /// Reads the file, applies `change`, and writes the file, all under the file's lock. An invalid result is not
    /// written.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut DocumentMut, &[ApiKey]) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        // One process at a time changes the file.
        let lock = write::lock_file(&self.path)?;
        lock.lock().map_err(|cause| ChangeError::Io { path: write::lock_path(&self.path), cause })?;
        let text = self.read()?;
        let keys = self.parse(&text)?;
        let mut document: DocumentMut = text.parse().map_err(|_| self.wrong("is not TOML".to_owned()))?;
        let made = change(&mut document, &keys)?;
        let changed = document.to_string();
        self.parse(&changed)?;
        write::atomically(&self.path, |file| file.write_all(changed.as_bytes()))?;
        Ok(made)
    }

    fn read(&self) -> Result<String, ChangeError> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => Ok(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(HEAD.to_owned()),
            Err(cause) => Err(ChangeError::Io { path: self.path.clone(), cause }),
        }
    }

    /// Parses the file. Every name of a plan is accepted, because gateways with different plans may share a file.
    fn parse(&self, text: &str) -> Result<Vec<ApiKey>, ChangeError> {
        let wrong = |problems| KeyFileError { path: self.path.clone(), problems }.into();
        super::parse(text, |_| true).map_err(wrong)
    }

    fn wrong(&self, problem: String) -> ChangeError {
        KeyFileError { path: self.path.clone(), problems: vec![problem] }.into()
    }
}

/// Returns the tables of the keys. Converts `key = [{…}]` to `[[key]]` first. The file must be valid.
fn tables(document: &mut DocumentMut) -> &mut ArrayOfTables {
    let tables = document.remove("key").and_then(|item| item.into_array_of_tables().ok()).unwrap_or_default();
    document.insert("key", Item::ArrayOfTables(tables));
    document["key"].as_array_of_tables_mut().expect("inserted just above")
}

/// Returns the table of the key at the index `i` in the file.
fn table(document: &mut DocumentMut, i: usize) -> &mut Table {
    tables(document).get_mut(i).expect("the same text was read as that many keys")
}

fn write_scope(table: &mut Table, scope: &Scope) {
    let mut write = |name: &str, list: Option<Array>| {
        if let Some(list) = list {
            table[name] = value(list);
        }
    };
    write("origins", scope.origins.as_ref().map(|list| list.iter().collect()));
    write("addresses", scope.addresses.as_ref().map(|list| list.iter().map(ToString::to_string).collect()));
    write("methods", scope.methods.as_ref().map(|list| list.iter().map(|method| method.as_str()).collect()));
}

/// Formats a time for the file, in UTC and in whole seconds.
pub(super) fn written(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{AnyMethod, Method};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn new(name: &str) -> NewKey {
        NewKey::of(name, "standard")
    }

    #[test]
    fn keys_are_created_rotated_and_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        assert_eq!(file.list().unwrap(), []);
        let (t0, t1, t2) =
            (at("2026-11-21T00:00:00Z"), at("2026-11-22T00:00:00Z"), at("2026-11-23T00:00:00Z"));

        let first = file.create(&new("alice"), t0).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with(HEAD) && !text.contains(first.key.expose()));
        let text = text.replace("[[key]]", "# of Alice, who pays\n[[key]]");
        std::fs::write(file.path(), text).unwrap();

        let second = file.rotate("alice", t1, t0).unwrap();
        assert_eq!(second.id, first.id);
        let third = file.rotate(&first.id, t2, t0).unwrap();
        let [key] = &file.list().unwrap()[..] else { panic!("one key") };
        assert_eq!(key.hash, KeyHash::of(third.key.expose()));
        let overlap = [(KeyHash::of(first.key.expose()), t1), (KeyHash::of(second.key.expose()), t2)];
        assert_eq!(key.previous, overlap);
        assert_eq!(third.earlier, overlap, "whoever rotates is told what is still valid");

        assert_eq!(file.revoke("alice", t1).unwrap(), first.id);
        let [key] = &file.list().unwrap()[..] else { panic!("one key") };
        assert_eq!((key.revoked, &key.previous[..]), (Some(t1), &[][..]));
        assert!(matches!(file.rotate("alice", t2, t1), Err(ChangeError::Revoked { .. })));
        assert!(std::fs::read_to_string(file.path()).unwrap().contains("# of Alice, who pays"));
    }

    #[test]
    fn no_earlier_secret_outlives_the_newest_grace() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        let hours = |hours| at("2026-11-21T00:00:00Z") + jiff::SignedDuration::from_hours(hours);
        let first = file.create(&new("alice"), hours(0)).unwrap();
        let second = file.rotate("alice", hours(24), hours(0)).unwrap();
        // The table: the new end, the time of the rotation, and the ends of the first and the second secret.
        for (until, now, ends) in
            [(26, 2, vec![24, 26]), (3, 2, vec![3, 3]), (2, 2, vec![]), (1, 2, vec![]), (50, 24, vec![50])]
        {
            let text = std::fs::read_to_string(file.path()).unwrap();
            let made = file.rotate("alice", hours(until), hours(now)).unwrap();
            let hashes = [&first.key, &second.key].map(|key| KeyHash::of(key.expose()));
            let expected: Vec<_> =
                hashes[2 - ends.len()..].iter().copied().zip(ends.into_iter().map(hours)).collect();
            assert_eq!(file.list().unwrap()[0].previous, expected, "until {until} at {now}");
            assert_eq!(made.earlier, expected);
            std::fs::write(file.path(), text).unwrap();
        }
    }

    #[test]
    fn restrictions_outlast_rotation_and_revocation() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        let now = at("2026-11-21T00:00:00Z");
        let scope = Scope {
            origins: Some(vec!["https://a.example".to_owned()]),
            addresses: Some(vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::1/128".parse().unwrap()]),
            methods: Some([Method::GetBlock, Method::GetAccountInfo].map(AnyMethod::Own).into()),
        };
        let made = file.create(&NewKey { scope: scope.clone(), ..new("narrow") }, now).unwrap();
        file.create(&new("wide"), now).unwrap();
        let scopes = || file.list().unwrap().into_iter().map(|key| key.scope).collect::<Vec<_>>();
        let text = || std::fs::read_to_string(file.path()).unwrap();
        let other = text().split("[[key]]").nth(2).unwrap().to_owned();
        let expected = [scope, Scope::default()];
        assert_eq!(scopes(), expected);
        file.rotate(&made.id, at("2026-11-22T00:00:00Z"), now).unwrap();
        assert_eq!(scopes(), expected, "rotated");
        file.revoke(&made.id, now).unwrap();
        assert_eq!(scopes(), expected, "revoked");
        assert!(text().ends_with(&other), "the other key is as it was, letter by letter");
    }

    #[test]
    fn ambiguous_names_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        let now = at("2026-11-21T00:00:00Z");
        let made = file.create(&new("twin"), now).unwrap();
        file.create(&new("twin"), now).unwrap();
        assert!(matches!(file.revoke("nobody", now), Err(ChangeError::Unknown { .. })));
        assert!(matches!(file.revoke("twin", now), Err(ChangeError::Ambiguous { count: 2, .. })));
        assert_eq!(file.revoke(&made.id, now).unwrap(), made.id);
    }

    #[test]
    fn invalid_files_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        std::fs::write(file.path(), "key = []\n").unwrap();
        file.create(&new("b"), at("2026-11-21T00:00:00Z")).unwrap();
        assert_eq!(file.list().unwrap().len(), 1);
        let unknown_member = std::fs::read_to_string(file.path()).unwrap() + "tier = \"gold\"\n";
        for invalid in ["[[key]]\nid = \"a\"\n", &unknown_member] {
            std::fs::write(file.path(), invalid).unwrap();
            assert!(matches!(file.create(&new("b"), at("2026-11-21T00:00:00Z")), Err(ChangeError::File(_))));
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), invalid);
        }
    }

    #[test]
    fn concurrent_changes_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        std::thread::scope(|scope| {
            for i in 0..8 {
                let file = &file;
                scope.spawn(move || file.create(&new(&i.to_string()), at("2026-11-21T00:00:00Z")).unwrap());
            }
        });
        let mut names: Vec<_> = file.list().unwrap().into_iter().map(|key| key.name).collect();
        names.sort();
        assert_eq!(names.join(""), "01234567");
    }

    #[test]
    fn new_files_are_private_and_symlinks_are_kept() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("keys.toml"));
        KeyFile::new(&target).create(&new("a"), at("2026-11-21T00:00:00Z")).unwrap();
        assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&target, &link).unwrap();
        KeyFile::new(&link).create(&new("b"), at("2026-11-21T00:00:00Z")).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(KeyFile::new(&target).list().unwrap().len(), 2);
    }
}
