//! Logs, traces and metrics.
//!
//! The log has slotfront's own events only, because a library may log an upstream's address, which may be a
//! secret. No label of a metric holds text from a request. Methods and outcomes are closed sets. Keys appear by
//! their ids, and upstreams by their configured names.

pub mod events;
pub(crate) mod family;
mod fold;
pub(crate) mod labels;
pub(crate) mod metrics;
pub(crate) mod otlp;
#[cfg(target_os = "linux")]
mod process;
pub(crate) mod sharded;
pub(crate) mod totals;
pub(crate) mod trace;

use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

pub use labels::*;
pub use metrics::{KeyMetrics, Metrics, UpstreamMetrics};
pub use trace::{Trace, Tracer};

use crate::config::{LogFormat, Telemetry};
use fold::{Fold, Folds};

/// The reason why logging cannot be set up, or why its filter cannot be replaced.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error(
        "telemetry.log: {value:?} is not a log filter ({reason}); try \"info\" or \"info,slotfront::pool=debug\""
    )]
    Filter { value: String, reason: String },
    #[error("logging is already set up in this process")]
    Twice,
}

/// A function that replaces the filter of the log. Returns false if it fails, which leaves the old filter in force.
type ReplaceFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// The log of the process. Empty until [`init`] has set it up.
static LOG: OnceLock<ProcessLog> = OnceLock::new();

struct ProcessLog {
    /// The filter in force, as written in the settings.
    written: Mutex<String>,
    change: ReplaceFilter,
    folds: Arc<Folds>,
    is_json: bool,
}

/// The interval at which the process checks for due reports about repeated log lines.
const FOLD_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Sets up the log of the process, which goes to standard error. With [`LogFormat::Auto`], lines are pretty on a
/// terminal and JSON otherwise.
///
/// # Errors
/// The filter `telemetry.log` cannot be parsed, or logging is already set up.
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
    // Cannot fail: `try_init` above succeeds only once in a process.
    let _ =
        LOG.set(ProcessLog { written: Mutex::new(settings.log.clone()), change, folds, is_json: !pretty });
    Ok(())
}

/// Returns what the program prints beside its log, as a line of the log. `None` if the log is not JSON.
pub fn json_line(level: tracing::Level, message: &str) -> Option<String> {
    let now = jiff::Timestamp::now().to_string();
    let line =
        json!({ "timestamp": now, "level": level.as_str(), "message": message, "target": "slotfront" });
    LOG.get().is_some_and(|log| log.is_json).then(|| line.to_string())
}

/// Logs reports about repeated lines, and returns at `stop`. A report has the number of repetitions in an
/// interval, or says that a line has stopped repeating. Returns at once in a process that does not log.
pub async fn report_folds(stop: CancellationToken) {
    let Some(log) = LOG.get() else { return };
    while stop.run_until_cancelled(tokio::time::sleep(FOLD_REPORT_INTERVAL)).await.is_some() {
        log.folds.report(Instant::now());
    }
}

/// Returns the log filter in force, as written in the settings. `None` in a process that does not log.
pub fn filter() -> Option<String> {
    LOG.get().map(|log| log.written.lock().clone())
}

/// Replaces the log filter by `text`. Has no effect in a process that does not log.
///
/// # Errors
/// `text` cannot be parsed as a filter.
pub fn set_filter(text: &str) -> Result<(), InitError> {
    let filter = parse(text)?;
    if let Some(log) = LOG.get() {
        let mut written = log.written.lock();
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
        let settings =
            Telemetry { log, format: LogFormat::Json, otlp: None, trace_sample: 0.0, key_series: 200 };
        let error = init(&settings).unwrap_err().to_string();
        assert!(error.starts_with("telemetry.log: \"slotfront=loud\" is not a log filter"), "{error}");
    }
}
