//! What the hot route takes from a request's head.

use std::net::IpAddr;

use super::accept_encoding::Accepted;
use super::fields::{FIELD_BYTES, Fields, cut, elements};
use super::request_id::RequestId;
use super::{Front, client_ip, trace_headers};
use crate::telemetry::Trace;

/// Who asks, and how the answer is to be.
pub(super) struct Caller {
    /// The client's address, behind trusted proxies; `None` where it is not known.
    pub(super) client: Option<IpAddr>,
    /// The page that a browser calls from.
    pub(super) origin: Option<Box<str>>,
    /// The request's id.
    pub(super) id: RequestId,
    /// Its place in its caller's trace.
    pub(super) trace: Trace,
    /// The content codings that it takes.
    pub(super) accepts: Accepted,
    /// Whether the cache is to be passed by, if the plan allows it (RFC 9111, 5.2.1.4).
    pub(super) no_cache: bool,
}

impl Caller {
    /// Reads `fields` of a request from `peer`.
    pub(super) fn of(front: &Front, peer: Option<IpAddr>, fields: &(impl Fields + ?Sized)) -> Self {
        let origin = fields.first("origin").and_then(|origin| str::from_utf8(origin).ok());
        Self {
            client: client_ip::of(front, peer, fields),
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

/// The three content types that a node takes, whole and in any case.
pub(super) fn is_json(media_type: &[u8]) -> bool {
    ["application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"]
        .iter()
        .any(|accepted| media_type.eq_ignore_ascii_case(accepted.as_bytes()))
}
