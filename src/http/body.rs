//! Reads the body of a request that hyper serves, within `server.max_body` bytes and `server.body_timeout`. The check
//! for UTF-8 and the response to a late body serve the fast path, too.
//!
//! A body that the route does not need is read as well. If it stayed unread, hyper would close the connection without
//! notice. The TCP reset might then reach the client before the response.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};

use super::Front;
use super::reply::HttpReply;
use crate::chunks::{BodyBuffer, OverLimit};

/// Reads the whole body of a request.
///
/// # Errors
/// The body is too long, ends early, or takes too long. The error is a refusal that closes the connection, because the
/// start of the next request is unknown.
pub(super) async fn read(front: &Front, body: Incoming) -> Result<Bytes, Box<HttpReply>> {
    let refusal = |error| match error {
        BodyError::OverLimit => {
            let why = "request body size exceeds allowed maximum";
            HttpReply::text(StatusCode::PAYLOAD_TOO_LARGE, why).last()
        }
        BodyError::EndedEarly => {
            HttpReply::text(StatusCode::BAD_REQUEST, "the request body ended early\n").last()
        }
        BodyError::TimedOut => late(),
    };
    buffer(front, body).await.map_err(|error| Box::new(refusal(error)))
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

/// Reads and discards the request's body, then returns `response`. The response closes the connection if the body could
/// not be read to its end.
pub(super) async fn discard_before(
    front: &Front,
    body: Incoming,
    mut response: Response<Body>,
) -> Response<Body> {
    if !discard(front, body).await {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads and discards the request's body. Returns false if the body cannot be read to its end within the limits.
pub(super) async fn discard(front: &Front, body: Incoming) -> bool {
    body.is_end_stream() || buffer(front, body).await.is_ok()
}

/// The reason why a body could not be read.
enum BodyError {
    OverLimit,
    EndedEarly,
    TimedOut,
}

async fn buffer(front: &Front, mut body: Incoming) -> Result<Bytes, BodyError> {
    let server = &front.config.server;
    let mut buffer = BodyBuffer::new(server.max_body);
    let reading = async {
        while let Some(frame) = body.frame().await {
            if let Ok(chunk) = frame.map_err(|_| BodyError::EndedEarly)?.into_data() {
                buffer.push(chunk).map_err(|OverLimit| BodyError::OverLimit)?;
            }
        }
        Ok(buffer.finish())
    };
    tokio::time::timeout(server.body_timeout, reading).await.unwrap_or(Err(BodyError::TimedOut))
}
