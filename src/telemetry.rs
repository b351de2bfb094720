//! What slotfront says about itself: log lines, traces, and every metric as a documented field.
//!
//! Counts and writes; decides nothing. The log has our own events only: what libraries say of connections may name an
//! upstream's address, which may be a secret. No metric is looked up by label text on the way of a request, and no label
//! takes a value from a request: methods and outcomes are closed sets, keys are ids, upstreams are configured names.

pub mod family;
mod fold;
pub mod labels;
pub mod metrics;
#[cfg(feature = "otlp")]
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

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// `telemetry.log` is no filter.
    #[error(
        "telemetry.log: {value:?} is no filter ({reason}); try \"info\" or \"info,slotfront::pool=debug\""
    )]
    Filter {
        /// As configured.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The process logs already.
    #[error("logging is already set up in this process")]
    Twice,
}

/// Changes the filter of this process's log.
type Reload = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// The one log of the process, once it is set up.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    /// Its filter as written.
    written: Mutex<String>,
    /// How to change it.
    change: Reload,
    /// Lines that are not repeated.
    folds: Arc<Folds>,
}

/// Between two looks for lines that were folded long enough.
const FOLD_LOOK: Duration = Duration::from_secs(1);

/// Sends log lines to standard error: pretty on a terminal, one JSON object a line otherwise, unless the settings say.
///
/// # Errors
/// The filter cannot be read, or the process logs already.
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
    let change: Reload = Box::new(move |filter| handle.reload(filter).is_ok());
    // The process's subscriber is set once, just above, so this is too.
    let _ = LOG.set(Log { written: Mutex::new(settings.log.clone()), change, folds });
    Ok(())
}

/// Says, as a task, how often folded lines would have been repeated, and when they no longer are; until `stop`.
pub async fn report_folds(stop: CancellationToken) {
    let Some(log) = LOG.get() else { return };
    while stop.run_until_cancelled(tokio::time::sleep(FOLD_LOOK)).await.is_some() {
        log.folds.report(Instant::now());
    }
}

/// The filter in force, as it was written; `None` in a process that does not log.
pub fn filter() -> Option<String> {
    LOG.get().map(|log| log.written.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Puts another filter in force; without effect in a process that does not log.
///
/// # Errors
/// It cannot be read.
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
    fn a_filter_that_is_none_is_named() {
        let log = "slotfront=loud".to_owned();
        let settings = Telemetry { log, format: LogFormat::Json, otlp: None, trace_sample: 0.0 };
        let error = init(&settings).unwrap_err().to_string();
        assert!(error.starts_with("telemetry.log: \"slotfront=loud\" is no filter"), "{error}");
    }
}
