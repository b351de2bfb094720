//! Reads the body of a request that hyper serves, within `server.max_body` bytes and `server.body_timeout`. The check
//! for UTF-8 and the response to a late body serve the fast path, too.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;

use super::Front;
use super::reply::HttpReply;
use crate::chunks::{BodyBuffer, OverLimit};

/// Reads the whole body of a request.
///
/// # Errors
/// The body is too long, ends early, or takes too long. The error is a refusal that closes the connection, because the
/// start of the next request is unknown.
pub(super) async fn read(front: &Front, mut body: Incoming) -> Result<Bytes, Box<HttpReply>> {
    let server = &front.config.server;
    let mut buffer = BodyBuffer::new(server.max_body);
    let refusal = |status, why: &'static str| Box::new(HttpReply::text(status, why).last());
    let reading = async {
        while let Some(frame) = body.frame().await {
            let early = |_| refusal(StatusCode::BAD_REQUEST, "the request body ended early\n");
            if let Ok(chunk) = frame.map_err(early)?.into_data() {
                buffer.push(chunk).map_err(|OverLimit| {
                    refusal(StatusCode::PAYLOAD_TOO_LARGE, "request body size exceeds allowed maximum")
                })?;
            }
        }
        Ok(buffer.finish())
    };
    tokio::time::timeout(server.body_timeout, reading).await.unwrap_or_else(|_| Err(Box::new(late())))
}

/// Returns the refusal of a body that took too long.
pub(super) fn late() -> HttpReply {
    HttpReply::text(StatusCode::REQUEST_TIMEOUT, "the request body took too long\n").last()
}

/// Returns the refusal that a node sends for a body that is not UTF-8. `None` if the body is UTF-8.
pub(super) fn refuse_invalid_utf8(body: &[u8]) -> Option<HttpReply> {
    let at = str::from_utf8(body).err()?.valid_up_to();
    let why = format!("utf-8 encoding error at byte {at} in request body");
    Some(HttpReply::text(StatusCode::BAD_REQUEST, why))
}
