//! One request on its way through the router, and the connection that it came on.

use std::convert::Infallible;
use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use h2::Reason;
use hyper::body::{Body, Incoming};
use hyper::header::{ACCESS_CONTROL_REQUEST_HEADERS, CONNECTION, HeaderValue};
use hyper::service::Service;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::activity::{ConnectionActivity, PacedBody, RequestGuard};
use super::client::{ClientInfo, FIELD_BYTES, REQUEST_ID};
use super::fields::{has_one_host, is_readable};
use super::keyless::KeylessPlace;
use super::permits::ConnectionPermits;
use super::reply::HttpReply;
use super::shutdown::Phases;
use super::{Front, cors, key};
use crate::error::Error;
use crate::gateway::Principal;
use crate::subscribe::SocketClient;

/// The maximum number of concurrent requests on an HTTP/2 connection that has not yet sent a valid key. After a valid
/// key only HTTP/2's own limit on streams applies.
const WITHOUT_KEY: usize = 16;

/// One connection, and what its requests share.
pub(super) struct Connection {
    pub(super) front: Arc<Front>,
    pub(super) router: TowerToHyperService<Router>,
    pub(super) place: Arc<KeylessPlace>,
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) phases: Arc<Phases>,
    /// The permits that limit concurrent HTTP/2 requests. `None` over HTTP/1.1.
    pub(super) http2_permits: Option<Arc<ConnectionPermits>>,
    /// The WebSocket that the connection becomes, once its request is answered.
    pub(super) upgraded: Mutex<Option<(OnUpgrade, Arc<SocketClient>)>>,
}

impl Connection {
    /// Answers a request.
    ///
    /// # Errors
    /// The stream is refused, because there are too many HTTP/2 requests, or too many on this connection without a
    /// valid key. The client may send the request again (RFC 9113, 8.7).
    pub(super) fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<hyper::Response<PacedBody>, h2::Error>> {
        let upgrade = hyper::upgrade::on(&mut request);
        let visit = Arc::new(Visit::begin(&self, &request));
        let wanted = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS);
        let wanted = wanted.filter(|names| names.len() <= FIELD_BYTES).map(HeaderValue::as_bytes);
        let wanted = wanted.and_then(|names| HeaderValue::from_bytes(names).ok());
        request.extensions_mut().insert(Arc::clone(&visit));
        let answer = match unreadable(&request) {
            Some(refusal) => Either::Left(ready(Ok::<_, Infallible>(refusal.into_response()))),
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
        mut response: Response,
        visit: &Visit,
        upgrade: OnUpgrade,
        wanted: Option<HeaderValue>,
    ) -> Result<hyper::Response<PacedBody>, h2::Error> {
        if response.extensions_mut().remove::<Refused>().is_some() {
            return Err(Reason::REFUSED_STREAM.into());
        }
        if let Some(client) = response.extensions_mut().remove::<Arc<SocketClient>>() {
            self.place.show_key();
            *self.upgraded.lock() = Some((upgrade, client));
        } else if self.http2_permits.is_none() && self.phases.notice.is_triggered() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, visit.client.id.header());
        let origin = visit.client.origin.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok());
        cors::apply(&self.front.config.now().server.cors_origins, origin.as_ref(), wanted, headers);
        Ok(Arc::clone(&visit.guard).answer(response))
    }
}

/// Returns the refusal of a request whose head two readers could understand differently.
fn unreadable(request: &Request<Incoming>) -> Option<HttpReply> {
    let (status, why) = if !has_one_host(request.version(), request.headers()) {
        (StatusCode::BAD_REQUEST, "expected one Host header with the name and port of this server\n")
    } else if !is_readable(request.headers()) {
        // RFC 9112, 6.1.
        (StatusCode::NOT_IMPLEMENTED, "expected no Transfer-Encoding, or chunked alone\n")
    } else {
        return None;
    };
    Some(HttpReply::text(status, why).last())
}

/// One request: an extension of it, which the handlers read.
pub(super) struct Visit {
    pub(super) client: ClientInfo,
    pub(super) started: Instant,
    pub(super) guard: Arc<RequestGuard>,
    connection: Arc<Connection>,
    is_preflight: bool,
}

/// The response to a request for which there is no place on an HTTP/2 connection.
#[derive(Clone)]
pub(super) struct Refused;

impl Visit {
    pub(super) fn begin(connection: &Arc<Connection>, request: &Request<impl Body>) -> Self {
        let (guard, started) = (connection.activity.begin(), Instant::now());
        let client = ClientInfo::of(&connection.front, connection.place.peer, request.headers());
        let is_preflight = request.method() == Method::OPTIONS && request.body().is_end_stream();
        Self { client, started, guard, connection: Arc::clone(connection), is_preflight }
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.client.address
    }

    /// Returns the caller whose key is at `uri` or in `headers`. With a valid key the connection is no stranger's.
    ///
    /// # Errors
    /// As for [`Gateway::authenticate`](crate::gateway::Gateway::authenticate).
    pub(super) fn caller(&self, uri: &Uri, headers: &HeaderMap) -> Result<Arc<Principal>, Error> {
        let gateway = &self.connection.front.gateway;
        let caller = match key::of(&self.connection.front, uri, headers) {
            Some(key) => {
                gateway.authenticate(key, self.address(), self.client.origin.as_deref(), self.started)
            }
            None => Err(gateway.refuse_two_keys(self.address())),
        };
        if caller.is_ok() {
            self.connection.place.show_key();
        }
        caller
    }

    /// Takes a place for the request, before any of its body is read.
    ///
    /// A request costs its client a few bytes, and slotfront some KiB until its answer is sent. HTTP/1.1 needs no such limit:
    /// a connection has one request at a time, and connections are limited.
    pub(super) fn admit(&self) -> Result<(), Refused> {
        let Connection { place, activity, http2_permits, .. } = &*self.connection;
        let Some(permits) = http2_permits else { return Ok(()) };
        // A browser may send many preflights before its first call. They are answered at once.
        if !self.is_preflight && !place.has_shown_key() && activity.unfinished() > WITHOUT_KEY {
            return Err(Refused);
        }
        self.guard.hold(permits.try_acquire(self.address()).ok_or(Refused)?);
        Ok(())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}
