//! Logs, traces and metrics.
//!
//! Every metric is a documented field. The log has slotfront's own events only, because a library may log an
//! upstream's address, which may be a secret. No request looks up a metric by label text, and no label holds a
//! value from a request: methods and outcomes are closed sets, keys are ids, upstreams are configured names.

pub mod family;
mod fold;
pub mod labels;
pub mod metrics;
pub mod otlp;
pub mod sharded;
pub mod totals;
pub mod trace;
pub mod trace_context;

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

pub use labels::{
    AttemptResult, AuthFailure, Compression, EvictionCause, HedgeResult, LimitReason, NodeCode, Outcome,
    ReloadResult,
};
pub use labels::{
    RetryReason, SharedOperation, SharedResult, SpanResult, StaleCause, UncacheableReason, VerifyResult,
};
pub use metrics::{KeyMetrics, Metrics, UpstreamMetrics};
pub use trace::{Trace, Tracer};

use crate::config::{LogFormat, Telemetry};
use fold::{Fold, Folds};

/// The reasons why logging cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The setting `telemetry.log` cannot be parsed.
    #[error(
        "telemetry.log: {value:?} is not a log filter ({reason}); try \"info\" or \"info,slotfront::pool=debug\""
    )]
    Filter {
        /// The configured filter.
        value: String,
        /// The fault of the filter.
        reason: String,
    },
    /// Logging is already set up in this process.
    #[error("logging is already set up in this process")]
    Twice,
}

/// Replaces the filter of the log. Returns false on failure.
type ReplaceFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// The log of the process, once it is set up.
static LOG: OnceLock<ProcessLog> = OnceLock::new();

struct ProcessLog {
    /// The text of the filter in force.
    written: Mutex<String>,
    /// Replaces the filter.
    change: ReplaceFilter,
    /// The lines that are not repeated.
    folds: Arc<Folds>,
}

/// The interval at which folded lines are reported.
const FOLD_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Writes log lines to standard error. By default they are pretty on a terminal, and JSON otherwise.
///
/// # Errors
/// The filter cannot be parsed, or logging is already set up.
pub fn init(settings: &Telemetry) -> Result<(), InitError> {
    let (filter, handle) = reload::Layer::new(parse(&settings.log)?);
    let pretty = match settings.format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let folds = Arc::new(Folds::default());
    let all = tracing_subscriber::registry().with(filter).with(Fold(Arc::clone(&folds)));
    if pretty {
        all.with(lines.with_ansi(std::io::stderr().is_terminal()).with_target(false)).try_init()
    } else {
        all.with(lines.json().flatten_event(true).with_current_span(false)).try_init()
    }
    .map_err(|_| InitError::Twice)?;
    let change: ReplaceFilter = Box::new(move |filter| handle.reload(filter).is_ok());
    // The subscriber was set for the first time just above, so this is the first time, too.
    let _ = LOG.set(ProcessLog { written: Mutex::new(settings.log.clone()), change, folds });
    Ok(())
}

/// Reports repeated log lines until `stop`: their number in each interval, and their end.
pub async fn report_folds(stop: CancellationToken) {
    let Some(log) = LOG.get() else { return };
    while stop.run_until_cancelled(tokio::time::sleep(FOLD_REPORT_INTERVAL)).await.is_some() {
        log.folds.report(Instant::now());
    }
}

/// Returns the text of the filter in force. `None` in a process that does not log.
pub fn filter() -> Option<String> {
    LOG.get().map(|log| log.written.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Replaces the filter. Has no effect in a process that does not log.
///
/// # Errors
/// The filter cannot be parsed.
pub fn set_filter(text: &str) -> Result<(), InitError> {
    let filter = parse(text)?;
    if let Some(log) = LOG.get() {
        let mut written = log.written.lock().unwrap_or_else(PoisonError::into_inner);
        if (log.change)(filter) {
            text.clone_into(&mut written);
        }
    }
    Ok(())
}

fn parse(text: &str) -> Result<EnvFilter, InitError> {
    let wrong = |e: ParseError| InitError::Filter { value: text.to_owned(), reason: e.to_string() };
    EnvFilter::try_new(text).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_filters_are_quoted() {
        let log = "slotfront=loud".to_owned();
        let settings = Telemetry { log, format: LogFormat::Json, otlp: None, trace_sample: 0.0 };
        let error = init(&settings).unwrap_err().to_string();
        assert!(error.starts_with("telemetry.log: \"slotfront=loud\" is not a log filter"), "{error}");
    }
}
