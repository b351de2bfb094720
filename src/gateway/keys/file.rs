//! Changes to a key file: create, revoke, rotate. Comments and order of what is not changed stay.
//!
//! Two commands at once wait for each other; a gateway that reads meanwhile sees the file before or after.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value, value};

use super::scope::Scope;
use super::{Key, KeyFileError, KeyHash, fresh_id, fresh_key};
use crate::config::Secret;
use crate::gateway::write;

/// What a new file begins with.
const HEAD: &str =
    "# API keys of slotfront: only hashes. Written by `slotfront keys`, read again whenever it changes.\n";

/// A key file on disk, which need not exist yet.
#[derive(Debug, Clone)]
pub struct KeyFile {
    path: PathBuf,
}

/// What is wanted of a new key.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// Whose it is, in words for people.
    pub name: String,
    /// Its plan.
    pub plan: String,
    /// When it ends.
    pub expires: Option<Timestamp>,
    /// What narrows it.
    pub scope: Scope,
}

impl NewKey {
    /// A key that never ends, and holds everywhere for all of its plan.
    pub fn of(name: impl Into<String>, plan: impl Into<String>) -> Self {
        Self { name: name.into(), plan: plan.into(), expires: None, scope: Scope::default() }
    }
}

/// A key that was made: the only time that it is known.
#[derive(Debug)]
pub struct Made {
    /// Its id.
    pub id: String,
    /// The key itself.
    pub key: Secret,
}

/// Why a key file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It cannot be read or written.
    #[error("{path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// It is no key file as it stands.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// No key has this id or name.
    #[error("{path}: no key has the id or name {wanted:?}; `slotfront keys list` shows them")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        wanted: String,
    },
    /// More than one key has this name.
    #[error("{path}: {count} keys have the name {wanted:?}; use an id")]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        wanted: String,
        /// How many.
        count: usize,
    },
    /// The key was taken back already.
    #[error("{path}: the key {id} is revoked; create another")]
    Revoked {
        /// The file.
        path: PathBuf,
        /// The key's id.
        id: String,
    },
    /// The system has no randomness to give.
    #[error("no randomness: {0}")]
    Random(#[from] getrandom::Error),
}

impl KeyFile {
    /// The key file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys, in the order of the file; none where there is no file.
    ///
    /// # Errors
    /// It cannot be read, or is no key file.
    pub fn list(&self) -> Result<Vec<Key>, ChangeError> {
        self.read().and_then(|text| self.parse(&text))
    }

    /// Makes a key.
    ///
    /// # Errors
    /// The file cannot be read or written, or is no key file.
    pub fn create(&self, new: &NewKey, now: Timestamp) -> Result<Made, ChangeError> {
        self.change(|document, keys| {
            let key = fresh_key()?;
            let id = loop {
                let id = fresh_id()?;
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
            // Comments at the end of the file stay before what is added.
            let comments = document.trailing().as_str().unwrap_or_default().to_owned();
            document.set_trailing("");
            table.decor_mut().set_prefix(comments + "\n");
            tables(document).push(table);
            Ok(Made { id, key })
        })
    }

    /// Takes back the key with this id or name, at once and for good, also what it replaced. Says its id.
    ///
    /// # Errors
    /// There is none, or more than one, or the file cannot be changed.
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

    /// Gives the key with this id or name another secret; the old one holds until `old_until`.
    ///
    /// # Errors
    /// There is none, or more than one, or it is revoked, or the file cannot be changed.
    pub fn rotate(&self, wanted: &str, old_until: Timestamp, now: Timestamp) -> Result<Made, ChangeError> {
        self.change(|document, keys| {
            let old = &keys[self.find(keys, wanted)?];
            if old.revoked.is_some() {
                return Err(ChangeError::Revoked { path: self.path.clone(), id: old.id.clone() });
            }
            let key = fresh_key()?;
            let mut previous = Array::new();
            let still = old.previous.iter().filter(|(_, until)| *until > now).copied();
            for (hash, until) in still.chain((old_until > now).then_some((old.hash, old_until))) {
                let mut entry = InlineTable::new();
                entry.insert("sha256", hash.to_string().into());
                entry.insert("until", written(until).into());
                previous.push(entry);
            }
            let table = table(document, self.find(keys, wanted)?);
            table["sha256"] = value(KeyHash::of(key.expose()).to_string());
            if previous.is_empty() {
                table.remove("previous");
            } else {
                table["previous"] = value(Value::Array(previous));
            }
            Ok(Made { id: old.id.clone(), key })
        })
    }

    /// The position of the key with this id, or else name.
    fn find(&self, keys: &[Key], wanted: &str) -> Result<usize, ChangeError> {
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

    /// Reads, changes and writes under the lock; what would be no key file is never written.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut DocumentMut, &[Key]) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        let io = |cause| ChangeError::Io { path: self.path.clone(), cause };
        let _lock = write::lock(&self.path).map_err(io)?;
        let text = self.read()?;
        let keys = self.parse(&text)?;
        let mut document: DocumentMut = text.parse().map_err(|_| self.wrong("is no TOML".to_owned()))?;
        let made = change(&mut document, &keys)?;
        let changed = document.to_string();
        self.parse(&changed)?;
        write::atomically(&self.path, &changed).map_err(io)?;
        Ok(made)
    }

    fn read(&self) -> Result<String, ChangeError> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => Ok(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(HEAD.to_owned()),
            Err(cause) => Err(ChangeError::Io { path: self.path.clone(), cause }),
        }
    }

    /// Plans are the gateway's business: a file may serve several.
    fn parse(&self, text: &str) -> Result<Vec<Key>, ChangeError> {
        let wrong = |problems| KeyFileError { path: self.path.clone(), problems }.into();
        super::parse(text, |_| true).map_err(wrong)
    }

    fn wrong(&self, problem: String) -> ChangeError {
        KeyFileError { path: self.path.clone(), problems: vec![problem] }.into()
    }
}

/// The tables of the keys, whether written as `[[key]]` or as `key = [{…}]`. The file has been read as one of them.
fn tables(document: &mut DocumentMut) -> &mut ArrayOfTables {
    let tables = document.remove("key").and_then(|item| item.into_array_of_tables().ok()).unwrap_or_default();
    document.insert("key", Item::ArrayOfTables(tables));
    document["key"].as_array_of_tables_mut().expect("inserted just above")
}

/// The table of the key at position `i`.
fn table(document: &mut DocumentMut, i: usize) -> &mut Table {
    tables(document).get_mut(i).expect("the same text was read as that many keys")
}

/// Writes what narrows a key; what does not is left out.
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

/// A time as it stands in the file: whole seconds, UTC.
fn written(time: Timestamp) -> String {
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
    fn a_key_is_made_rotated_and_taken_back() {
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

        file.rotate("alice", t1, t1).unwrap();
        let previous = file.list().unwrap()[0].previous.clone();
        assert_eq!(
            previous,
            [(KeyHash::of(second.key.expose()), t2)],
            "what ended is dropped, no grace is none"
        );

        assert_eq!(file.revoke("alice", t1).unwrap(), first.id);
        let [key] = &file.list().unwrap()[..] else { panic!("one key") };
        assert_eq!((key.revoked, &key.previous[..]), (Some(t1), &[][..]));
        assert!(matches!(file.rotate("alice", t2, t1), Err(ChangeError::Revoked { .. })));
        assert!(std::fs::read_to_string(file.path()).unwrap().contains("# of Alice, who pays"));
    }

    #[test]
    fn what_narrows_a_key_stays_with_it() {
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
        let expected = [scope, Scope::default()];
        assert_eq!(scopes(), expected);
        file.rotate(&made.id, at("2026-11-22T00:00:00Z"), now).unwrap();
        assert_eq!(scopes(), expected, "rotated");
        file.revoke(&made.id, now).unwrap();
        assert_eq!(scopes(), expected, "revoked");
    }

    #[test]
    fn a_name_must_mean_one_key() {
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
    fn a_file_that_is_none_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        std::fs::write(file.path(), "[[key]]\nid = \"a\"\n").unwrap();
        assert!(matches!(file.create(&new("b"), at("2026-11-21T00:00:00Z")), Err(ChangeError::File(_))));
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "[[key]]\nid = \"a\"\n");
        std::fs::write(file.path(), "key = []\n").unwrap();
        file.create(&new("b"), at("2026-11-21T00:00:00Z")).unwrap();
        assert_eq!(file.list().unwrap().len(), 1);
    }

    #[test]
    fn many_commands_at_once_lose_nothing() {
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

    #[cfg(unix)]
    #[test]
    fn a_new_file_is_its_owners_alone_and_a_symlink_stays_one() {
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
