//! The HTTP client of one node. Each request is one POST, limited in time and bytes.
//!
//! Only `node` uses reqwest. Redirects are not followed, and proxies from the environment are not used.
//! Every error becomes a [`Fault`] here, so that no URL travels further.
//!
//! A node, or a balancer in front of it, may close a connection just when the next request comes. A read is then sent
//! once more, on a connection of its own (RFC 9112, 9.3.1): another kept connection may be as old as the first.

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::iter::successors;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::http::Extensions;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpInfo;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use rustls::CertificateError;
use tokio::time::Instant;

use super::body::{Body, BufferBudget, Buffered};
use super::rent_epoch::unrounded;
use super::{Fault, RawAnswer};
use crate::chunks::BodyBuffer;
use crate::config::{CaFile, PoolSettings, Secret, Upstream};
use crate::fair::CallerId;
use crate::telemetry::AttemptResult;
use crate::telemetry::trace::{Attempt, TRACEPARENT, TRACESTATE};

/// The time after which idle connections are closed. Most servers close idle connections later, and nodes never close
/// them.
const IDLE: Duration = Duration::from_secs(50);
/// The longest time for the answer to a probe, beside the time to open a connection.
const PROBE_ANSWER: Duration = Duration::from_secs(1);
/// The maximum length, in bytes, of the body of a response that is not 2xx. It may hold the error of a node. Only after the
/// whole body was read can the connection be reused.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// The longest wait for such a body.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum length, in bytes, of a block that the gateway requests for itself. The largest main-net blocks are
/// several times shorter.
pub const MAX_BLOCK_BYTES: usize = 64 << 20;

/// The maximum number of connections whose local addresses are remembered, to recognize new connections. Beyond this
/// number, all addresses are forgotten, and each connection counts as new again.
const KNOWN_CONNECTIONS: usize = 4096;

/// Whether a request is sent again if the connection on which it was sent had brought an answer before, and broke
/// without one to this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resend {
    Once,
    /// It is not, because the node may have acted on it.
    Never,
}

#[derive(Debug, Clone, Copy)]
pub struct CallBounds {
    /// The caller, of whose share of `pool.max_buffered` the answer is.
    pub caller: CallerId,
    /// The time for the call, also if it is sent again.
    pub timeout: Duration,
    /// The length of the longest answer, in bytes.
    pub longest: usize,
    pub resend: Resend,
}

/// The connections that have brought answers, by their local addresses.
#[derive(Debug, Default)]
struct Connections {
    known: Mutex<HashSet<SocketAddr>>,
    opened: AtomicU64,
}

impl Connections {
    /// Counts the connection of an answer, unless the connection has brought an answer before.
    fn note(&self, info: &HttpInfo) {
        let mut known = self.known.lock();
        if known.len() == KNOWN_CONNECTIONS && !known.contains(&info.local_addr()) {
            known.clear();
        }
        if known.insert(info.local_addr()) {
            self.opened.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns true if `error` broke a connection that has brought an answer before.
    fn include_that_of(&self, error: &reqwest::Error) -> bool {
        let mut causes = successors(error.source(), |&cause| cause.source());
        let broken = causes.find_map(|cause| cause.downcast_ref::<legacy::Error>()?.connect_info());
        let mut info = Extensions::new();
        if let Some(broken) = broken {
            broken.get_extras(&mut info);
        }
        let known = self.known.lock();
        info.get::<HttpInfo>().is_some_and(|info| known.contains(&info.local_addr()))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("upstream \"{upstream}\": {cause}")]
pub struct ClientError {
    upstream: String,
    /// The setting and what is wrong with it, without the address.
    cause: String,
}

#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    /// The client for requests that are sent again. It keeps no connection. `None` for HTTP/2, by which a node says itself
    /// which requests it has not taken, and reqwest sends those again.
    again: Option<reqwest::Client>,
    url: Secret,
    /// The client for a WebSocket and its address. `None` if the node has none.
    pub(super) socket: Option<(reqwest::Client, Secret)>,
    /// The longest time for a request of a probe. A slower node counts as unreachable.
    pub(crate) probe_timeout: Duration,
    budget: Arc<BufferBudget>,
    connections: Connections,
}

impl Client {
    /// Creates a client from the settings `upstream` and `pool`.
    ///
    /// # Errors
    /// A header or the address is invalid, or the `ca_file` cannot be used.
    pub fn new(
        upstream: &Upstream,
        pool: &PoolSettings,
        budget: Arc<BufferBudget>,
    ) -> Result<Self, ClientError> {
        let wrong = |cause: String| ClientError { upstream: upstream.name.clone(), cause };
        let mut headers = HeaderMap::new();
        for (header, value) in &upstream.headers {
            let bad = || wrong(format!("headers.{header}: not a valid HTTP header name or value"));
            let mut value = HeaderValue::from_str(value.expose()).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.insert(HeaderName::try_from(header.as_str()).map_err(|_| bad())?, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("zstd, gzip"));
        // One crypto provider serves the whole process. A second installation fails and changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let roots = match &upstream.ca_file {
            None => Vec::new(),
            Some(CaFile { path, pem }) => reqwest::Certificate::from_pem_bundle(pem.as_bytes())
                .map_err(|_| wrong(format!("ca_file {}: no PEM certificates", path.display())))?,
        };
        // Every client would read all certificates of the system, some 20 ms each, and no redirect is followed from here.
        let is_plain = [Some(&upstream.url), upstream.ws_url.as_ref()]
            .into_iter()
            .flatten()
            .all(|url| url.expose().starts_with("http:") || url.expose().starts_with("ws:"));
        let build = |http2: bool, kept: usize| {
            let http = reqwest::Client::builder()
                .default_headers(headers.clone())
                // The body is decompressed in `body.rs`.
                .no_gzip()
                .no_zstd()
                .pool_max_idle_per_host(kept)
                .connect_timeout(pool.connect_timeout)
                .pool_idle_timeout(IDLE)
                .tcp_nodelay(true)
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy();
            let http = if http2 { http.http2_prior_knowledge() } else { http.http1_only() };
            let http = match (is_plain, roots.is_empty()) {
                (true, _) => http.tls_certs_only([]),
                (false, true) => http,
                (false, false) => http.tls_certs_merge(roots.clone()),
            };
            // The text of the error may contain the address.
            let hint =
                |error: &reqwest::Error| if error.is_builder() { "; check url and ca_file" } else { "" };
            http.build().map_err(|e| wrong(format!("the HTTP client could not be built{}", hint(&e))))
        };
        let single = build(false, 0)?;
        // A WebSocket begins as HTTP/1.1, with the scheme of HTTP.
        let socket = upstream.ws_url.as_ref().map(|url| Secret::new(url.expose().replacen("ws", "http", 1)));
        reqwest::Url::parse(upstream.url.expose()).map_err(|e| wrong(format!("url: {e}")))?;
        Ok(Self {
            http: build(upstream.http2, usize::MAX)?,
            socket: socket.map(|url| (single.clone(), url)),
            again: Some(single).filter(|_| !upstream.http2),
            url: upstream.url.clone(),
            probe_timeout: pool.connect_timeout + PROBE_ANSWER,
            budget,
            connections: Connections::default(),
        })
    }

    pub fn connections(&self) -> u64 {
        self.connections.opened.load(Ordering::SeqCst)
    }

    /// Sends one call, and reads its answer to the end within its bounds. If the call is traced, the node gets the trace context of `span`. Returns what came of it, and the
    /// number of bytes that were read.
    ///
    /// # Errors
    /// The request failed or took too long, or the status is 401 or 429. The body is incomplete or
    /// exceeds a limit. The content of the body is not checked here, and a body without 2xx may be missing.
    pub async fn post(
        &self,
        body: Bytes,
        CallBounds { caller, timeout, longest, resend }: CallBounds,
        span: &Attempt<'_>,
    ) -> (Result<RawAnswer, Fault>, usize) {
        let mut request = self.http.post(self.url.expose());
        if let Some((parent, state)) = span.headers() {
            request = request.header(TRACEPARENT, parent);
            if let Some(state) = state {
                request = request.header(TRACESTATE, state);
            }
        }
        let buffered = Buffered::new(&self.budget, caller);
        let reading = self.exchange(request.body(body), resend, longest, &buffered);
        let answer = tokio::time::timeout(timeout, reading).await.unwrap_or(Err(Fault::Timeout));
        (answer, buffered.bytes())
    }

    /// Sends one request of the gateway itself, and reads an answer of at most `limit` bytes. The answer does not count
    /// against `pool.max_buffered`, because full buffers must not make every node look dead.
    ///
    /// # Errors
    /// As for [`Client::post`], but never [`Fault::BuffersFull`].
    pub async fn ask(&self, body: Bytes, timeout: Duration, limit: usize) -> Result<RawAnswer, Fault> {
        let budget = BufferBudget::new(usize::MAX);
        let request = self.http.post(self.url.expose()).body(body);
        let buffered = Buffered::new(&budget, CallerId::default());
        let read = self.exchange(request, Resend::Once, limit, &buffered);
        tokio::time::timeout(timeout, read).await.unwrap_or(Err(Fault::Timeout))
    }

    /// Returns the header `date` of a node's answer to the call `body`. `None` if the answer has no such header.
    ///
    /// # Errors
    /// As for [`Client::ask`].
    pub async fn date(&self, body: Bytes, timeout: Duration) -> Result<Option<String>, Fault> {
        let sent = self.send(self.http.post(self.url.expose()).body(body), Resend::Once);
        let response = tokio::time::timeout(timeout, sent).await.unwrap_or(Err(Fault::Timeout))?;
        Ok(response.headers().get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned))
    }

    async fn exchange(
        &self,
        request: reqwest::RequestBuilder,
        resend: Resend,
        limit: usize,
        buffered: &Buffered<'_>,
    ) -> Result<RawAnswer, Fault> {
        let mut response = self.send(request, resend).await?;
        let status = response.status();
        let body = if status.is_success() {
            Self::read(&mut response, limit, buffered).await?
        } else {
            let reading = Self::read(&mut response, MAX_REFUSAL_BYTES, buffered);
            // The status says enough without the body.
            tokio::time::timeout(REFUSAL_TIMEOUT, reading).await.ok().and_then(Result::ok).unwrap_or_default()
        };
        Ok(RawAnswer::new(status.as_u16(), unrounded(body)))
    }

    /// Sends a request, and returns the response, unless its status speaks for itself, whatever the body may be.
    async fn send(
        &self,
        request: reqwest::RequestBuilder,
        resend: Resend,
    ) -> Result<reqwest::Response, Fault> {
        let request = request.build().map_err(|_| Fault::Connect)?;
        let second = self.again.as_ref().filter(|_| resend == Resend::Once).zip(request.try_clone());
        let sent_at = Instant::now();
        let mut sent = self.http.execute(request).await;
        // What breaks later may be cut by a balancer that waits no longer for a node at work.
        if let (Err(error), Some((client, request))) = (&sent, second)
            && self.connections.include_that_of(error)
            && sent_at.elapsed() <= self.probe_timeout
        {
            sent = client.execute(request).await;
        }
        let response = sent.map_err(|error| fault_of(&error))?;
        if let Some(connection) = response.extensions().get::<HttpInfo>() {
            self.connections.note(connection);
        }
        match response.status().as_u16() {
            429 => Err(Fault::TooManyRequests(retry_after(response.headers(), SystemTime::now()))),
            status @ 401 => Err(Fault::Status(status)),
            _ => Ok(response),
        }
    }

    /// Reads the whole body of a response, decompressed at most `limit` bytes, while `buffered` can grow by the bytes.
    async fn read(
        response: &mut reqwest::Response,
        limit: usize,
        buffered: &Buffered<'_>,
    ) -> Result<Bytes, Fault> {
        let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
        let bytes = BodyBuffer::with_expected_length(announced.unwrap_or(0), limit);
        let mut body = Body::new(response.headers(), bytes, buffered)?;
        while let Some(piece) = response.chunk().await.map_err(|_| Fault::Truncated)? {
            body.push(piece)?;
        }
        body.finish()
    }
}

/// Returns the waiting time of `Retry-After`, at most an hour: a number of seconds, or the time from `now` to a date. A
/// date in the past means no wait. `None` if the header is missing or is neither.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(Duration::from_hours(1)))
}

/// Returns why a request failed. Only the kinds of the causes count, because their texts may contain the address.
pub(super) fn fault_of(error: &reqwest::Error) -> Fault {
    if error.is_timeout() {
        return Fault::Timeout;
    }
    let mut causes = successors(error.source(), |&cause| cause.source());
    causes.find_map(why_not_connected).map_or(Fault::Connect, Fault::NoConnection)
}

/// Returns the reason why a connection could not be opened, if `cause` is one that has a word of its own.
fn why_not_connected(cause: &(dyn Error + 'static)) -> Option<AttemptResult> {
    if let Some(tls) = cause.downcast_ref::<rustls::Error>() {
        let rustls::Error::InvalidCertificate(certificate) = tls else {
            return Some(AttemptResult::TlsFailed);
        };
        return Some(match certificate {
            CertificateError::UnknownIssuer => AttemptResult::UnknownIssuer,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                AttemptResult::CertificateExpired
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                AttemptResult::WrongName
            }
            _ => AttemptResult::Untrusted,
        });
    }
    // The source of an io::Error is that of its inner error, which it leaves out.
    if let Some(io) = cause.downcast_ref::<io::Error>() {
        let refused =
            (io.kind() == io::ErrorKind::ConnectionRefused).then_some(AttemptResult::ConnectionRefused);
        return refused.or_else(|| why_not_connected(io.get_ref()?));
    }
    // The type of this error is private.
    cause.to_string().starts_with("dns error").then_some(AttemptResult::NameNotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_bounded() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        for (text, expected) in [
            ("2", Some(2)),
            (" 7 ", Some(7)),
            ("0", Some(0)),
            ("31536000", Some(3600)),
            ("99999999999999999999999", Some(3600)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Mon, 06 Nov 1995 08:49:37 GMT", Some(3600)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
            ("1.5", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(text).unwrap())]);
            assert_eq!(retry_after(&headers, now), expected.map(Duration::from_secs), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
