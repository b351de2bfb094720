//! A request's body, within its bounds in bytes and in time.
//!
//! Also one that nobody wants is read: hyper would close the connection over it, unannounced, and the reset that
//! follows may reach the client before our answer.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};

use super::Front;
use super::reply::Reply;
use crate::chunks::{BodyBuffer, OverLimit};

/// The body; else a node's refusal, and the connection's last answer, since what follows cannot be found.
pub(super) async fn read(front: &Front, body: Incoming) -> Result<Bytes, Box<Reply>> {
    let refusal = |broken| match broken {
        Broken::OverLimit => {
            let why = "request body size exceeds allowed maximum";
            Reply::text(StatusCode::PAYLOAD_TOO_LARGE, why).last()
        }
        Broken::Off => Reply::text(StatusCode::BAD_REQUEST, "the request body broke off\n").last(),
        Broken::Late => late(),
    };
    buffer(front, body).await.map_err(|broken| Box::new(refusal(broken)))
}

/// The answer to a body that does not end.
pub(super) fn late() -> Reply {
    Reply::text(StatusCode::REQUEST_TIMEOUT, "the request body took too long\n").last()
}

/// A node's refusal of what is no text; nothing for what is.
pub(super) fn refusal(body: &[u8]) -> Option<Reply> {
    let at = str::from_utf8(body).err()?.valid_up_to();
    let why = format!("utf-8 encoding error at byte {at} in request body");
    Some(Reply::text(StatusCode::BAD_REQUEST, why))
}

/// `response`, once the body that it does not need has passed; the connection's last if it does not.
pub(super) async fn pass_over(front: &Front, body: Incoming, mut response: Response<Body>) -> Response<Body> {
    if !passes(front, body).await {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether a body that nobody needs has passed.
pub(super) async fn passes(front: &Front, body: Incoming) -> bool {
    body.is_end_stream() || buffer(front, body).await.is_ok()
}

/// Why a body could not be read.
enum Broken {
    OverLimit,
    Off,
    Late,
}

async fn buffer(front: &Front, mut body: Incoming) -> Result<Bytes, Broken> {
    let server = &front.config.server;
    let mut buffer = BodyBuffer::new(server.max_body);
    let reading = async {
        while let Some(frame) = body.frame().await {
            if let Ok(chunk) = frame.map_err(|_| Broken::Off)?.into_data() {
                buffer.push(chunk).map_err(|OverLimit| Broken::OverLimit)?;
            }
        }
        Ok(buffer.finish())
    };
    tokio::time::timeout(server.body_timeout, reading).await.unwrap_or(Err(Broken::Late))
}
