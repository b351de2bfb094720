//! Spans on their way to a collector: OTLP over HTTP in its JSON encoding, from a bounded queue, in batches.
//!
//! Nothing here is waited for by a request. What the queue has no room for, and what a collector does not take, is
//! counted and gone: traces are a sample, and a proxy that keeps them for a collector that is away would fall with it.
//!
//! Source: <https://opentelemetry.io/docs/specs/otlp/>, OTLP/HTTP and "JSON Protobuf Encoding".

mod encode;

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::trace_context::{SpanId, TraceContext, TraceId};
use super::{Metrics, SpanResult};
use crate::config::{Secret, Telemetry};

/// Spans that wait to be sent, some 400 bytes each: a batch and what comes while it is sent.
const QUEUE: usize = 4096;
/// Spans in one batch: some 300 KiB of JSON.
const BATCH: usize = 512;
/// How long a batch gathers: people look at traces later than that.
const GATHER: Duration = Duration::from_secs(1);
/// What a collector may take: the queue holds what comes meanwhile, at 800 spans a second.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The last batch when the process ends: it waits for nothing longer.
const LAST_TIMEOUT: Duration = Duration::from_millis(800);
/// An id's randomness is 56 bits.
const RANDOMNESS: f64 = 72_057_594_037_927_936.0;

/// Which side of a call a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A caller's request here.
    Server,
    /// Ours at a node.
    Client,
}

/// Where spans begin, and how they come to the collector.
pub struct Exporter {
    queue: mpsc::Sender<Span>,
    ids: RandomState,
    draws: AtomicU64,
    /// A trace of our own is recorded if its randomness is below.
    threshold: u64,
    metrics: Arc<Metrics>,
}

/// What sends the spans; a task of its own.
pub struct Sender {
    spans: mpsc::Receiver<Span>,
    http: reqwest::Client,
    url: Secret,
    metrics: Arc<Metrics>,
}

/// Why spans cannot be sent: a fault of the configuration.
#[derive(Debug, thiserror::Error)]
#[error("telemetry.otlp: the client could not be set up (url, TLS)")]
pub struct OtlpError;

/// A span that has ended.
#[derive(Debug)]
struct Span {
    context: TraceContext,
    parent: Option<SpanId>,
    state: Option<Box<str>>,
    kind: Kind,
    name: &'static str,
    start_ns: u64,
    end_ns: u64,
    attributes: Vec<(&'static str, Value)>,
    failed: bool,
}

#[derive(Debug)]
enum Value {
    Text(Cow<'static, str>),
    Number(i64),
}

/// A span that has begun.
#[derive(Debug)]
pub(super) struct Open {
    span: Span,
    started: Instant,
    exporter: Arc<Exporter>,
}

/// A way to the collector as `settings` say; `None` where they name none.
///
/// # Errors
/// An address that no client can be made for.
pub fn exporter(
    settings: &Telemetry,
    metrics: &Arc<Metrics>,
) -> Result<Option<(Exporter, Sender)>, OtlpError> {
    let Some(base) = &settings.otlp else { return Ok(None) };
    let url = traces_url(base.expose()).ok_or(OtlpError)?;
    // One crypto provider in the whole process; a second installation says so and changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .http1_only()
        .no_proxy()
        .build()
        .map_err(|_| OtlpError)?;
    let (queue, spans) = mpsc::channel(QUEUE);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share between 0 and 1")]
    let exporter = Exporter {
        queue,
        ids: RandomState::new(),
        draws: AtomicU64::new(0),
        threshold: (settings.trace_sample * RANDOMNESS) as u64,
        metrics: Arc::clone(metrics),
    };
    Ok(Some((exporter, Sender { spans, http, url, metrics: Arc::clone(metrics) })))
}

/// Where traces go below a collector's base address.
fn traces_url(base: &str) -> Option<Secret> {
    let mut url = reqwest::Url::parse(base).ok()?;
    url.path_segments_mut().ok()?.pop_if_empty().extend(["v1", "traces"]);
    Some(Secret::new(url.as_str()))
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl Exporter {
    /// A span below `parent`, in its trace, begun at `started`.
    pub(super) fn open(
        self: &Arc<Self>,
        parent: TraceContext,
        state: Option<&str>,
        kind: Kind,
        started: Instant,
    ) -> Open {
        self.begin(parent.within(self.span_id()), Some(parent.span), state.map(Into::into), kind, started)
    }

    /// The first span of a trace of our own; `None` where this one is not among the share that is recorded.
    pub(super) fn open_root(self: &Arc<Self>, started: Instant) -> Option<Open> {
        let trace = self.trace_id();
        let context = TraceContext::root(trace, self.span_id(), true);
        (trace.randomness() < self.threshold).then(|| self.begin(context, None, None, Kind::Server, started))
    }

    fn begin(
        self: &Arc<Self>,
        context: TraceContext,
        parent: Option<SpanId>,
        state: Option<Box<str>>,
        kind: Kind,
        started: Instant,
    ) -> Open {
        let ago = started.elapsed();
        let span = Span {
            context,
            parent,
            state,
            kind,
            name: "request",
            start_ns: unix_ns().saturating_sub(nanos(ago)),
            end_ns: 0,
            attributes: Vec::with_capacity(8),
            failed: false,
        };
        Open { span, started, exporter: Arc::clone(self) }
    }

    /// A number that nobody can guess from those before it, without asking the system for randomness each time.
    fn draw(&self) -> u64 {
        self.ids.hash_one(self.draws.fetch_add(1, Ordering::Relaxed))
    }

    fn trace_id(&self) -> TraceId {
        loop {
            let bytes = (u128::from(self.draw()) << 64 | u128::from(self.draw())).to_be_bytes();
            if let Some(id) = TraceId::new(bytes) {
                return id;
            }
        }
    }

    fn span_id(&self) -> SpanId {
        loop {
            if let Some(id) = SpanId::new(self.draw().to_be_bytes()) {
                return id;
            }
        }
    }
}

impl Open {
    /// The trace as seen from this span.
    pub(super) fn context(&self) -> TraceContext {
        self.span.context
    }

    /// Names it.
    pub(super) fn name(&mut self, name: &'static str) {
        self.span.name = name;
    }

    /// Adds a text.
    pub(super) fn text(&mut self, key: &'static str, value: impl Into<Cow<'static, str>>) {
        self.span.attributes.push((key, Value::Text(value.into())));
    }

    /// Adds a number.
    pub(super) fn number(&mut self, key: &'static str, value: i64) {
        self.span.attributes.push((key, Value::Number(value)));
    }

    /// Ends it now, and leaves it to be sent.
    pub(super) fn close(mut self, failed: bool) {
        self.span.end_ns = self.span.start_ns + nanos(self.started.elapsed());
        self.span.failed = failed;
        if self.exporter.queue.try_send(self.span).is_err() {
            self.exporter.metrics.trace_spans.at(SpanResult::Dropped).inc();
        }
    }
}

impl Sender {
    /// Sends spans until `stop`, and then those that are left.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(Some(first)) = stop.run_until_cancelled(self.spans.recv()).await {
            batch.push(first);
            let until = Instant::now() + GATHER;
            let gathered = async {
                while batch.len() < BATCH {
                    let room = BATCH - batch.len();
                    if self.spans.recv_many(&mut batch, room).await == 0 {
                        break;
                    }
                }
            };
            let _ = stop.run_until_cancelled(tokio::time::timeout_at(until, gathered)).await;
            if stop.is_cancelled() {
                break;
            }
            self.send(&mut batch, TIMEOUT).await;
        }
        self.spans.close();
        let until = Instant::now() + LAST_TIMEOUT;
        loop {
            while batch.len() < BATCH
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            self.send(&mut batch, until.saturating_duration_since(Instant::now())).await;
        }
    }

    /// Sends a batch, and leaves it empty.
    async fn send(&self, batch: &mut Vec<Span>, timeout: Duration) {
        let count = batch.len() as u64;
        let body = encode::request(batch);
        batch.clear();
        let request = self.http.post(self.url.expose()).header("content-type", "application/json");
        let reason = match request.body(body).timeout(timeout).send().await {
            Ok(response) if response.status().is_success() => {
                self.metrics.trace_spans.at(SpanResult::Exported).inc_by(count);
                return;
            }
            Ok(response) => response.status().as_u16().to_string(),
            // Never the error itself: it names the address.
            Err(error) if error.is_timeout() => "timeout".to_owned(),
            Err(_) => "connect".to_owned(),
        };
        self.metrics.trace_spans.at(SpanResult::Failed).inc_by(count);
        tracing::warn!(reason, "the trace collector (telemetry.otlp) does not take spans");
    }
}

fn unix_ns() -> u64 {
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(base: &str, trace_sample: f64) -> (Arc<Exporter>, Sender, Arc<Metrics>) {
        let settings = Telemetry {
            log: String::new(),
            format: crate::config::LogFormat::Json,
            otlp: Some(Secret::new(base)),
            trace_sample,
        };
        let metrics = Metrics::new();
        let (exporter, sender) = exporter(&settings, &metrics).unwrap().unwrap();
        (Arc::new(exporter), sender, metrics)
    }

    #[test]
    fn traces_go_below_the_base() {
        for (base, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://key@a.example/otlp?k=v", "https://key@a.example/otlp/v1/traces?k=v"),
        ] {
            assert_eq!(traces_url(base).unwrap().expose(), expected);
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (exporter, sender, metrics) = to("http://127.0.0.1:1", 1.0);
        for _ in 0..QUEUE + 7 {
            exporter.open_root(Instant::now()).unwrap().close(false);
        }
        assert_eq!(metrics.trace_spans.at(SpanResult::Dropped).get(), 7);
        drop(sender);
    }

    #[test]
    fn a_share_of_traces_is_recorded() {
        for (share, low, high) in [(0.0, 0, 0), (0.1, 700, 1300), (1.0, 10_000, 10_000)] {
            let (exporter, _sender, _) = to("http://127.0.0.1:1", share);
            let recorded = (0..10_000).filter(|_| exporter.open_root(Instant::now()).is_some()).count();
            assert!((low..=high).contains(&recorded), "{recorded} at {share}");
        }
    }

    #[tokio::test]
    async fn what_no_collector_takes_is_counted_and_the_end_waits_for_nobody() {
        let (exporter, sender, metrics) = to("http://127.0.0.1:1", 1.0);
        exporter.open_root(Instant::now()).unwrap().close(false);
        let stop = CancellationToken::new();
        stop.cancel();
        sender.run(stop).await;
        assert_eq!(metrics.trace_spans.at(SpanResult::Failed).get(), 1);
    }
}
