//! The key file: TOML with one `[[key]]` table for each key. It contains hashes of keys, never the keys.
//!
//! A file with one faulty key is refused as a whole, with a list of all its faults. The previous keys then stay in
//! force, so that a typing error locks nobody out. Only the keys that the refused file revokes cease to be valid.
//! The modules [`mod@file`] and [`mod@change`] change key files.

pub mod change;
pub mod file;
pub mod scope;
pub(super) mod validity;
pub mod view;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use jiff::Timestamp;
use serde::Deserialize;

use crate::config::{self, Secret, sha256};
use scope::Scope;

/// The prefix of every generated key, by which secret scanners can find leaked keys.
const PREFIX: &str = "sf_";
const KEY_BYTES: usize = 32;
/// The number of random bytes in a key's id. If an id is taken, [`file::KeyFile::create`] generates another.
const ID_BYTES: usize = 6;

/// The maximum length of a key's name, in characters, so that a name fits into one row of a table.
pub const MAX_NAME: usize = 64;

/// The rule that [`is_name`] checks, for errors.
pub const NAME_RULE: &str = "expected 1 to 64 characters without control characters, and without characters that hide or reorder text";

/// Returns true if `name` has 1 to [`MAX_NAME`] characters, all of which show.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.chars().count()) && !name.chars().any(is_hidden)
}

/// Returns true for a character that does not show, or changes how the text around it shows: two names could look like
/// one, or a terminal could show another. These are the control characters, line separators, and the characters that
/// Unicode calls ignorable by default, except variation selectors, which belong to emoji.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// The SHA-256 of a key, which is stored instead of the key. A key of 32 random bytes needs no slow hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes `key`, which is the key as it stands in the path of a request.
    pub fn of(key: &str) -> Self {
        Self(sha256(key.as_bytes()))
    }

    /// Parses 64 hexadecimal digits. `None` if `text` is anything else.
    fn parse(text: &str) -> Option<Self> {
        let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
        rest.is_empty().then_some(Self(bytes?.try_into().ok()?))
    }
}

impl std::fmt::Display for KeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Generates a key: the prefix and 32 random bytes in base58.
///
/// # Errors
/// The operating system's random source fails.
pub fn generate_key() -> Result<Secret, getrandom::Error> {
    random::<KEY_BYTES>().map(|text| Secret::new(PREFIX.to_owned() + &text))
}

fn generate_id() -> Result<String, getrandom::Error> {
    random::<ID_BYTES>().map(|text| format!("key-{text}"))
}

fn random<const N: usize>() -> Result<String, getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bs58::encode(bytes).into_string())
}

/// An API key as the key file lists it: with the hash of its secret, but without the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The unique id, for logs and metrics. It is not secret.
    pub id: String,
    /// The name of the owner, as free text.
    pub name: String,
    pub plan: String,
    pub hash: KeyHash,
    /// The hashes of replaced secrets, each with the time at which this secret ceases to be valid.
    pub previous: Vec<(KeyHash, Timestamp)>,
    pub created: Timestamp,
    /// The time at which the key expires. `None` if it never expires.
    pub expires: Option<Timestamp>,
    /// The time since which the key is suspended. `None` if it is not.
    pub suspended: Option<Timestamp>,
    /// The time of revocation. `None` if the key is not revoked.
    pub revoked: Option<Timestamp>,
    /// The restrictions beyond those of the plan.
    pub scope: Scope,
}

impl ApiKey {
    /// Returns what may be done with the key at `now`, in one word.
    pub fn state(&self, now: Timestamp) -> &'static str {
        match (self.revoked, self.expires, self.suspended) {
            (Some(_), ..) => "revoked",
            (None, Some(end), _) if end <= now => "expired",
            (None, _, Some(_)) => "suspended",
            (None, ..) => "active",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {}", .problems.join("; "))]
pub struct KeyFileError {
    pub path: PathBuf,
    /// The faults, as text. Each text names the key, and also gives the fix unless the fix is obvious.
    pub problems: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    key: Vec<RawKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKey {
    id: String,
    #[serde(default)]
    name: String,
    plan: String,
    sha256: String,
    #[serde(default)]
    previous: Vec<RawPrevious>,
    created: String,
    expires: Option<String>,
    suspended: Option<String>,
    revoked: Option<String>,
    origins: Option<Vec<String>>,
    addresses: Option<Vec<String>>,
    methods: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPrevious {
    sha256: String,
    until: String,
}

/// Parses a key file. `is_plan` returns true for the name of a configured plan.
///
/// # Errors
/// The file has faults; the list has all of them. The texts quote only ids of keys and names of plans, except for
/// messages of the TOML parser.
pub(crate) fn parse(text: &str, is_plan: impl Fn(&str) -> bool) -> Result<Vec<ApiKey>, Vec<String>> {
    let raw: RawFile = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(0, |span| text[..span.start].matches('\n').count()) + 1;
        vec![format!("line {line}: {}", e.message())]
    })?;
    let mut problems = Vec::new();
    let mut ids = HashSet::with_capacity(raw.key.len());
    let mut hashes = HashSet::with_capacity(raw.key.len());
    let mut keys = Vec::with_capacity(raw.key.len());
    for (i, raw) in raw.key.into_iter().enumerate() {
        let mut reader = KeyReader { id: raw.id.clone(), problems: &mut problems };
        if !config::is_name(&raw.id) {
            reader.id = format!("number {}", i + 1);
            reader.wrong("id: expected 1 to 64 letters, digits, '-', '_' or '.'");
        }
        if !ids.insert(raw.id.clone()) {
            reader.wrong("id: another key has the same id; ids must be unique");
        }
        // A revoked key needs no plan, so a key with a mistyped plan can be revoked.
        if raw.revoked.is_none() && !is_plan(&raw.plan) {
            reader.wrong(&format!(
                "plan: no plan is named {:?}; add it to the configuration, or use another",
                raw.plan
            ));
        }
        if let Some(key) = reader.key(raw) {
            for hash in std::iter::once(key.hash).chain(key.previous.iter().map(|(hash, _)| *hash)) {
                if !hashes.insert(hash) {
                    reader.wrong("sha256: another key has the same hash; hashes must be unique");
                }
            }
            keys.push(key);
        }
    }
    if problems.is_empty() { Ok(keys) } else { Err(problems) }
}

/// The keys that a faulty key file revokes, by id and by the hashes of their secrets.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    ids: HashSet<String>,
    hashes: HashSet<KeyHash>,
}

impl Revocations {
    /// Reads the revocations in `text`, a key file that may have any faults. If the text is not TOML, the tables of keys
    /// that are TOML by themselves count. A key without a valid time of revocation does not count as revoked.
    pub(crate) fn read(text: &str) -> Self {
        let read = toml::from_str::<toml::Table>;
        let list: Vec<toml::Value> = if let Ok(mut file) = read(text) {
            file.remove("key").and_then(|keys| keys.try_into().ok()).unwrap_or_default()
        } else {
            let tables = text.strip_prefix("[[key]]").unwrap_or(text).split("\n[[key]]");
            tables.filter_map(|table| read(table).ok()).map(toml::Value::Table).collect()
        };
        let keys = || list.iter();
        let text = |key: &toml::Value, name: &str| Some(key.get(name)?.as_str()?.to_owned());
        let mut revocations = Self::default();
        // An id that several keys have does not count, because a copied key may still have the id of the original.
        let mut uses = HashMap::<_, usize>::new();
        for id in keys().filter_map(|key| text(key, "id")) {
            *uses.entry(id).or_default() += 1;
        }
        for key in keys() {
            if text(key, "revoked").and_then(|time| time.parse::<Timestamp>().ok()).is_none() {
                continue;
            }
            revocations.ids.extend(text(key, "id").filter(|id| uses.get(id) == Some(&1)));
            let previous = key.get("previous").and_then(toml::Value::as_array).into_iter().flatten();
            let hashes = std::iter::once(key).chain(previous).filter_map(|table| text(table, "sha256"));
            revocations.hashes.extend(hashes.filter_map(|hash| KeyHash::parse(&hash)));
        }
        revocations
    }

    /// Returns true if the file revokes the key with this id, or a key with one of these hashes. The id alone
    /// suffices, because the faulty file may also list new hashes for the key, which are not in force.
    pub(crate) fn contain(&self, id: &str, mut hashes: impl Iterator<Item = KeyHash>) -> bool {
        self.ids.contains(id) || hashes.any(|hash| self.hashes.contains(&hash))
    }
}

/// Returns true if the key file `text` is valid TOML and has no content, not even an empty list of keys.
pub(crate) fn is_blank(text: &str) -> bool {
    toml::from_str::<toml::Table>(text).is_ok_and(|table| table.is_empty())
}

struct KeyReader<'a> {
    id: String,
    problems: &'a mut Vec<String>,
}

impl KeyReader<'_> {
    fn wrong(&mut self, what: &str) {
        self.problems.push(format!("key {}: {what}", self.id));
    }

    /// Returns `value`. If `value` is `None`, records a fault with the text `rule`.
    fn need<T>(&mut self, value: Option<T>, rule: &str) -> Option<T> {
        if value.is_none() {
            self.wrong(rule);
        }
        value
    }

    fn hash(&mut self, text: &str) -> Option<KeyHash> {
        self.need(
            KeyHash::parse(text),
            "sha256: expected 64 hexadecimal digits; `slotfront keys create` writes them",
        )
    }

    fn time(&mut self, field: &str, text: &str) -> Option<Timestamp> {
        self.need(text.parse().ok(), &format!("{field}: expected a time like \"2027-01-31T12:00:00Z\""))
    }

    fn list<T>(
        &mut self,
        name: &str,
        list: Option<Vec<String>>,
        read: impl Fn(&str) -> Result<T, &'static str>,
    ) -> Option<Vec<T>> {
        let list: Result<Vec<T>, _> = list?.iter().map(|item| read(item)).collect();
        // The fault does not quote the faulty element, because a secret may stand there by mistake.
        list.map_err(|rule| self.wrong(&format!("{name}: {rule}"))).ok()
    }

    /// Converts one key. `None` if its hash or its time of creation is faulty. Leaves out other faulty parts. This
    /// is safe, because a file with a fault is refused.
    fn key(&mut self, raw: RawKey) -> Option<ApiKey> {
        let hash = self.hash(&raw.sha256);
        let previous = raw
            .previous
            .iter()
            .filter_map(|p| self.hash(&p.sha256).zip(self.time("previous.until", &p.until)));
        let previous = previous.collect();
        let created = self.time("created", &raw.created);
        let expires = raw.expires.and_then(|text| self.time("expires", &text));
        let suspended = raw.suspended.and_then(|text| self.time("suspended", &text));
        let revoked = raw.revoked.and_then(|text| self.time("revoked", &text));
        let scope = Scope {
            origins: self.list("origins", raw.origins, scope::origin),
            addresses: self.list("addresses", raw.addresses, scope::address),
            methods: self.list("methods", raw.methods, scope::method),
        };
        Some(ApiKey {
            id: raw.id,
            name: raw.name,
            plan: raw.plan,
            hash: hash?,
            previous,
            created: created?,
            expires,
            suspended,
            revoked,
            scope,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_are_32_random_bytes_in_base58() {
        let (one, two) = (generate_key().unwrap(), generate_key().unwrap());
        assert_ne!(one, two);
        let bytes = bs58::decode(one.expose().strip_prefix("sf_").unwrap()).into_vec().unwrap();
        assert_eq!(bytes.len(), 32);
        let hash = KeyHash::of(one.expose());
        assert_eq!(KeyHash::parse(&hash.to_string()), Some(hash));
        assert!(!format!("{one:?} {one} {hash} {hash:?}").contains(one.expose()));
    }

    #[test]
    fn parse_reads_every_field() {
        let hash = KeyHash::of("one");
        let text = format!(
            "[[key]]\nid = \"a\"\nname = \"Alice\"\nplan = \"standard\"\nsha256 = \"{hash}\"\n\
             created = \"2026-11-21T00:00:00Z\"\nexpires = \"2027-11-21T00:00:00Z\"\n\
             addresses = [\"10.0.0.0/8\", \"::1\"]\nmethods = [\"getBlock\"]\norigins = [\"https://a.example\"]\n\
             previous = [{{ sha256 = \"{}\", until = \"2026-11-22T00:00:00Z\" }}]\n",
            KeyHash::of("two")
        );
        let keys = parse(&text, |plan| plan == "standard").unwrap();
        assert_eq!((keys[0].hash, keys[0].previous[0].0), (hash, KeyHash::of("two")));
        let scope = &keys[0].scope;
        assert_eq!(
            scope.methods,
            crate::methods::AnyMethod::from_name("getBlock").map(|method| vec![method])
        );
        assert_eq!(scope.addresses.as_ref().map(Vec::len), Some(2));
        assert_eq!(scope.origins.as_deref(), Some(&["https://a.example".to_owned()][..]));
        assert_eq!(parse("", |_| true), Ok(vec![]));
    }

    #[test]
    fn parse_reports_all_faults_without_hashes() {
        let hash = KeyHash::of("one");
        let key = |id: &str, sha256: &str, more: &str| {
            format!(
                "[[key]]\nid = \"{id}\"\nplan = \"gold\"\nsha256 = \"{sha256}\"\ncreated = \"yesterday\"\n{more}\n"
            )
        };
        let text =
            key("a", "123", "") + &key("a", &hash.to_string(), "methods = [\"x\"]") + &key("b c", "", "");
        let problems = parse(&text, |plan| plan == "standard").unwrap_err().join("\n");
        insta::assert_snapshot!(problems, @r#"
    key a: plan: no plan is named "gold"; add it to the configuration, or use another
    key a: sha256: expected 64 hexadecimal digits; `slotfront keys create` writes them
    key a: created: expected a time like "2027-01-31T12:00:00Z"
    key a: id: another key has the same id; ids must be unique
    key a: plan: no plan is named "gold"; add it to the configuration, or use another
    key a: created: expected a time like "2027-01-31T12:00:00Z"
    key a: methods: expected an exact method name: one that slotfront answers itself, or one of [methods]
    key number 3: id: expected 1 to 64 letters, digits, '-', '_' or '.'
    key number 3: plan: no plan is named "gold"; add it to the configuration, or use another
    key number 3: sha256: expected 64 hexadecimal digits; `slotfront keys create` writes them
    key number 3: created: expected a time like "2027-01-31T12:00:00Z"
    "#);
        let problems = parse("[[key]]\nid = \"a\"\nsecret = \"hunter2\"", |_| true).unwrap_err().join("\n");
        insta::assert_snapshot!(problems, @r"
    line 3: unknown field `secret`, expected one of `id`, `name`, `plan`, `sha256`, `previous`, `created`, `expires`, `suspended`, `revoked`, `origins`, `addresses`, `methods`
    ");
    }
}
