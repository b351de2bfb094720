//! The header fields of a request, and what each request must say in them.

use hyper::Version;
use hyper::header::{HeaderMap, HeaderValue};

/// Returns the values of all fields called `name`, in order.
pub(super) fn all<'a>(
    fields: &'a HeaderMap,
    name: &'static str,
) -> impl DoubleEndedIterator<Item = &'a [u8]> {
    fields.get_all(name).iter().map(HeaderValue::as_bytes)
}

/// Returns the elements of a list field (RFC 9110, 5.6.1), without the whitespace around them.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Returns true if a request says once for which host it is, as RFC 9112 (3.2) demands since HTTP/1.1. Two readers of any
/// other head, such as a proxy and slotfront, could take it for requests to two hosts.
pub(crate) fn has_one_host(version: Version, fields: &HeaderMap) -> bool {
    let mut hosts = all(fields, "host");
    match hosts.next() {
        Some(host) => is_host(host) && hosts.next().is_none(),
        None => version != Version::HTTP_11,
    }
}

/// Returns true if `value` consists of characters that a host with its port may have (RFC 3986, 3.2.2), except the comma,
/// which joins two fields into one.
fn is_host(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_alphanumeric() || b".:-[]_~%!$&'()*+;=".contains(byte))
}

/// Returns true if the request's body has no transfer coding but chunks, which are the only one that hyper decodes.
pub(super) fn is_readable(fields: &HeaderMap) -> bool {
    let mut codings = all(fields, "transfer-encoding").flat_map(elements);
    codings.next().is_none_or(|coding| coding.eq_ignore_ascii_case(b"chunked")) && codings.next().is_none()
}

/// Returns true for the three content types that a node accepts, in upper or lower case.
pub(super) fn is_json(media_type: &[u8]) -> bool {
    ["application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"]
        .iter()
        .any(|accepted| media_type.eq_ignore_ascii_case(accepted.as_bytes()))
}
