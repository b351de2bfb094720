//! The running process through the admin listener: read the configuration again, and what is logged.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::control::{Refusal, body};
use super::{State, json};
use crate::telemetry;

/// A configuration is a file and a key file: past this nobody is reading them.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads the configuration again, as SIGHUP does, and says what changed.
pub(super) async fn reload(Shared(state): Shared<Arc<State>>) -> Result<Response, Refusal> {
    tracing::info!(audit.action = "reload", "a reload was asked for by an admin call");
    let (reply, answer) = oneshot::channel();
    let asked = async {
        state.controls.reloads.send(reply).await.ok()?;
        answer.await.ok()
    };
    match tokio::time::timeout(RELOAD_TIMEOUT, asked).await {
        Ok(Some(Ok(changes))) => {
            let (at_once, after_restart) = (changes.at_once, changes.after_restart);
            let answer = serde_json::json!({ "at_once": at_once, "after_restart": after_restart });
            Ok(json(StatusCode::OK, answer.to_string()))
        }
        // All problems, each with its path, the rule and the fix; never a secret.
        Ok(Some(Err(problems))) => Err(Refusal::new(StatusCode::CONFLICT, problems)),
        Ok(None) | Err(_) => {
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "nobody reads the configuration now"))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    filter: String,
}

/// What is logged now.
pub(super) async fn log() -> Result<Response, Refusal> {
    tracing::info!(audit.action = "log.read", "the log filter was read by an admin call");
    shown(telemetry::filter())
}

/// Changes what is logged, until the next start or the next change of `telemetry.log`.
pub(super) async fn set_log(text: Bytes) -> Result<Response, Refusal> {
    let Log { filter } = body(&text)?;
    // Before it, since the filter may be one that shows nothing any more.
    tracing::info!(
        audit.action = "log.set",
        log.filter = filter,
        "another log filter was asked for by an admin call"
    );
    telemetry::set_filter(&filter)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    shown(telemetry::filter())
}

fn shown(filter: Option<String>) -> Result<Response, Refusal> {
    let none = || Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "logging is not set up in this process");
    let filter = filter.ok_or_else(none)?;
    Ok(json(StatusCode::OK, serde_json::json!({ "filter": filter }).to_string()))
}
