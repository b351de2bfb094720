//! The operator actions on the process: reload the configuration, and read or change the log filter.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::control::{AdminError, body};
use super::{AdminState, json_response};
use crate::telemetry;

/// The longest wait for the result of a reload of the configuration.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Reloads the configuration, as SIGHUP does. Answers with the sections whose changes apply at once, and those
/// whose changes need a restart. A refused configuration gives 409 with all of its problems.
pub(super) async fn reload(Extract(state): Extract<Arc<AdminState>>) -> Result<Response, AdminError> {
    tracing::info!(audit.action = "reload", "an admin request reloads the configuration");
    let (reply, answer) = oneshot::channel();
    let asked = async {
        state.reloads.send(reply).await.ok()?;
        answer.await.ok()
    };
    match tokio::time::timeout(RELOAD_TIMEOUT, asked).await {
        Ok(Some(Ok(changes))) => {
            let (at_once, after_restart) = (changes.at_once, changes.after_restart);
            let answer = serde_json::json!({ "at_once": at_once, "after_restart": after_restart });
            Ok(json_response(StatusCode::OK, answer.to_string()))
        }
        // The text of the problems contains no secret.
        Ok(Some(Err(problems))) => Err(AdminError::new(StatusCode::CONFLICT, problems)),
        Ok(None) | Err(_) => Err(AdminError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the reload did not finish in time, or slotfront is stopping; the log shows the result",
        )),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogFilter {
    filter: String,
}

/// Answers with the log filter in force.
pub(super) async fn log() -> Result<Response, AdminError> {
    tracing::info!(audit.action = "log.read", "an admin request read the log filter");
    filter_response(telemetry::filter())
}

/// Changes the log filter until the next start, or until a reload changes `telemetry.log`. Answers with the new filter.
pub(super) async fn set_log(text: Bytes) -> Result<Response, AdminError> {
    let LogFilter { filter } = body(&text)?;
    // Logged before the change, because the new filter may hide it.
    tracing::info!(audit.action = "log.set", log.filter = filter, "an admin request changes the log filter");
    telemetry::set_filter(&filter)
        .map_err(|error| AdminError::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    filter_response(telemetry::filter())
}

fn filter_response(filter: Option<String>) -> Result<Response, AdminError> {
    let none = || AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "logging is not set up in this process");
    let filter = filter.ok_or_else(none)?;
    Ok(json_response(StatusCode::OK, serde_json::json!({ "filter": filter }).to_string()))
}
