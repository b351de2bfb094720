//! The hyper service that answers the requests of one connection.

use std::net::IpAddr;
use std::sync::Arc;

use h2::Reason;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response};

use super::connection_activity::{ConnectionActivity, PacedBody, RequestGuard};
use super::shutdown::Phases;
use super::streams::Streams;
use super::summary::Summary;
use super::{Front, serve};

/// The parts that the requests of one connection share.
pub(super) struct ConnectionService {
    pub(super) front: Arc<Front>,
    pub(super) routes: axum::Router,
    pub(super) client: Option<IpAddr>,
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) phases: Arc<Phases>,
    /// The permits that limit concurrent HTTP/2 requests. `None` over HTTP/1.1.
    pub(super) streams: Option<Arc<Streams>>,
}

impl ConnectionService {
    /// Answers a request. The request's head is dropped before the future is returned, because the future may wait
    /// for a long time.
    ///
    /// # Errors
    /// The stream is refused, because there are too many HTTP/2 requests, or too many on this connection without a
    /// valid key. The client may send the request again (RFC 9113, 8.7).
    pub(super) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<PacedBody>, h2::Error>> {
        let (head, body) = request.into_parts();
        // Boxed, so that a refused request and an idle connection take little memory.
        let begun =
            self.begin(&head, &body).map(|(summary, guard)| Box::pin(self.serve(summary, guard, body)));
        async move { Ok(begun.ok_or(Reason::REFUSED_STREAM)?.await) }
    }

    /// Returns two values: the part of the request's head that is kept, and the guard that marks the request's
    /// end. `None` if there are too many HTTP/2 requests, or too many on this connection without a valid key.
    fn begin(&self, head: &hyper::http::request::Parts, body: &Incoming) -> Option<(Summary, RequestGuard)> {
        let mut guard = self.activity.begin();
        let summary = Summary::of(&self.front, self.client, head);
        if let Some(streams) = &self.streams {
            guard.hold(streams.admit(&self.front, &self.activity, &summary, !body.is_end_stream())?);
        }
        Some((summary, guard))
    }

    async fn serve(
        self: Arc<Self>,
        summary: Summary,
        guard: RequestGuard,
        body: Incoming,
    ) -> Response<PacedBody> {
        let mut response = serve(&self.front, &self.routes, summary, body).await;
        if self.streams.is_none() && self.phases.answer_is_last() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        guard.answer(response)
    }
}
