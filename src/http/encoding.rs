//! Compression of answers, when the client asks for it and the body is worth it. A node never compresses.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Body as _;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue, VARY};

use super::fields::Fields;
use super::reply::Reply;

/// Below this a compressed answer saves less than a packet and costs more than sending it.
const WORTH_BYTES: u64 = 4 * 1024;
/// Above this a body is sent as it is: it is longer than any block, so a batch of many, and compressing it would hold a
/// copy of it and a core for a tenth of a second and more.
const TOO_LONG_BYTES: u64 = 16 * 1024 * 1024;
/// Work on longer bodies leaves the async workers: compressing 64 KiB takes some 200 µs.
const OFF_WORKER_BYTES: usize = 64 * 1024;
/// Level 3 of either format: most of the gain at a tenth of the cost of the highest.
const LEVEL: u32 = 3;

/// The encoding that a client takes, the better one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// RFC 8878.
    Zstd,
    /// RFC 1952.
    Gzip,
    /// None of ours.
    Identity,
}

impl Accepted {
    /// Reads `Accept-Encoding` (RFC 9110, 12.5.3); a quality of 0 refuses, other qualities do not order.
    pub fn of(fields: &(impl Fields + ?Sized)) -> Self {
        let accepts = |wanted: &str| {
            let codings = fields.all("accept-encoding").filter_map(|value| str::from_utf8(value).ok());
            codings.flat_map(|value| value.split(',')).any(|coding| {
                let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
                let refused = parameters.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0_f32));
                name.trim().eq_ignore_ascii_case(wanted) && !refused
            })
        };
        if accepts("zstd") {
            Self::Zstd
        } else if accepts("gzip") {
            Self::Gzip
        } else {
            Self::Identity
        }
    }
}

impl Accepted {
    /// As it stands in `Content-Encoding`; none for what is sent as it is.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Zstd => Some("zstd"),
            Self::Gzip => Some("gzip"),
            Self::Identity => None,
        }
    }
}

/// Whether a body of so many bytes is worth compressing.
fn is_worth(bytes: u64) -> bool {
    (WORTH_BYTES..=TOO_LONG_BYTES).contains(&bytes)
}

/// The reply in the encoding that the client takes, if that is worth it.
pub(super) async fn encode(accepted: Accepted, reply: &mut Reply) {
    if !is_worth(reply.body.len() as u64) {
        return;
    }
    reply.varies = true;
    let Some(name) = accepted.name() else { return };
    // Boxed: most replies are too short to come here.
    let compressed = Box::pin(compressed(accepted, reply.body.joined())).await;
    if let Some(compressed) = compressed {
        reply.body = compressed.into();
        reply.coding = Some(name);
    }
}

async fn compressed(accepted: Accepted, plain: Bytes) -> Option<Bytes> {
    let long = plain.len() > OFF_WORKER_BYTES;
    let work = move || compress(accepted, &plain);
    if long { tokio::task::spawn_blocking(work).await.ok().flatten() } else { work() }
}

/// The response in the encoding that the client takes, if that is worth it.
pub async fn apply(accepted: Accepted, mut response: Response<Body>) -> Response<Body> {
    if !response.body().size_hint().exact().is_some_and(is_worth) {
        return response;
    }
    // Said whichever encoding it is: another client's may differ (RFC 9110, 12.5.5).
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    let Some(name) = accepted.name() else { return response };
    let (mut head, body) = response.into_parts();
    let Ok(plain) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Response::from_parts(head, Body::empty());
    };
    let Some(compressed) = compressed(accepted, plain.clone()).await else {
        return Response::from_parts(head, Body::from(plain));
    };
    head.headers.remove(CONTENT_LENGTH);
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
    Response::from_parts(head, Body::from(compressed))
}

fn compress(accepted: Accepted, plain: &[u8]) -> Option<Bytes> {
    use std::io::Write;
    match accepted {
        Accepted::Zstd => zstd::bulk::compress(plain, LEVEL.cast_signed()).ok().map(Bytes::from),
        Accepted::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(LEVEL));
            gzip.write_all(plain).ok()?;
            gzip.finish().ok().map(Bytes::from)
        }
        Accepted::Identity => None,
    }
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;
    use hyper::header::ACCEPT_ENCODING;

    use super::*;

    #[test]
    fn the_client_chooses() {
        for (header, expected) in [
            ("", Accepted::Identity),
            ("br", Accepted::Identity),
            ("gzip, deflate", Accepted::Gzip),
            ("GZIP;q=0.5", Accepted::Gzip),
            ("gzip;q=0", Accepted::Identity),
            ("gzip, zstd", Accepted::Zstd),
            ("zstd;q=0, gzip", Accepted::Gzip),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(header))]);
            assert_eq!(Accepted::of(&headers), expected, "{header}");
        }
    }

    #[tokio::test]
    async fn a_compressed_answer_is_the_same_answer() {
        let plain = "0123456789".repeat(20_000);
        for accepted in [Accepted::Zstd, Accepted::Gzip] {
            let response = apply(accepted, Response::new(Body::from(plain.clone()))).await;
            assert!(response.headers().contains_key(CONTENT_ENCODING));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let unpacked = if accepted == Accepted::Zstd {
                zstd::stream::decode_all(&body[..]).unwrap()
            } else {
                let mut text = Vec::new();
                std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&body[..]), &mut text).unwrap();
                text
            };
            assert!(unpacked == plain.as_bytes() && body.len() < plain.len() / 10);
        }
    }

    #[tokio::test]
    async fn a_long_answer_varies_even_when_it_is_sent_plain() {
        let response = apply(Accepted::Identity, Response::new(Body::from("0".repeat(9000)))).await;
        assert_eq!(response.headers()[VARY], "accept-encoding");
        assert!(!response.headers().contains_key(CONTENT_ENCODING));
    }

    #[tokio::test]
    async fn short_answers_and_those_of_many_blocks_stay_as_they_are() {
        for (bytes, compressed) in [
            (WORTH_BYTES - 1, false),
            (WORTH_BYTES, true),
            (TOO_LONG_BYTES, true),
            (TOO_LONG_BYTES + 1, false),
        ] {
            let plain = vec![b' '; usize::try_from(bytes).unwrap()];
            let response = apply(Accepted::Zstd, Response::new(Body::from(plain))).await;
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), compressed, "{bytes}");
        }
    }
}
