//! What the hot route takes from a request's head.

use std::net::IpAddr;

use super::fields::{Fields, elements};
use super::request_id::RequestId;
use super::{Front, client_ip, encoding, trace_headers};
use crate::coding::Coding;
use crate::telemetry::Trace;

/// Who asks, and how the answer is to be.
pub(super) struct Caller {
    /// Whose address it is, behind trusted proxies.
    pub(super) client: IpAddr,
    /// The page that a browser calls from.
    pub(super) origin: Option<Box<str>>,
    /// The request's id.
    pub(super) id: RequestId,
    /// Its place in its caller's trace.
    pub(super) trace: Trace,
    /// The content coding that it takes best.
    pub(super) accepts: Option<Coding>,
    /// Whether the cache is to be passed by, if the plan allows it (RFC 9111, 5.2.1.4).
    pub(super) no_cache: bool,
}

impl Caller {
    /// What `fields` say, of a request from `peer`.
    pub(super) fn of(front: &Front, peer: IpAddr, fields: &(impl Fields + ?Sized)) -> Self {
        let origin = fields.first("origin").and_then(|origin| str::from_utf8(origin).ok());
        Self {
            client: client_ip::client_ip(peer, fields, &front.config.server.trusted_proxies),
            origin: origin.map(Box::from),
            id: RequestId::of(fields),
            trace: trace_headers::caller(fields),
            accepts: encoding::accepted(fields),
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
