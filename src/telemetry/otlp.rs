//! The export of spans to a collector: OTLP over HTTP with JSON, in batches, from a bounded queue.
//!
//! No request waits for the export. Spans are counted and dropped if the queue is full or the collector refuses them,
//! so that an unreachable collector cannot fill the memory.
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

use super::trace::{SpanId, TraceContext, TraceId};
use super::{Metrics, SpanResult};
use crate::config::{Secret, Telemetry};

/// The capacity of the queue, in spans of about 400 bytes.
const QUEUE: usize = 4096;
/// The maximum size of a batch, in spans. A full batch is about 300 KiB of JSON.
const BATCH: usize = 512;
/// The longest time from the first span of a batch until the batch is sent.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// The timeout of the export of one batch. During such a wait, the queue has room for 800 new spans a second.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time within which the rest of the queue is exported when the process ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(800);
/// The number of values of [`TraceId::randomness`]: 2^56.
const RANDOM_VALUES: f64 = 72_057_594_037_927_936.0;

/// The side of a call that a span describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanKind {
    Server,
    Client,
}

/// Creates spans and queues them for the collector.
pub struct Exporter {
    queue: mpsc::Sender<Span>,
    ids: RandomState,
    draws: AtomicU64,
    /// The sampling threshold. A new trace is recorded if [`TraceId::randomness`] is below it.
    threshold: u64,
    metrics: Arc<Metrics>,
}

/// The receiving end of an [`Exporter`]: the task that sends spans to the collector.
pub(crate) struct Sender {
    spans: mpsc::Receiver<Span>,
    http: reqwest::Client,
    url: Secret,
    metrics: Arc<Metrics>,
}

#[derive(Debug, thiserror::Error)]
#[error("telemetry.otlp: cannot build an HTTP client for this URL; check the URL and the TLS setup")]
pub struct OtlpError;

#[derive(Debug)]
struct Span {
    context: TraceContext,
    parent: Option<SpanId>,
    state: Option<Box<str>>,
    kind: SpanKind,
    name: &'static str,
    start_ns: u64,
    end_ns: u64,
    attributes: Vec<(&'static str, AttributeValue)>,
    failed: bool,
}

#[derive(Debug)]
enum AttributeValue {
    Text(Cow<'static, str>),
    Number(i64),
}

/// A span that has not ended. It is exported only if [`OpenSpan::close`] ends it.
#[derive(Debug)]
pub(super) struct OpenSpan {
    span: Span,
    started: Instant,
    exporter: Arc<Exporter>,
}

/// Creates the exporter that `settings` configure, and the task that sends its spans. `None` if no collector is
/// configured.
///
/// # Errors
/// The collector's URL is invalid, or the HTTP client cannot be built.
pub(crate) fn exporter(
    settings: &Telemetry,
    metrics: &Arc<Metrics>,
) -> Result<Option<(Exporter, Sender)>, OtlpError> {
    let Some(base) = &settings.otlp else { return Ok(None) };
    let url = traces_url(base.expose()).ok_or(OtlpError)?;
    // The process has one crypto provider. If it is already installed, this has no effect.
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
        threshold: (settings.trace_sample * RANDOM_VALUES) as u64,
        metrics: Arc::clone(metrics),
    };
    Ok(Some((exporter, Sender { spans, http, url, metrics: Arc::clone(metrics) })))
}

/// Returns the URL for traces below a collector's base URL. `None` if `base` is not a URL with a path.
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
    /// Starts a child span of `parent` in its trace. `state` is the caller's `tracestate`.
    pub(super) fn open(
        self: &Arc<Self>,
        parent: TraceContext,
        state: Option<&str>,
        kind: SpanKind,
        started: Instant,
    ) -> OpenSpan {
        self.begin(parent.within(self.span_id()), Some(parent.span), state.map(Into::into), kind, started)
    }

    /// Starts the root span of a new trace. `None` if the sampling share `telemetry.trace_sample` excludes the trace.
    pub(super) fn open_root(self: &Arc<Self>, started: Instant) -> Option<OpenSpan> {
        let trace = self.trace_id();
        let context = TraceContext::root(trace, self.span_id(), true);
        (trace.randomness() < self.threshold)
            .then(|| self.begin(context, None, None, SpanKind::Server, started))
    }

    fn begin(
        self: &Arc<Self>,
        context: TraceContext,
        parent: Option<SpanId>,
        state: Option<Box<str>>,
        kind: SpanKind,
        started: Instant,
    ) -> OpenSpan {
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
        OpenSpan { span, started, exporter: Arc::clone(self) }
    }

    /// Returns an unpredictable number, without a system call.
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

impl OpenSpan {
    /// Returns the trace context for children of this span.
    pub(super) fn context(&self) -> TraceContext {
        self.span.context
    }

    /// Sets the span's name, which is `request` at first.
    pub(super) fn name(&mut self, name: &'static str) {
        self.span.name = name;
    }

    pub(super) fn text(&mut self, key: &'static str, value: impl Into<Cow<'static, str>>) {
        self.span.attributes.push((key, AttributeValue::Text(value.into())));
    }

    pub(super) fn number(&mut self, key: &'static str, value: i64) {
        self.span.attributes.push((key, AttributeValue::Number(value)));
    }

    /// Ends the span now and queues it for export. If the queue is full, the span is dropped and counted.
    pub(super) fn close(mut self, failed: bool) {
        self.span.end_ns = self.span.start_ns + nanos(self.started.elapsed());
        self.span.failed = failed;
        if self.exporter.queue.try_send(self.span).is_err() {
            self.exporter.metrics.trace_spans.at(SpanResult::Dropped).inc();
        }
    }
}

impl Sender {
    /// Sends spans until `stop`, and then the rest of the queue within 800 ms.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(Some(first)) = stop.run_until_cancelled(self.spans.recv()).await {
            batch.push(first);
            let until = Instant::now() + BATCH_DELAY;
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
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
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

    /// Sends `batch` and empties it. A failure is counted and logged, and the batch is lost.
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
            // The error itself is not logged, because its text holds the collector's address.
            Err(error) if error.is_timeout() => "timeout".to_owned(),
            Err(_) => "connect".to_owned(),
        };
        self.metrics.trace_spans.at(SpanResult::Failed).inc_by(count);
        tracing::warn!(
            reason,
            "the trace collector (telemetry.otlp) did not accept a batch of spans, which is lost"
        );
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
            key_series: 200,
        };
        let metrics = Metrics::new();
        let (exporter, sender) = exporter(&settings, &metrics).unwrap().unwrap();
        (Arc::new(exporter), sender, metrics)
    }

    #[test]
    fn traces_url_is_below_the_base() {
        for (base, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://key@a.example/otlp?k=v", "https://key@a.example/otlp/v1/traces?k=v"),
        ] {
            assert_eq!(traces_url(base).unwrap().expose(), expected);
        }
    }

    #[test]
    fn full_queue_drops_and_counts() {
        let (exporter, sender, metrics) = to("http://127.0.0.1:1", 1.0);
        for _ in 0..QUEUE + 7 {
            exporter.open_root(Instant::now()).unwrap().close(false);
        }
        assert_eq!(metrics.trace_spans.at(SpanResult::Dropped).get(), 7);
        drop(sender);
    }

    #[test]
    fn sample_rate_is_applied() {
        for (share, low, high) in [(0.0, 0, 0), (0.1, 700, 1300), (1.0, 10_000, 10_000)] {
            let (exporter, _sender, _) = to("http://127.0.0.1:1", share);
            let recorded = (0..10_000).filter(|_| exporter.open_root(Instant::now()).is_some()).count();
            assert!((low..=high).contains(&recorded), "{recorded} at {share}");
        }
    }

    #[tokio::test]
    async fn failed_exports_are_counted_and_shutdown_is_quick() {
        let (exporter, sender, metrics) = to("http://127.0.0.1:1", 1.0);
        exporter.open_root(Instant::now()).unwrap().close(false);
        let stop = CancellationToken::new();
        stop.cancel();
        sender.run(stop).await;
        assert_eq!(metrics.trace_spans.at(SpanResult::Failed).get(), 1);
    }
}
