//! The operator actions on API keys: list, create, change, rotate, revoke and remove them, and read their usage.
//!
//! Changes are made in the key file, under the lock that `slotfront keys` also takes. The gateway reads the file again
//! before the response. A secret appears only in the response that issues it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State as Extract};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use super::control::{AdminError, body};
use super::{AdminState, json_response};
use crate::config::STANDARD_PLAN;
use crate::gateway::keys::change::{KeyChange, parse_restriction};
use crate::gateway::keys::file::{ChangeError, IssuedKey, KeyFile, NewKey};
use crate::gateway::keys::scope::{self, Scope};
use crate::gateway::keys::view::KeyView;
use crate::gateway::keys::{NAME_RULE, is_name};

/// The time for which a replaced secret stays valid, if the request names no time.
const GRACE: &str = "24h";

/// The highest number of units that a request may set.
const MAX_UNITS: f64 = 1e12;

/// Answers with all keys, in the order of the key file.
pub(super) async fn list(Extract(state): Extract<Arc<AdminState>>) -> Result<Response, AdminError> {
    let listed = on_file(state, |state, file| {
        let now = Timestamp::now();
        let keys: Vec<_> =
            file.list().map_err(|e| refused(&e))?.into_iter().map(|k| KeyView::of(k, now)).collect();
        tracing::info!(audit.action = "key.list", keys = keys.len(), "an admin request listed the keys");
        Ok(serde_json::json!({ "keys": keys, "plans": state.front.gateway.plans() }))
    });
    listed.await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewKeyRequest {
    name: String,
    plan: Option<String>,
    expires: Option<String>,
    origins: Option<Vec<String>>,
    addresses: Option<Vec<String>>,
    methods: Option<Vec<String>>,
}

/// Creates a key. Only this response shows the secret.
pub(super) async fn create(
    Extract(state): Extract<Arc<AdminState>>,
    text: Bytes,
) -> Result<Response, AdminError> {
    let NewKeyRequest { name, plan, expires, origins, addresses, methods } = body(&text)?;
    let plan = plan.unwrap_or_else(|| STANDARD_PLAN.to_owned());
    if !is_name(&name) {
        return Err(format!("name: {NAME_RULE}").into());
    }
    let plans = state.front.gateway.plans();
    if !plans.contains(&plan) {
        return Err(format!("plan: expected one of {}, found {plan:?}", plans.join(", ")).into());
    }
    let now = Timestamp::now();
    let end = expires.as_ref().and_then(|text| text.parse().ok()).filter(|end| *end > now);
    if let (Some(text), None) = (expires, end) {
        let why = format!("expires: expected a future time, like \"2027-01-31T12:00:00Z\", found {text:?}");
        return Err(why.into());
    }
    let scope = Scope {
        origins: parse_restriction("origins", origins, scope::origin)?,
        addresses: parse_restriction("addresses", addresses, scope::address)?,
        methods: parse_restriction("methods", methods, scope::method)?,
    };
    let new = NewKey { name, plan, expires: end, scope };
    let issued = on_file(state, move |state, file| {
        let issued = file.create(&new, now).map_err(|e| refused(&e))?;
        let in_force = reload_and_check(state, &issued);
        tracing::info!(
            audit.action = "key.create",
            key.id = issued.id,
            in_force,
            "an admin request created a key"
        );
        Ok(serde_json::json!({ "id": issued.id, "key": issued.key.expose(), "in_force": in_force }))
    });
    issued.await
}

/// Changes a key: its name, plan, end, restrictions, or whether it is suspended. Answers with the key as it is now.
pub(super) async fn set(
    Extract(state): Extract<Arc<AdminState>>,
    Path(wanted): Path<String>,
    text: Bytes,
) -> Result<Response, AdminError> {
    let change: KeyChange = body(&text)?;
    let now = Timestamp::now();
    change.check(now, Some(&state.front.gateway.plans()))?;
    let what = format!("{change:?}");
    let changed = on_file(state, move |state, file| {
        let key = file.set(&wanted, change, now).map_err(|e| refused(&e))?;
        state.front.gateway.take_keys();
        let in_force = state.front.gateway.is_in_force(&key);
        tracing::info!(
            audit.action = "key.set",
            key.id = key.id,
            key.change = what,
            in_force,
            "an admin request changed a key"
        );
        Ok(serde_json::json!({ "key": KeyView::of(key, now), "in_force": in_force }))
    });
    changed.await
}

/// Removes a key from the key file, with all that is known of it.
pub(super) async fn remove(
    Extract(state): Extract<Arc<AdminState>>,
    Path(wanted): Path<String>,
) -> Result<Response, AdminError> {
    close(state, "key.remove", move |file| file.remove(&wanted)).await
}

/// Revokes a key and its replaced secrets. A revocation cannot be undone.
pub(super) async fn revoke(
    Extract(state): Extract<Arc<AdminState>>,
    Path(wanted): Path<String>,
) -> Result<Response, AdminError> {
    close(state, "key.revoke", move |file| file.revoke(&wanted, Timestamp::now())).await
}

/// Takes away with `how`, which returns the key's id, what a key may do.
async fn close(
    state: Arc<AdminState>,
    action: &'static str,
    how: impl FnOnce(&KeyFile) -> Result<String, ChangeError> + Send + 'static,
) -> Result<Response, AdminError> {
    let closed = on_file(state, move |state, file| {
        let id = how(file).map_err(|e| refused(&e))?;
        state.front.gateway.take_keys();
        let in_force = state.front.gateway.is_revoked(&id);
        tracing::info!(audit.action = action, key.id = id, in_force, "an admin request took a key away");
        Ok(serde_json::json!({ "id": id, "in_force": in_force }))
    });
    closed.await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RotateRequest {
    grace: Option<String>,
}

/// Gives a key a new secret, which only this response shows. Earlier secrets stay valid for at most the requested time,
/// or [`GRACE`]. The response lists them by the start of their SHA-256.
pub(super) async fn rotate(
    Extract(state): Extract<Arc<AdminState>>,
    Path(wanted): Path<String>,
    text: Bytes,
) -> Result<Response, AdminError> {
    let asked = if text.is_empty() { RotateRequest { grace: None } } else { body(&text)? };
    let grace = asked.grace.unwrap_or_else(|| GRACE.to_owned());
    let now = Timestamp::now();
    let until =
        humantime::parse_duration(&grace).ok().and_then(|grace: Duration| now.checked_add(grace).ok());
    let Some(until) = until else {
        let why = format!("grace: expected a duration such as \"24h\" or \"0s\", found {grace:?}");
        return Err(why.into());
    };
    let issued = on_file(state, move |state, file| {
        let issued = file.rotate(&wanted, until, now).map_err(|e| refused(&e))?;
        let in_force = reload_and_check(state, &issued);
        let old_until = (until > now).then(|| until.to_string());
        tracing::info!(
            audit.action = "key.rotate",
            key.id = issued.id,
            old_until,
            in_force,
            "an admin request rotated a key"
        );
        let earlier = issued.earlier.iter();
        let earlier = earlier.map(|(hash, until)| {
            serde_json::json!({ "sha256": format!("{:.8}", hash.to_string()), "until": until.to_string() })
        });
        Ok(serde_json::json!({
            "id": issued.id,
            "key": issued.key.expose(),
            "old_until": old_until,
            "earlier": earlier.collect::<Vec<_>>(),
            "in_force": in_force,
        }))
    });
    issued.await
}

/// Answers with the usage of a key, in the form in which the owner of the key gets it.
pub(super) async fn usage(
    Extract(state): Extract<Arc<AdminState>>,
    Path(id): Path<String>,
) -> Result<Response, AdminError> {
    let Some(usage) = state.front.gateway.usage_of(&id) else {
        return Err(AdminError::new(
            StatusCode::NOT_FOUND,
            "no key in force has this id; GET /api/keys lists them",
        ));
    };
    tracing::info!(audit.action = "key.usage", key.id = id, "an admin request read the usage of a key");
    let usage = serde_json::to_string(&usage).expect("plain numbers and texts always have a JSON form");
    Ok(json_response(StatusCode::OK, usage))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageRequest {
    day: Option<f64>,
    month: Option<f64>,
}

/// Sets the units that a key has used of its quotas. Answers as [`usage`].
pub(super) async fn set_usage(
    Extract(state): Extract<Arc<AdminState>>,
    Path(id): Path<String>,
    text: Bytes,
) -> Result<Response, AdminError> {
    let UsageRequest { day, month } = body(&text)?;
    for (what, units) in [("day", day), ("month", month)] {
        if let Some(units) = units.filter(|units| !(0.0..=MAX_UNITS).contains(units)) {
            return Err(format!("{what}: expected units from 0 to {MAX_UNITS}, found {units}").into());
        }
    }
    if state.front.gateway.set_usage(&id, [day, month]) {
        tracing::info!(
            audit.action = "key.usage.set",
            key.id = id,
            day,
            month,
            "an admin request set the usage of a key"
        );
    }
    usage(Extract(state), Path(id)).await
}

/// Makes the gateway read the key file again. Returns true if the new secret `issued` is then valid. The secret is
/// not valid if the file is faulty, because the gateway then takes only revocations from it.
fn reload_and_check(state: &AdminState, issued: &IssuedKey) -> bool {
    state.front.gateway.take_keys();
    state.front.gateway.holds(issued.key.expose())
}

/// Runs `work` on the key file, which finishes even if the caller disconnects. Such work needs memory for all keys, so one
/// thread does one after the other. Refuses the request with 409 if there is no key file.
async fn on_file(
    state: Arc<AdminState>,
    work: impl FnOnce(&AdminState, &KeyFile) -> Result<serde_json::Value, AdminError> + Send + 'static,
) -> Result<Response, AdminError> {
    let worker = state.front.gateway.key_worker.clone();
    let done = worker.run(move || {
        let why = "there is no key file: auth.mode is \"open\", or auth.keys_file is not set";
        let file = state.front.gateway.key_file().ok_or_else(|| AdminError::new(StatusCode::CONFLICT, why));
        work(&state, &file?)
    });
    let cut = "an internal error stopped the request; GET /api/keys shows if the key file has changed";
    let done = done.await.ok_or_else(|| AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, cut))?;
    Ok(json_response(StatusCode::OK, done?.to_string()))
}

fn refused(error: &ChangeError) -> AdminError {
    let status = match error {
        // The error's own text is not shown, because it quotes the id in the request, which may be a secret.
        ChangeError::Unknown { .. } => {
            return AdminError::new(
                StatusCode::NOT_FOUND,
                "no key has this id or name; GET /api/keys lists them",
            );
        }
        ChangeError::Ambiguous { .. } | ChangeError::Revoked { .. } | ChangeError::File(_) => {
            StatusCode::CONFLICT
        }
        ChangeError::Io { .. } | ChangeError::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    AdminError::new(status, error.to_string())
}
