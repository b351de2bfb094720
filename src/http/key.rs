//! The API key of a request: in the path, in `Authorization: Bearer`, in `X-Api-Key` or, if `server.key_in_query` is set,
//! in the query. The key is the raw text at its place, never decoded, because decoding could add a `/`.

use hyper::Uri;
use hyper::header::HeaderMap;

use super::Front;
use super::fields;

/// Returns the key that a request names. Empty if there is none. `None` if the request names two that differ, unless no key
/// is needed.
pub(super) fn of<'a>(front: &Front, uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    const SCHEME: usize = "Bearer ".len();
    let in_path = uri.path().strip_prefix("/v3/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let bearer = fields::all(headers, "authorization").filter_map(|value| {
        let (scheme, token) = value.split_at_checked(SCHEME)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
    });
    let query = uri.query().filter(|_| front.config.now().server.key_in_query).unwrap_or_default();
    let in_query = query.split('&').filter_map(|pair| pair.strip_prefix("api-key=").map(str::as_bytes));
    let all = std::iter::once(in_path.as_bytes())
        .chain(bearer)
        .chain(fields::all(headers, "x-api-key"))
        .chain(in_query);
    let mut all = all.filter(|key| !key.is_empty());
    let key = all.next().unwrap_or_default();
    let is_one = all.all(|other| other == key) || front.gateway.is_open();
    is_one.then(|| str::from_utf8(key).unwrap_or_default())
}
