//! The operator actions on the cache, the upstreams and the process, and the check of the bearer token `auth.admin_token`.
//!
//! Without a configured token every action is refused with 403. Each action writes an audit line to the log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, MatchedPath, Path, RawQuery, Request, State as Extract};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::time::Instant;
use url::form_urlencoded;

use super::{AdminState, json_response};
use crate::cache::purge::Filter;
use crate::config::sha256;
use crate::limiter::{Limiter, Rate};
use crate::methods::{Method, Pubkey};
use crate::telemetry;
use crate::telemetry::events::EventKind;

/// The longest wait for the result of a reload of the configuration.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of wrong tokens from one address in a minute, after which no token is compared.
const WRONG_TOKENS: u32 = 10;
const MINUTE: Duration = Duration::from_mins(1);
/// The text of a response to a purge that panicked.
const STOPPED_PURGE: &str =
    "an internal error stopped the purge, so some entries may remain; send the request again";

/// Refuses requests without the bearer token (RFC 6750). Compares hashes, so that the duration reveals nothing about
/// the token.
pub(super) async fn require_token(
    Extract(state): Extract<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(expected) = state.front.config.now().auth.admin_token.clone() else {
        return refuse(
            StatusCode::FORBIDDEN,
            "admin actions are disabled; set auth.admin_token to enable them",
        );
    };
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let sent =
        sent.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let address = peer.map(|ConnectInfo(peer)| peer.ip());
    let rate = Rate::new(WRONG_TOKENS, MINUTE, WRONG_TOKENS);
    let wrong = state.wrong_tokens.get(address, || Limiter::new(rate));
    // Beyond the limit no token is compared, because otherwise one could go on guessing until an answer differs.
    let may_be_right = |token: &str| {
        wrong.left().calls > 0 && sha256(token.as_bytes()) == sha256(expected.expose().as_bytes())
    };
    if sent.is_none_or(|(_, token)| !may_be_right(token)) {
        if sent.is_some() && wrong.take().is_err() {
            tracing::warn!(
                client.address = address.map(tracing::field::display),
                "admin requests are refused unread: too many wrong tokens from this address"
            );
            let text =
                format!("more than {WRONG_TOKENS} wrong tokens a minute from this address; try again later");
            let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, &text);
            response.headers_mut().insert(header::RETRY_AFTER, rate.cell.as_secs().into());
            return response;
        }
        // The route is logged instead of the path, because the path may hold a secret.
        let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        tracing::warn!(http.route = route, "an admin request was refused: missing or wrong token");
        return refuse(
            StatusCode::UNAUTHORIZED,
            "expected the header Authorization: Bearer TOKEN, with the value of auth.admin_token as TOKEN",
        );
    }
    if !request.method().is_safe() {
        let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        tracing::info!(
            http.method = request.method().as_str(),
            http.route = route,
            client.address = address.map(tracing::field::display),
            "an admin request has the token"
        );
    }
    next.run(request).await
}

/// Purges the answers that match the filter in the query string, or the whole cache without a filter.
pub(super) async fn purge(
    Extract(state): Extract<Arc<AdminState>>,
    RawQuery(query): RawQuery,
) -> Result<Response, AdminError> {
    let filter = parse_filter(query.as_deref().unwrap_or_default())?;
    // The purge is a task of its own, so that it reaches the other gateways even if the caller disconnects.
    let purging = state.front.tasks.spawn(purge_everywhere(Arc::clone(&state), filter));
    purging.await.unwrap_or_else(|_| Err(AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, STOPPED_PURGE)))
}

/// Purges the cache of this process, and writes the purge to the shared store. Returns the response.
async fn purge_everywhere(state: Arc<AdminState>, filter: Filter) -> Result<Response, AdminError> {
    // Purging a million entries takes long, so it must not block an async worker.
    let here = Arc::clone(&state);
    let purged = tokio::task::spawn_blocking(move || {
        let entries = here.front.cache.purger().purge(&filter);
        tracing::info!(
            audit.action = "cache.purge",
            purge.method = filter.method.map(Method::as_str),
            purge.account = filter.account.map(|account| account.to_string()),
            purge.slot = filter.slot,
            purge.entries = entries,
            "an admin request purged cached answers"
        );
        let text = format!("an operator purged {entries} cached answers");
        here.front.metrics.events.note(EventKind::Action, text);
        entries
    });
    let stopped = |_| AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, STOPPED_PURGE);
    let entries = purged.await.map_err(stopped)?;
    let shared = state.front.cache.purger().share().await;
    if shared == Some(false) {
        tracing::warn!(
            "a purge has not reached the whole shared store, so other replicas may still serve purged answers; \
             it is retried each second, and lost if this process ends before it succeeds"
        );
    }
    let shared = shared.map(|shared| format!(r#","shared":{shared}"#)).unwrap_or_default();
    Ok(json_response(StatusCode::OK, format!(r#"{{"done":true,"entries":{entries}{shared}}}"#)))
}

/// Parses a purge filter from the query string. An unknown parameter is refused, because ignoring it would purge more
/// than the caller intended.
///
/// # Errors
/// A parameter is unknown, malformed or repeated. The text names the parameter and its expected form.
fn parse_filter(query: &str) -> Result<Filter, String> {
    fn once<T>(
        part: &mut Option<T>,
        name: &str,
        value: &str,
        read: Option<T>,
        rule: &str,
    ) -> Result<(), String> {
        if part.is_some() {
            return Err(format!("{name}: expected once, found twice"));
        }
        *part = Some(read.ok_or_else(|| format!("{name}: expected {rule}, found {value:?}"))?);
        Ok(())
    }

    let mut filter = Filter::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "method" => {
                let rule = "the exact name of a cached method";
                once(&mut filter.method, &name, &value, Method::from_name(&value), rule)?;
            }
            "account" => {
                let rule = "an address of 32 bytes in base58";
                once(&mut filter.account, &name, &value, Pubkey::parse(&value).ok(), rule)?;
            }
            "slot" => once(&mut filter.slot, &name, &value, value.parse().ok(), "a slot number")?,
            _ => return Err(format!("unknown parameter {name}: expected method, account or slot")),
        }
    }
    Ok(filter)
}

/// Stops sending calls to an upstream. Calls in flight finish. The last one that is usable is drained only with `force`.
pub(super) async fn drain(
    Extract(state): Extract<Arc<AdminState>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let is_forced = match query.as_deref() {
        None | Some("") => false,
        Some("force=true") => true,
        Some(_) => return refuse(StatusCode::BAD_REQUEST, "expected no query, or ?force=true"),
    };
    let standing = state.front.pool.standing(Instant::now());
    let is_known = standing.iter().any(|(member, _)| member.name == name);
    if is_known
        && !is_forced
        && !standing.iter().any(|(member, unusable)| member.name != name && unusable.is_none())
    {
        let why = "no other upstream is usable, so callers would get errors; add ?force=true to drain it all the same";
        return refuse(StatusCode::CONFLICT, why);
    }
    set_drained(&state, &name, true)
}

/// Resumes sending calls to a drained upstream.
pub(super) async fn restore(Extract(state): Extract<Arc<AdminState>>, Path(name): Path<String>) -> Response {
    set_drained(&state, &name, false)
}

fn set_drained(state: &AdminState, name: &str, drained: bool) -> Response {
    let members = state.front.pool.members();
    let Some(member) = members.named(name) else {
        return refuse(StatusCode::NOT_FOUND, "no upstream has this name; GET /api/upstreams lists them");
    };
    member.set_drained(drained);
    let (action, done_to) =
        if drained { ("upstream.drain", "drained") } else { ("upstream.restore", "restored") };
    tracing::info!(audit.action = action, upstream.name = name, "an admin request {done_to} an upstream");
    state.front.metrics.events.note(EventKind::Action, format!("{name} was {done_to} by an operator"));
    done()
}

fn done() -> Response {
    json_response(StatusCode::OK, r#"{"done":true}"#.to_owned())
}

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

pub(super) async fn log() -> Result<Response, AdminError> {
    tracing::info!(audit.action = "log.read", "an admin request read the log filter");
    filter_response(telemetry::filter())
}

/// Changes the log filter until the next start, or until a reload changes `telemetry.log`. Answers with the new filter.
pub(super) async fn set_log(text: Bytes) -> Result<Response, AdminError> {
    let LogFilter { filter } = body(&text)?;
    // Logged before the change, because the new filter may hide it.
    tracing::info!(audit.action = "log.set", log.filter = filter, "an admin request changes the log filter");
    telemetry::set_filter(&filter).map_err(|error| error.to_string())?;
    filter_response(telemetry::filter())
}

fn filter_response(filter: Option<String>) -> Result<Response, AdminError> {
    let none = || AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "logging is not set up in this process");
    let filter = filter.ok_or_else(none)?;
    Ok(json_response(StatusCode::OK, serde_json::json!({ "filter": filter }).to_string()))
}

/// The refusal of an admin request: the HTTP status and the reason.
pub(super) struct AdminError {
    status: StatusCode,
    why: String,
}

impl AdminError {
    pub(super) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }
}

/// A reason alone is that of a request with a mistake.
impl From<String> for AdminError {
    fn from(why: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why)
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        refuse(self.status, &self.why)
    }
}

/// Parses the JSON body of a request.
///
/// # Errors
/// The text is not a `T` in JSON. The error is a 400 with the reason. Types with `deny_unknown_fields` also refuse
/// unknown members.
pub(super) fn body<T: DeserializeOwned>(text: &[u8]) -> Result<T, AdminError> {
    Ok(serde_json::from_slice(text).map_err(|error| format!("body: {error}"))?)
}

fn refuse(status: StatusCode, why: &str) -> Response {
    let mut response = json_response(status, serde_json::json!({ "error": why }).to_string()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_filters_refuse_unknown_parameters() {
        let clock = "SysvarC1ock11111111111111111111111111111111";
        let all = Filter::default();
        let (method, account) = (Some(Method::GetBlock), Pubkey::parse(clock).ok());
        let rows = [
            ("", Ok(all)),
            ("method=getBlock", Ok(Filter { method, ..all })),
            ("method=getBlock&slot=7", Ok(Filter { method, slot: Some(7), ..all })),
            (&*format!("account={clock}"), Ok(Filter { account, ..all })),
            (
                "method=getblock",
                Err(r#"method: expected the exact name of a cached method, found "getblock""#),
            ),
            ("account=1", Err(r#"account: expected an address of 32 bytes in base58, found "1""#)),
            ("slot=-1", Err(r#"slot: expected a slot number, found "-1""#)),
            ("slot", Err(r#"slot: expected a slot number, found """#)),
            ("slot=1&slot=2", Err("slot: expected once, found twice")),
            ("key=1", Err("unknown parameter key: expected method, account or slot")),
        ];
        for (query, expected) in rows {
            assert_eq!(parse_filter(query), expected.map_err(str::to_owned), "{query}");
        }
    }
}
