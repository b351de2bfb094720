//! The table of all routes of the admin listener. The router is built from it. A test compares it with `docs/admin-api.md`.

use std::sync::Arc;

use axum::routing::{MethodRouter, delete, get, patch, post, put};

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
        route("GET", "/", Anyone, get(page::page)),
        route("GET", "/metrics", Anyone, get(super::metrics)),
        route("GET", "/livez", Anyone, get(super::livez)),
        route("GET", "/readyz", Anyone, get(super::readyz)),
        route("GET", "/api/status", Anyone, get(super::api_status)),
        route("GET", "/api/upstreams", Anyone, get(super::api_upstreams)),
        route("GET", "/api/history", Anyone, get(super::api_history)),
        route("GET", "/api/events", Anyone, get(super::api_events)),
        route("POST", "/api/cache/purge", Token, post(control::purge)),
        route("POST", "/api/upstreams/{name}/drain", Token, post(control::drain)),
        route("POST", "/api/upstreams/{name}/restore", Token, post(control::restore)),
        route("GET", "/api/keys", Token, get(keys::list)),
        route("POST", "/api/keys", Token, post(keys::create)),
        route("PATCH", "/api/keys/{id}", Token, patch(keys::set)),
        route("DELETE", "/api/keys/{id}", Token, delete(keys::remove)),
        route("POST", "/api/keys/{id}/revoke", Token, post(keys::revoke)),
        route("POST", "/api/keys/{id}/rotate", Token, post(keys::rotate)),
        route("GET", "/api/keys/{id}/usage", Token, get(keys::usage)),
        route("PUT", "/api/keys/{id}/usage", Token, put(keys::set_usage)),
        route("POST", "/api/reload", Token, post(control::reload)),
        route("GET", "/api/log", Token, get(control::log)),
        route("PUT", "/api/log", Token, put(control::set_log)),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_lists_exactly_the_routes() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/admin-api.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (open, guarded) = page.split_once("\n## With the token\n").unwrap();
        let requests = |text: &str, needs_token| {
            let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
            let paths = rows.filter(|request| request.contains(" /"));
            paths.map(|path| (path.replace('<', "{").replace('>', "}"), needs_token)).collect::<Vec<_>>()
        };
        let documented: Vec<_> = [requests(open, false), requests(guarded, true)].concat();
        let routes = all().into_iter().map(|r| (format!("{} {}", r.verb, r.path), r.access == Access::Token));
        assert_eq!(BTreeSet::from_iter(documented), routes.collect());
    }
}
