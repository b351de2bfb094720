//! The requests of one connection that hyper reads.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use h2::Reason;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response};

use super::connection_activity::{ConnectionActivity, PacedBody};
use super::ends::Ends;
use super::streams::Streams;
use super::summary::Summary;
use super::{Front, serve};

/// All that the requests of one connection are served with.
pub(super) struct Requests {
    pub(super) front: Arc<Front>,
    pub(super) rest: axum::Router,
    pub(super) client: Option<IpAddr>,
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) ends: Ends,
    /// The places of HTTP/2's requests, where that is spoken.
    pub(super) streams: Option<Arc<Streams>>,
}

impl Requests {
    /// Answers a request. Its head is dropped before this returns, because the future may wait: over HTTP/2 for its turn, and
    /// always for the body.
    ///
    /// # Errors
    /// The stream is refused: nothing of it was served, and the client may send it again (RFC 9113, 8.7).
    pub(super) fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<PacedBody>, h2::Error>> + use<> {
        let begun = self.begin(request);
        async move { Ok(begun.ok_or(Reason::REFUSED_STREAM)?.await) }
    }

    /// Begins to serve a request, unless there are too many. Boxed, so that a refused one is small.
    fn begin(
        &self,
        request: Request<Incoming>,
    ) -> Option<Pin<Box<dyn Future<Output = Response<PacedBody>> + Send>>> {
        let mut guard = self.activity.begin();
        let (head, body) = request.into_parts();
        let summary = Summary::of(&self.front, self.client, &head);
        if let Some(streams) = &self.streams {
            let has_body = !body.is_end_stream();
            guard.hold(streams.admit(&self.front, &self.activity, &summary, has_body)?);
        }
        let ends = self.streams.is_none().then(|| self.ends.clone());
        let (front, rest) = (Arc::clone(&self.front), self.rest.clone());
        Some(Box::pin(async move {
            let mut response = serve(&front, &rest, summary, body).await;
            if ends.is_some_and(|ends| ends.answer_is_last()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            guard.answer(response)
        }))
    }
}
