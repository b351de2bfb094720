//! The service that answers the requests of one connection: the router, and what all responses have.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use futures_util::future::Either;
use h2::Reason;
use hyper::body::Incoming;
use hyper::header::{ACCESS_CONTROL_REQUEST_HEADERS, CONNECTION, HeaderValue};
use hyper::service::Service;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;

use super::activity::PacedBody;
use super::client::{FIELD_BYTES, REQUEST_ID};
use super::fields::{has_one_host, is_readable};
use super::visit::{Connection, Refused, Visit};
use super::{cors, routes};
use crate::subscribe::SocketClient;

pub(super) struct ConnectionService {
    pub(super) connection: Arc<Connection>,
    pub(super) router: TowerToHyperService<Router>,
    /// The WebSocket that the connection becomes, once its request is answered.
    pub(super) upgraded: Mutex<Option<(OnUpgrade, Arc<SocketClient>)>>,
}

impl ConnectionService {
    /// Answers a request.
    ///
    /// # Errors
    /// The stream is refused, because there are too many HTTP/2 requests, or too many on this connection without a
    /// valid key. The client may send the request again (RFC 9113, 8.7).
    pub(super) fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<PacedBody>, h2::Error>> {
        let upgrade = hyper::upgrade::on(&mut request);
        let visit = Arc::new(Visit::begin(&self.connection, &request));
        let wanted = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS);
        let wanted = wanted.filter(|names| names.len() <= FIELD_BYTES).map(HeaderValue::as_bytes);
        let wanted = wanted.and_then(|names| HeaderValue::from_bytes(names).ok());
        request.extensions_mut().insert(Arc::clone(&visit));
        let answer = match unreadable(&request) {
            Some(refusal) => Either::Left(ready(Ok::<_, Infallible>(refusal))),
            None => Either::Right(self.router.call(request)),
        };
        async move {
            let response = answer.await.unwrap_or_else(|never| match never {});
            self.finish(response, &visit, upgrade, wanted)
        }
    }

    /// Returns `response` with what all responses have.
    fn finish(
        &self,
        mut response: Response<Body>,
        visit: &Visit,
        upgrade: OnUpgrade,
        wanted: Option<HeaderValue>,
    ) -> Result<Response<PacedBody>, h2::Error> {
        let connection = &self.connection;
        if response.extensions_mut().remove::<Refused>().is_some() {
            return Err(Reason::REFUSED_STREAM.into());
        }
        if let Some(client) = response.extensions_mut().remove::<Arc<SocketClient>>() {
            connection.place.show_key();
            *self.upgraded.lock() = Some((upgrade, client));
        } else if connection.http2_permits.is_none() && connection.phases.notice.is_triggered() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, visit.client.id.header());
        let origin = visit.client.origin.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok());
        cors::apply(&connection.front.config.now().server.cors_origins, origin.as_ref(), wanted, headers);
        Ok(Arc::clone(&visit.guard).answer(response))
    }
}

/// Returns the refusal of a request whose head two readers could understand differently.
fn unreadable(request: &Request<Incoming>) -> Option<Response<Body>> {
    if !has_one_host(request.version(), request.headers()) {
        return Some(routes::wrong_host());
    }
    (!is_readable(request.headers())).then(routes::wrong_coding)
}
