//! The table of all routes of the admin listener. The router is built from it. A test compares it with `openapi.json`.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post, put};

use super::{AdminState, control, keys, page};

/// The callers that a route accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// All callers that can reach the listener.
    Anyone,
    /// Callers that send the bearer token `auth.admin_token`.
    Token,
}

/// A route: one HTTP method on one path.
pub(super) struct Route {
    /// The HTTP method in lower case, as in `openapi.json`.
    #[cfg_attr(not(test), expect(dead_code, reason = "the router learns it from the handler"))]
    pub(super) verb: &'static str,
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) handler: MethodRouter<Arc<AdminState>>,
}

pub(super) fn all() -> Vec<Route> {
    use Access::{Anyone, Token};
    let route = |verb, path, access, handler| Route { verb, path, access, handler };
    vec![
        route("get", "/", Anyone, get(page::page)),
        route("get", "/metrics", Anyone, get(super::metrics)),
        route("get", "/livez", Anyone, get(super::livez)),
        route("get", "/readyz", Anyone, get(super::readyz)),
        route("get", "/api/status", Anyone, get(super::api_status)),
        route("get", "/api/upstreams", Anyone, get(super::api_upstreams)),
        route("get", "/api/openapi.json", Anyone, get(super::openapi)),
        route("post", "/api/cache/purge", Token, post(control::purge)),
        route("post", "/api/upstreams/{name}/drain", Token, post(control::drain)),
        route("post", "/api/upstreams/{name}/restore", Token, post(control::restore)),
        route("get", "/api/keys", Token, get(keys::list)),
        route("post", "/api/keys", Token, post(keys::create)),
        route("post", "/api/keys/{id}/revoke", Token, post(keys::revoke)),
        route("post", "/api/keys/{id}/rotate", Token, post(keys::rotate)),
        route("get", "/api/keys/{id}/usage", Token, get(keys::usage)),
        route("post", "/api/reload", Token, post(control::reload)),
        route("get", "/api/log", Token, get(control::log)),
        route("put", "/api/log", Token, put(control::set_log)),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the routes of `openapi.json`: HTTP method, path, and true if the route needs the token.
    fn documented() -> BTreeSet<(String, String, bool)> {
        let document: serde_json::Value = serde_json::from_str(super::super::OPENAPI).unwrap();
        assert_eq!(
            (&document["openapi"], &document["info"]["version"]),
            (&"3.1.0".into(), &env!("CARGO_PKG_VERSION").into())
        );
        let mut found = BTreeSet::new();
        for (path, verbs) in document["paths"].as_object().unwrap() {
            for (verb, operation) in
                verbs.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters")
            {
                assert!(
                    operation["summary"].is_string() && operation["responses"].is_object(),
                    "{verb} {path}"
                );
                found.insert((verb.clone(), path.clone(), operation["security"].is_array()));
            }
        }
        found
    }

    #[test]
    fn openapi_lists_exactly_the_routes() {
        let routes =
            all().into_iter().map(|r| (r.verb.to_owned(), r.path.to_owned(), r.access == Access::Token));
        assert_eq!(documented(), routes.collect());
    }

    #[test]
    fn openapi_references_resolve() {
        let document: serde_json::Value = serde_json::from_str(super::super::OPENAPI).unwrap();
        let text = document.to_string();
        for (_, rest) in text.match_indices("\"$ref\":\"#").map(|(at, found)| text.split_at(at + found.len()))
        {
            let pointer = rest.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
