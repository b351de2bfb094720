//! What slotfront says about itself: log lines, and every metric as a documented field.
//!
//! Counts and writes; decides nothing. No metric is looked up by label text on the way of a request, and no label
//! takes a value from a request: methods and outcomes are closed sets, keys are ids, upstreams are configured names.

pub mod family;
pub mod labels;
pub mod metrics;
pub mod totals;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

pub use labels::{AttemptResult, AuthFailure, EvictionCause, LimitReason, NodeCode, Outcome, ReloadResult};
pub use labels::{RetryReason, StaleCause, UncacheableReason};
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

/// Sends log lines to standard error: pretty on a terminal, one JSON object a line otherwise, unless the settings say.
///
/// # Errors
/// The filter cannot be read, or the process logs already.
pub fn init(settings: &Telemetry) -> Result<(), InitError> {
    let filter = EnvFilter::try_new(&settings.log)
        .map_err(|e| InitError::Filter { value: settings.log.clone(), reason: e.to_string() })?;
    let pretty = match settings.format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if pretty {
        lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init()
    } else {
        lines.json().flatten_event(true).with_current_span(false).try_init()
    }
    .map_err(|_| InitError::Twice)
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
