//! The header fields of a request that slotfront uses.

use std::net::IpAddr;

use super::accept_encoding::Accepted;
use super::fields::{FIELD_BYTES, Fields, cut, elements};
use super::request_id::RequestId;
use super::{Front, client_ip, trace_headers};
use crate::telemetry::Trace;

/// The sender of a request, and the form in which the sender wants the answer.
pub(super) struct ClientInfo {
    /// The client's address. Behind trusted proxies this is the address that the proxies report. `None` if the address
    /// is unknown.
    pub(super) address: Option<IpAddr>,
    /// The `Origin` header of a browser, cut to [`FIELD_BYTES`].
    pub(super) origin: Option<Box<str>>,
    /// The id of the request, for the response and the logs.
    pub(super) id: RequestId,
    /// The caller's trace context.
    pub(super) trace: Trace,
    /// The content codings that the client accepts.
    pub(super) accepts: Accepted,
    /// True if the request has `Cache-Control: no-cache` (RFC 9111, 5.2.1.4). Such a request bypasses the cache if the
    /// plan allows that.
    pub(super) no_cache: bool,
}

impl ClientInfo {
    /// Reads the header fields of a request. `peer` is the address of the client or its proxy.
    pub(super) fn of(front: &Front, peer: Option<IpAddr>, fields: &(impl Fields + ?Sized)) -> Self {
        let origin = fields.first("origin").and_then(|origin| str::from_utf8(origin).ok());
        Self {
            address: client_ip::of(front, peer, fields),
            origin: origin.map(|origin| cut(origin, FIELD_BYTES).into()),
            id: RequestId::of(fields),
            trace: trace_headers::caller(fields),
            accepts: Accepted::of(fields),
            no_cache: fields
                .all("cache-control")
                .flat_map(elements)
                .any(|directive| directive.eq_ignore_ascii_case(b"no-cache")),
        }
    }
}

/// Returns true for the three content types that a node accepts, in upper or lower case.
pub(super) fn is_json(media_type: &[u8]) -> bool {
    ["application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"]
        .iter()
        .any(|accepted| media_type.eq_ignore_ascii_case(accepted.as_bytes()))
}
