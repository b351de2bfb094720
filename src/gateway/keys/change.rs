//! A change of a key: what the operator asks for, and how it is written into the key's table of the file.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use toml_edit::{Array, Table, value};

use super::file::{ChangeError, KeyFile, written};
use super::{ApiKey, NAME_RULE, is_name, scope};

/// What becomes of an end or a restriction of a key.
#[derive(Debug, Clone, Default)]
pub enum Given<T> {
    #[default]
    Stays,
    Lifted,
    /// It is replaced.
    Set(T),
}

impl<T> Given<T> {
    fn set(&self) -> Option<&T> {
        if let Self::Set(it) = self { Some(it) } else { None }
    }

    fn stays(&self) -> bool {
        matches!(self, Self::Stays)
    }

    fn map<U>(self, map: impl FnOnce(T) -> U) -> Given<U> {
        match self {
            Self::Stays => Given::Stays,
            Self::Lifted => Given::Lifted,
            Self::Set(it) => Given::Set(map(it)),
        }
    }
}

/// Reads a member that is present: `null` lifts what the key has. A missing member leaves it.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Option::deserialize(from).map(|it| it.map_or(Self::Lifted, Self::Set))
    }
}

/// The properties that a change gives to a key. What is `None` stays as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyChange {
    pub name: Option<String>,
    pub plan: Option<String>,
    /// The time at which the key expires, as in the key file.
    #[serde(default)]
    pub expires: Given<String>,
    /// The web origins from which the key may be used.
    #[serde(default)]
    pub origins: Given<Vec<String>>,
    /// The networks of client addresses from which the key may be used.
    #[serde(default)]
    pub addresses: Given<Vec<String>>,
    /// The methods that the key may call.
    #[serde(default)]
    pub methods: Given<Vec<String>>,
    /// True to suspend the key, false to resume it.
    pub suspended: Option<bool>,
}

/// Parses the restriction `name`. A missing list means no restriction. An empty list is refused, because the key could not
/// be used.
pub(crate) fn parse_restriction<T>(
    name: &str,
    list: Option<Vec<String>>,
    read: impl Fn(&str) -> Result<T, &'static str>,
) -> Result<Option<Vec<T>>, String> {
    let Some(list) = list else { return Ok(None) };
    if list.is_empty() {
        return Err(format!("{name}: expected at least one entry; omit the member for no restriction"));
    }
    let item = |(i, text): (usize, &String)| {
        read(text).map_err(|rule| format!("{name}[{i}]: {rule}, found {text:?}"))
    };
    list.iter().enumerate().map(item).collect::<Result<_, _>>().map(Some)
}

impl KeyChange {
    /// Checks what does not depend on the key.
    ///
    /// # Errors
    /// A property is invalid, or the change names none. The text names the property and what was expected.
    pub fn check(&self, now: Timestamp, plans: Option<&[String]>) -> Result<(), String> {
        let Self { name, plan, expires, origins, addresses, methods, suspended } = self;
        let lists = [origins, addresses, methods].into_iter().all(Given::stays);
        if lists && name.is_none() && plan.is_none() && expires.stays() && suspended.is_none() {
            return Err(
                "expected at least one of name, plan, expires, origins, addresses, methods and suspended"
                    .into(),
            );
        }
        if name.as_ref().is_some_and(|name| !is_name(name)) {
            return Err(format!("name: {NAME_RULE}"));
        }
        if let (Some(plan), Some(plans)) = (plan, plans)
            && !plans.contains(plan)
        {
            return Err(format!("plan: expected one of {}, found {plan:?}", plans.join(", ")));
        }
        if let Some(text) = expires.set()
            && text.parse().ok().is_none_or(|end: Timestamp| end <= now)
        {
            return Err(format!(
                "expires: expected a future time, like \"2027-01-31T12:00:00Z\", found {text:?}"
            ));
        }
        parse_restriction("origins", origins.set().cloned(), scope::origin)?;
        parse_restriction("addresses", addresses.set().cloned(), scope::address)?;
        parse_restriction("methods", methods.set().cloned(), scope::method)?;
        Ok(())
    }

    fn apply(self, table: &mut Table, now: Timestamp) {
        let mut put = |member: &str, item: Given<toml_edit::Item>| match item {
            Given::Stays => {}
            Given::Lifted => drop(table.remove(member)),
            Given::Set(item) => table[member] = item,
        };
        let list = |list: Vec<String>| value(list.into_iter().collect::<Array>());
        put("name", self.name.map_or(Given::Stays, Given::Set).map(value));
        put("plan", self.plan.map_or(Given::Stays, Given::Set).map(value));
        put("expires", self.expires.map(value));
        put("origins", self.origins.map(list));
        put("addresses", self.addresses.map(list));
        put("methods", self.methods.map(list));
        let suspended = match self.suspended {
            None => Given::Stays,
            Some(false) => Given::Lifted,
            Some(true) => Given::Set(value(written(now))),
        };
        put("suspended", suspended);
    }
}

impl KeyFile {
    /// Changes the key with the id or name `wanted`, and returns it as it is now. A key that is suspended already keeps the
    /// time at which it was.
    ///
    /// # Errors
    /// No key or several keys match, the key is revoked, the change is invalid, or the file cannot be changed.
    pub fn set(&self, wanted: &str, mut change: KeyChange, now: Timestamp) -> Result<ApiKey, ChangeError> {
        let id = self.change_table(wanted, |table, key| {
            if key.suspended.is_some() && change.suspended == Some(true) {
                change.suspended = None;
            }
            std::mem::take(&mut change).apply(table, now);
        })?;
        self.get(&id)
    }

    /// Returns the key with the id or name `wanted`.
    ///
    /// # Errors
    /// No key or several keys match, or the file cannot be read.
    pub fn get(&self, wanted: &str) -> Result<ApiKey, ChangeError> {
        let mut keys = self.list()?;
        let at = self.find(&keys, wanted)?;
        Ok(keys.swap_remove(at))
    }
}
