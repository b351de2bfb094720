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

use super::{Front, text};
use crate::chunks::{Gather, OverLimit};

/// The body as UTF-8; else a node's refusal.
pub(super) async fn read(front: &Front, body: Incoming) -> Result<Bytes, Response<Body>> {
    let body = gather(front, body).await.map_err(|broken| {
        let (status, why) = match broken {
            Broken::OverLimit => (StatusCode::PAYLOAD_TOO_LARGE, "request body size exceeds allowed maximum"),
            Broken::Off => (StatusCode::BAD_REQUEST, "the request body broke off\n"),
            Broken::Late => (StatusCode::REQUEST_TIMEOUT, "the request body took too long\n"),
        };
        last(text(status, why))
    })?;
    if let Err(error) = str::from_utf8(&body) {
        let at = error.valid_up_to();
        let why = format!("utf-8 encoding error at byte {at} in request body");
        return Err(text(StatusCode::BAD_REQUEST, why));
    }
    Ok(body)
}

/// `response`, once the body that it does not need has passed; the connection's last if it does not.
pub(super) async fn pass_over(front: &Front, body: Incoming, response: Response<Body>) -> Response<Body> {
    if body.is_end_stream() || gather(front, body).await.is_ok() { response } else { last(response) }
}

/// Says that the connection ends with this answer, since what follows the rest of the body cannot be found.
fn last(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Why a body could not be read.
enum Broken {
    OverLimit,
    Off,
    Late,
}

async fn gather(front: &Front, mut body: Incoming) -> Result<Bytes, Broken> {
    let server = &front.config.server;
    let mut gather = Gather::new(server.max_body);
    let reading = async {
        while let Some(frame) = body.frame().await {
            if let Ok(chunk) = frame.map_err(|_| Broken::Off)?.into_data() {
                gather.push(chunk).map_err(|OverLimit| Broken::OverLimit)?;
            }
        }
        Ok(gather.finish())
    };
    tokio::time::timeout(server.body_timeout, reading).await.unwrap_or(Err(Broken::Late))
}
