//! The API key of a request: in the path, in `Authorization: Bearer`, in `X-Api-Key` or, if `server.key_in_query` is set,
//! in the query. The key is the raw text at its place, never decoded, because decoding could add a `/`.

use hyper::header::HeaderName;

use super::Front;
use super::fields::Fields;

/// A field whose value is the key.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-api-key");

/// Returns the API key in a path to which JSON-RPC calls are sent: `/v3/<API_KEY>`, or with the slash at the end that
/// client libraries append. Empty for `/` and `/v3`, where the key is elsewhere. `None` for any other path.
pub(super) fn in_path(path: &str) -> Option<&str> {
    if path == "/" || path == "/v3" {
        return Some("");
    }
    let rest = path.strip_prefix("/v3/")?;
    let key = rest.strip_suffix('/').filter(|key| !key.is_empty()).unwrap_or(rest);
    (!key.contains('/')).then_some(key)
}

/// Returns the key of a request that has the key `in_path`, or an empty one, in its path. Empty if there is none. `None` if
/// the request names two keys that differ, unless no key is needed.
pub(super) fn of<'a>(
    front: &Front,
    in_path: &'a str,
    query: Option<&'a str>,
    fields: &'a (impl Fields + ?Sized),
) -> Option<&'a str> {
    const SCHEME: usize = "Bearer ".len();
    let bearer = fields.all("authorization").filter_map(|value| {
        let (scheme, token) = value.split_at_checked(SCHEME)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
    });
    let query = query.filter(|_| front.config.server.key_in_query).unwrap_or_default();
    let in_query = query.split('&').filter_map(|pair| pair.strip_prefix("api-key=").map(str::as_bytes));
    let all =
        std::iter::once(in_path.as_bytes()).chain(bearer).chain(fields.all("x-api-key")).chain(in_query);
    let mut all = all.filter(|key| !key.is_empty());
    let key = all.next().unwrap_or_default();
    let is_one = all.all(|other| other == key) || front.gateway.is_open();
    is_one.then(|| str::from_utf8(key).unwrap_or_default())
}
