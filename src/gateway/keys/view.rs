//! A key as an operator is shown it.

use jiff::Timestamp;
use serde::Serialize;

use super::ApiKey;
use super::scope::Scope;
use crate::methods::AnyMethod;

/// A key in an answer. Neither the secret nor its hash is shown.
#[derive(Debug, Serialize)]
pub struct KeyView {
    pub id: String,
    pub name: String,
    pub plan: String,
    /// `active`, `suspended`, `expired` or `revoked`.
    pub state: &'static str,
    created: String,
    expires: Option<String>,
    suspended: Option<String>,
    revoked: Option<String>,
    /// The times at which replaced secrets cease to be valid. Secrets that are no longer valid are left out.
    old_until: Vec<String>,
    origins: Option<Vec<String>>,
    addresses: Option<Vec<String>>,
    methods: Option<Vec<&'static str>>,
}

impl KeyView {
    /// Returns the view of `key` at `now`.
    pub fn of(key: ApiKey, now: Timestamp) -> Self {
        let state = key.state(now);
        let old = key.previous.iter().map(|(_, until)| *until).filter(|until| *until > now);
        let Scope { origins, addresses, methods } = key.scope;
        Self {
            state,
            created: key.created.to_string(),
            expires: key.expires.as_ref().map(ToString::to_string),
            suspended: key.suspended.as_ref().map(ToString::to_string),
            revoked: key.revoked.as_ref().map(ToString::to_string),
            old_until: old.map(|until| until.to_string()).collect(),
            origins,
            addresses: addresses.map(|list| list.iter().map(ToString::to_string).collect()),
            methods: methods.map(|list| list.into_iter().map(AnyMethod::as_str).collect()),
            id: key.id,
            name: key.name,
            plan: key.plan,
        }
    }
}
