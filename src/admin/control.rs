//! What an operator may change through the admin listener, with the bearer token of `auth.admin_token`: who is let
//! through, the cache and the upstreams. Keys, reloads and the log have files of their own.
//!
//! Off without a token: then every call is 403. Everything that is done leaves a log line.

use std::sync::Arc;

use axum::extract::{MatchedPath, Path, RawQuery, Request, State as Shared};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use url::form_urlencoded;

use super::{State, json};
use crate::cache::purge::Filter;
use crate::methods::{Method, Pubkey};

/// Lets only the bearer of the token through (RFC 6750). Hashes are compared, so that timing tells nothing.
pub(super) async fn token(Shared(state): Shared<Arc<State>>, request: Request, next: Next) -> Response {
    let Some(expected) = &state.controls.token else {
        return refuse(StatusCode::FORBIDDEN, "set auth.admin_token to use this");
    };
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let sent =
        sent.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    if sent.is_none_or(|(_, token)| Sha256::digest(token) != Sha256::digest(expected.expose())) {
        // The route, since a path may hold what somebody took for an id.
        let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        tracing::warn!(http.route = route, "admin call without the token");
        return refuse(StatusCode::UNAUTHORIZED, "expected Authorization: Bearer and the admin token");
    }
    next.run(request).await
}

/// Empties the cache, or takes out of it what the query string names.
pub(super) async fn purge(Shared(state): Shared<Arc<State>>, RawQuery(query): RawQuery) -> Response {
    let filter = match filter(query.as_deref().unwrap_or_default()) {
        Ok(filter) => filter,
        Err(why) => return refuse(StatusCode::BAD_REQUEST, &why),
    };
    // A million entries take their time; and what is done is told even where the caller has gone.
    let here = Arc::clone(&state);
    let purged = tokio::task::spawn_blocking(move || {
        let entries = here.source.purge(&filter);
        tracing::info!(
            audit.action = "cache.purge",
            purge.method = filter.method.map(Method::as_str),
            purge.account = filter.account.map(|account| account.to_string()),
            purge.slot = filter.slot,
            purge.entries = entries,
            "kept answers were purged by an admin call"
        );
        entries
    });
    let Ok(entries) = purged.await else {
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "the purge did not come to its end");
    };
    let shared = state.source.share_purges().await;
    if shared == Some(false) {
        tracing::warn!(
            "a purge has not reached all of the shared store: it is tried again each second until this process ends"
        );
    }
    let shared = shared.map(|shared| format!(r#","shared":{shared}"#)).unwrap_or_default();
    json(StatusCode::OK, format!(r#"{{"done":true,"entries":{entries}{shared}}}"#))
}

/// What a purge is to take, from the query string; a word that is not understood is refused, for it was to spare
/// something.
fn filter(query: &str) -> Result<Filter, String> {
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
                let rule = "one of the eight methods, spelt as in a call";
                once(&mut filter.method, &name, &value, Method::from_name(&value), rule)?;
            }
            "account" => {
                let rule = "an address of 32 bytes in base58";
                once(&mut filter.account, &name, &value, Pubkey::parse(&value).ok(), rule)?;
            }
            "slot" => once(&mut filter.slot, &name, &value, value.parse().ok(), "a slot's number")?,
            _ => return Err(format!("{name}: expected method, account or slot")),
        }
    }
    Ok(filter)
}

/// Sends no further calls to an upstream; those in flight end as they would.
pub(super) async fn drain(Shared(state): Shared<Arc<State>>, Path(name): Path<String>) -> Response {
    set_drained(&state, &name, true)
}

/// Sends calls to a drained upstream again.
pub(super) async fn restore(Shared(state): Shared<Arc<State>>, Path(name): Path<String>) -> Response {
    set_drained(&state, &name, false)
}

fn set_drained(state: &State, name: &str, drained: bool) -> Response {
    if !state.source.set_drained(name, drained) {
        return refuse(StatusCode::NOT_FOUND, "no upstream of this name");
    }
    let action = if drained { "upstream.drain" } else { "upstream.restore" };
    tracing::info!(audit.action = action, upstream.name = name, "an upstream was changed by an admin call");
    done()
}

fn done() -> Response {
    json(StatusCode::OK, r#"{"done":true}"#.to_owned())
}

/// Why a call is not done: what was wrong, and what was expected.
pub(super) struct Refusal {
    status: StatusCode,
    why: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        refuse(self.status, &self.why)
    }
}

/// A call's body: JSON with the members that it knows. The error names the member, and what was expected.
pub(super) fn body<T: DeserializeOwned>(text: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(text)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, format!("body: {error}")))
}

fn refuse(status: StatusCode, why: &str) -> Response {
    let mut response = json(status, serde_json::json!({ "error": why }).to_string()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_is_narrowed_by_words_that_are_understood_or_not_at_all() {
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
                Err(r#"method: expected one of the eight methods, spelt as in a call, found "getblock""#),
            ),
            ("account=1", Err(r#"account: expected an address of 32 bytes in base58, found "1""#)),
            ("slot=-1", Err(r#"slot: expected a slot's number, found "-1""#)),
            ("slot", Err(r#"slot: expected a slot's number, found """#)),
            ("slot=1&slot=2", Err("slot: expected once, found twice")),
            ("key=1", Err("key: expected method, account or slot")),
        ];
        for (query, expected) in rows {
            assert_eq!(filter(query), expected.map_err(str::to_owned), "{query}");
        }
    }
}
