//! API keys through the admin listener: list, make, replace, take back, and what each has used.
//!
//! The key file stays the truth: every change is the one that `slotfront keys` makes, under the same lock, and the
//! gateway reads the file again before the answer is given. A key itself is in one answer only, that which makes it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::control::{Refusal, body};
use super::{State, json};
use crate::config::defaults;
use crate::gateway::keys::file::{ChangeError, IssuedKey, KeyFile, NewKey};
use crate::gateway::keys::scope::{self, Scope};
use crate::gateway::keys::{Key, MAX_NAME, is_name};
use crate::methods::AnyMethod;

/// How long a replaced key holds, unless the call says.
const GRACE: &str = "24h";

/// A key as the admin listener shows it: without its secret and without its hash.
#[derive(Serialize)]
struct KeyView {
    id: String,
    name: String,
    plan: String,
    state: &'static str,
    created: String,
    expires: Option<String>,
    revoked: Option<String>,
    /// The ends of secrets that were replaced and still hold.
    old_until: Vec<String>,
    origins: Option<Vec<String>>,
    addresses: Option<Vec<String>>,
    methods: Option<Vec<&'static str>>,
}

impl KeyView {
    fn of(key: Key, now: Timestamp) -> Self {
        let state = match (key.revoked, key.expires) {
            (Some(_), _) => "revoked",
            (None, Some(end)) if end <= now => "expired",
            (None, _) => "active",
        };
        let old = key.previous.iter().map(|(_, until)| *until).filter(|until| *until > now);
        Self {
            state,
            created: key.created.to_string(),
            expires: key.expires.as_ref().map(ToString::to_string),
            revoked: key.revoked.as_ref().map(ToString::to_string),
            old_until: old.map(|until| until.to_string()).collect(),
            origins: key.scope.origins,
            addresses: key.scope.addresses.map(|list| list.iter().map(ToString::to_string).collect()),
            methods: key.scope.methods.map(|list| list.into_iter().map(AnyMethod::as_str).collect()),
            id: key.id,
            name: key.name,
            plan: key.plan,
        }
    }
}

/// All keys of the file, in its order.
pub(super) async fn list(Shared(state): Shared<Arc<State>>) -> Result<Response, Refusal> {
    let listed = on_file(state, |_, file| {
        let now = Timestamp::now();
        let keys: Vec<_> =
            file.list().map_err(|e| refused(&e))?.into_iter().map(|k| KeyView::of(k, now)).collect();
        tracing::info!(audit.action = "key.list", keys = keys.len(), "keys were listed by an admin call");
        Ok(serde_json::json!({ "keys": keys }))
    });
    listed.await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    name: String,
    plan: Option<String>,
    expires: Option<String>,
    origins: Option<Vec<String>>,
    addresses: Option<Vec<String>>,
    methods: Option<Vec<String>>,
}

/// What a new key is narrowed to in one way; left out is any, and an empty list would be no key at all.
fn narrowed<T>(
    name: &str,
    list: Option<Vec<String>>,
    read: impl Fn(&str) -> Result<T, &'static str>,
) -> Result<Option<Vec<T>>, Refusal> {
    let wrong = |why: String| Refusal::new(StatusCode::BAD_REQUEST, format!("{name}{why}"));
    let Some(list) = list else { return Ok(None) };
    if list.is_empty() {
        return Err(wrong(": expected at least one, or no such member for any".to_owned()));
    }
    let item = |(i, text): (usize, &String)| {
        read(text).map_err(|rule| wrong(format!("[{i}]: {rule}, found {text:?}")))
    };
    list.iter().enumerate().map(item).collect::<Result<_, _>>().map(Some)
}

/// Makes a key, which this answer alone shows.
pub(super) async fn create(Shared(state): Shared<Arc<State>>, text: Bytes) -> Result<Response, Refusal> {
    let Wanted { name, plan, expires, origins, addresses, methods } = body(&text)?;
    let plan = plan.unwrap_or_else(|| defaults::PLAN.to_owned());
    if !is_name(&name) {
        let why = format!("name: expected 1 to {MAX_NAME} characters, none of them a control character");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    }
    let plans = state.controls.gateway.plans();
    if !plans.contains(&plan) {
        let why = format!("plan: expected one of {}, found {plan:?}", plans.join(", "));
        return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    }
    let now = Timestamp::now();
    let end = expires.as_ref().and_then(|text| text.parse().ok()).filter(|end| *end > now);
    if let (Some(text), None) = (expires, end) {
        let why = format!("expires: expected a time to come, like \"2027-01-31T12:00:00Z\", found {text:?}");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    }
    let scope = Scope {
        origins: narrowed("origins", origins, scope::origin)?,
        addresses: narrowed("addresses", addresses, scope::address)?,
        methods: narrowed("methods", methods, scope::method)?,
    };
    let new = NewKey { name, plan, expires: end, scope };
    let issued = on_file(state, move |state, file| {
        let issued = file.create(&new, now).map_err(|e| refused(&e))?;
        let in_force = taken(state, &issued);
        tracing::info!(
            audit.action = "key.create",
            key.id = issued.id,
            in_force,
            "a key was issued by an admin call"
        );
        Ok(serde_json::json!({ "id": issued.id, "key": issued.key.expose(), "in_force": in_force }))
    });
    issued.await
}

/// Takes a key back, at once and for good, also what it replaced.
pub(super) async fn revoke(
    Shared(state): Shared<Arc<State>>,
    Path(wanted): Path<String>,
) -> Result<Response, Refusal> {
    let revoked = on_file(state, move |state, file| {
        let id = file.revoke(&wanted, Timestamp::now()).map_err(|e| refused(&e))?;
        state.controls.gateway.take_keys();
        let in_force = state.controls.gateway.is_revoked(&id);
        tracing::info!(
            audit.action = "key.revoke",
            key.id = id,
            in_force,
            "a key was revoked by an admin call"
        );
        Ok(serde_json::json!({ "id": id, "in_force": in_force }))
    });
    revoked.await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rotation {
    grace: Option<String>,
}

/// Gives a key another secret, which this answer alone shows; the old one holds for a while longer.
pub(super) async fn rotate(
    Shared(state): Shared<Arc<State>>,
    Path(wanted): Path<String>,
    text: Bytes,
) -> Result<Response, Refusal> {
    let asked = if text.is_empty() { Rotation { grace: None } } else { body(&text)? };
    let grace = asked.grace.unwrap_or_else(|| GRACE.to_owned());
    let now = Timestamp::now();
    let until =
        humantime::parse_duration(&grace).ok().and_then(|grace: Duration| now.checked_add(grace).ok());
    let Some(until) = until else {
        let why = format!("grace: expected a time such as \"24h\" or \"0s\", found {grace:?}");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    };
    let issued = on_file(state, move |state, file| {
        let issued = file.rotate(&wanted, until, now).map_err(|e| refused(&e))?;
        let in_force = taken(state, &issued);
        let old_until = (until > now).then(|| until.to_string());
        tracing::info!(
            audit.action = "key.rotate",
            key.id = issued.id,
            old_until,
            in_force,
            "a key was rotated by an admin call"
        );
        let key = issued.key.expose();
        Ok(serde_json::json!({ "id": issued.id, "key": key, "old_until": old_until, "in_force": in_force }))
    });
    issued.await
}

/// What a key has used, as its owner sees it.
pub(super) async fn usage(
    Shared(state): Shared<Arc<State>>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let Some(usage) = state.controls.gateway.usage_of(&id) else {
        return Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "no key in force has this id; GET /api/keys shows them",
        ));
    };
    tracing::info!(audit.action = "key.usage", key.id = id, "a key's use was read by an admin call");
    let usage = serde_json::to_string(&usage).expect("plain numbers and texts always have a JSON form");
    Ok(json(StatusCode::OK, usage))
}

/// Reads the file again, and says whether the key is in force; it is not where something else in the file is wrong.
fn taken(state: &State, issued: &IssuedKey) -> bool {
    state.controls.gateway.take_keys();
    state.controls.gateway.holds(issued.key.expose())
}

/// Does `work` on the key file where it may block. It is done, and told, even where the caller has gone.
async fn on_file(
    state: Arc<State>,
    work: impl FnOnce(&State, &KeyFile) -> Result<serde_json::Value, Refusal> + Send + 'static,
) -> Result<Response, Refusal> {
    let done = tokio::task::spawn_blocking(move || {
        let Some(file) = state.controls.gateway.key_file() else {
            let why = "there is no key file: auth.mode is \"open\", or auth.keys_file is not set";
            return Err(Refusal::new(StatusCode::CONFLICT, why));
        };
        work(&state, &file)
    });
    let cut = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the call did not come to its end");
    Ok(json(StatusCode::OK, done.await.map_err(cut)??.to_string()))
}

fn refused(error: &ChangeError) -> Refusal {
    let status = match error {
        // Not in the error's own words, which repeat what was asked for: it may be a key.
        ChangeError::Unknown { .. } => {
            return Refusal::new(
                StatusCode::NOT_FOUND,
                "no key has this id or name; GET /api/keys shows them",
            );
        }
        ChangeError::Ambiguous { .. } | ChangeError::Revoked { .. } | ChangeError::File(_) => {
            StatusCode::CONFLICT
        }
        ChangeError::Io { .. } | ChangeError::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Refusal::new(status, error.to_string())
}
