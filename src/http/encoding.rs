//! Compression of answers, when the client asks for it and the body is worth it. A node never compresses.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Body as _;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue, VARY};

use super::fields::Fields;
use super::reply::Reply;
use crate::cache::WORTH_BYTES;
use crate::coding::Coding;

/// Above this a body is sent as it is: it is longer than any block, so a batch of many, and compressing it would hold a
/// copy of it and a core for a tenth of a second and more.
const TOO_LONG_BYTES: usize = 16 * 1024 * 1024;
/// Work on longer bodies leaves the async workers: compressing 64 KiB takes some 200 µs.
const OFF_WORKER_BYTES: usize = 64 * 1024;

/// The better one of ours that the client takes, by `Accept-Encoding` (RFC 9110, 12.5.3); a quality of 0 refuses, other
/// qualities do not order.
pub fn accepted(fields: &(impl Fields + ?Sized)) -> Option<Coding> {
    let accepts = |wanted: Coding| {
        let codings = fields.all("accept-encoding").filter_map(|value| str::from_utf8(value).ok());
        codings.flat_map(|value| value.split(',')).any(|coding| {
            let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
            let refused = parameters.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0_f32));
            name.trim().eq_ignore_ascii_case(wanted.as_str()) && !refused
        })
    };
    [Coding::Zstd, Coding::Gzip].into_iter().find(|coding| accepts(*coding))
}

/// Whether a body of so many bytes is worth compressing.
pub(super) fn is_worth(bytes: usize) -> bool {
    (WORTH_BYTES..=TOO_LONG_BYTES).contains(&bytes)
}

/// The coding that `reply` is still to be brought into, if that is worth it.
pub(super) fn wanted(accepted: Option<Coding>, reply: &Reply) -> Option<Coding> {
    accepted.filter(|_| reply.coding.is_none() && is_worth(reply.body.len()))
}

/// Brings the reply into `coding`.
pub(super) async fn encode(coding: Coding, reply: &mut Reply) {
    if let Some(encoded) = encoded(coding, reply.body.joined()).await {
        reply.body = encoded.into();
        reply.coding = Some(coding);
    }
}

async fn encoded(coding: Coding, plain: Bytes) -> Option<Bytes> {
    let long = plain.len() > OFF_WORKER_BYTES;
    let work = move || coding.encode(&plain);
    if long { tokio::task::spawn_blocking(work).await.ok().flatten() } else { work() }
}

/// The response in the coding that the client takes, if that is worth it.
pub async fn apply(accepted: Option<Coding>, mut response: Response<Body>) -> Response<Body> {
    let length = response.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    if !length.is_some_and(is_worth) {
        return response;
    }
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    let Some(coding) = accepted else { return response };
    let (mut head, body) = response.into_parts();
    let Ok(plain) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Response::from_parts(head, Body::empty());
    };
    let Some(encoded) = encoded(coding, plain.clone()).await else {
        return Response::from_parts(head, Body::from(plain));
    };
    head.headers.remove(CONTENT_LENGTH);
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.as_str()));
    Response::from_parts(head, Body::from(encoded))
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;
    use hyper::header::ACCEPT_ENCODING;

    use super::*;

    #[test]
    fn the_client_chooses() {
        for (header, expected) in [
            ("", None),
            ("br", None),
            ("gzip, deflate", Some(Coding::Gzip)),
            ("GZIP;q=0.5", Some(Coding::Gzip)),
            ("gzip;q=0", None),
            ("gzip, zstd", Some(Coding::Zstd)),
            ("zstd;q=0, gzip", Some(Coding::Gzip)),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(header))]);
            assert_eq!(accepted(&headers), expected, "{header}");
        }
    }

    #[tokio::test]
    async fn a_compressed_answer_is_the_same_answer() {
        let plain = "0123456789".repeat(20_000);
        for coding in Coding::ALL {
            let response = apply(Some(coding), Response::new(Body::from(plain.clone()))).await;
            assert!(response.headers().contains_key(CONTENT_ENCODING));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let unpacked = if coding == Coding::Zstd {
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
        let response = apply(None, Response::new(Body::from("0".repeat(9000)))).await;
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
            let plain = vec![b' '; bytes];
            let response = apply(Some(Coding::Zstd), Response::new(Body::from(plain))).await;
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), compressed, "{bytes}");
        }
    }
}
