//! What slotfront says about itself: log lines, and every metric as a documented field.
//!
//! Counts and writes; decides nothing. No metric is looked up by label text on the way of a request, and no label
//! takes a value from a request: methods and outcomes are closed sets, keys are ids, upstreams are configured names.

pub mod family;
pub mod labels;
pub mod metrics;
pub mod totals;

use std::io::IsTerminal;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, reload};

pub use labels::{
    AttemptResult, AuthFailure, EvictionCause, HedgeResult, LimitReason, NodeCode, Outcome, ReloadResult,
};
pub use labels::{RetryReason, StaleCause, UncacheableReason, VerifyResult};
pub use metrics::{KeyMetrics, Metrics, UpstreamMetrics};

use crate::config::{LogFormat, Telemetry};

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

/// The one log of the process, once it is set up: its filter as written, and how to change it.
static LOG: OnceLock<(Mutex<String>, Reload)> = OnceLock::new();

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
    let all = tracing_subscriber::registry().with(filter);
    if pretty {
        all.with(lines.with_ansi(std::io::stderr().is_terminal()).with_target(false)).try_init()
    } else {
        all.with(lines.json().flatten_event(true).with_current_span(false)).try_init()
    }
    .map_err(|_| InitError::Twice)?;
    let change: Reload = Box::new(move |filter| handle.reload(filter).is_ok());
    // The process's subscriber is set once, just above, so this is too.
    let _ = LOG.set((Mutex::new(settings.log.clone()), change));
    Ok(())
}

/// The filter in force, as it was written; `None` in a process that does not log.
pub fn filter() -> Option<String> {
    LOG.get().map(|(written, _)| written.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Puts another filter in force; without effect in a process that does not log.
///
/// # Errors
/// It cannot be read.
pub fn set_filter(text: &str) -> Result<(), InitError> {
    let filter = parse(text)?;
    if let Some((written, change)) = LOG.get() {
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        if change(filter) {
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
        let settings = Telemetry { log: "slotfront=loud".to_owned(), format: LogFormat::Json };
        let error = init(&settings).unwrap_err().to_string();
        assert!(error.starts_with("telemetry.log: \"slotfront=loud\" is no filter"), "{error}");
    }
}
