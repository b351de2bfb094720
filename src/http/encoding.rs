//! Compresses HTTP responses that are neither too short nor too long, if the client accepts a coding. Nodes send their
//! responses to slotfront uncompressed.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Body as _;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue, VARY};

use super::body_parts::BodyParts;
use crate::cache::Compressor;
use crate::coding::{self, Coding};

/// The longest wait for the compression of a response. After this time the response is sent uncompressed.
const COMPRESSION_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns `plain` compressed with `coding`. `None` if no permit to compress is free, or if the compression fails or
/// takes too long.
pub(super) async fn encoded(compressor: &Compressor, coding: Coding, plain: BodyParts) -> Option<Bytes> {
    let work = compressor.compress(plain.len(), move || coding.encode(&plain.joined()));
    tokio::time::timeout(COMPRESSION_TIMEOUT, work).await.ok().flatten()
}

/// Adds `Vary` to a response that is neither too short nor too long to compress, and compresses it if the client
/// accepts a coding. A response that has a `Vary` field is returned unchanged, because its coding is already decided.
pub(super) async fn apply(
    compressor: &Compressor,
    accepted: Option<Coding>,
    mut response: Response<Body>,
) -> Response<Body> {
    let length = response.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    if !length.is_some_and(coding::is_worth) || response.headers().contains_key(VARY) {
        return response;
    }
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    let Some(coding) = accepted else { return response };
    let (mut head, body) = response.into_parts();
    let Ok(plain) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Response::from_parts(head, Body::empty());
    };
    let Some(encoded) = encoded(compressor, coding, BodyParts::from(plain.clone())).await else {
        return Response::from_parts(head, Body::from(plain));
    };
    head.headers.remove(CONTENT_LENGTH);
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.as_str()));
    Response::from_parts(head, Body::from(encoded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::{TOO_LONG_BYTES, WORTH_BYTES};
    use crate::telemetry::Metrics;

    fn compressor() -> Compressor {
        Compressor::new(1, Metrics::new())
    }

    #[tokio::test]
    async fn a_compressed_answer_is_the_same_answer() {
        let plain = "0123456789".repeat(20_000);
        for coding in Coding::ALL {
            let response = apply(&compressor(), Some(coding), Response::new(Body::from(plain.clone()))).await;
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
    async fn a_long_plain_answer_varies() {
        let response = apply(&compressor(), None, Response::new(Body::from("0".repeat(9000)))).await;
        assert_eq!(response.headers()[VARY], "accept-encoding");
        assert!(!response.headers().contains_key(CONTENT_ENCODING));
    }

    #[tokio::test]
    async fn only_answers_of_a_middle_length_are_compressed() {
        // This test does not compress the longest text that is worth compressing. On a busy machine the
        // compression would exceed the timeout.
        assert!(coding::is_worth(TOO_LONG_BYTES));
        for (bytes, compressed) in
            [(WORTH_BYTES - 1, false), (WORTH_BYTES, true), (TOO_LONG_BYTES + 1, false)]
        {
            let plain = vec![b' '; bytes];
            let response = apply(&compressor(), Some(Coding::Zstd), Response::new(Body::from(plain))).await;
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), compressed, "{bytes}");
        }
    }
}
