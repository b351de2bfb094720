//! `[telemetry]`: logs and traces.

use crate::config::bounds::{SHARE, url_fault};
use crate::config::reader::TableReader;
use crate::config::{Secret, Telemetry, defaults};

/// Reads the section `[telemetry]`.
pub(super) fn read(r: &TableReader<'_>) -> Telemetry {
    let log = r.get("log", defaults::LOG.to_owned());
    if let Err(e) = tracing_subscriber::EnvFilter::try_new(&log) {
        let fix = "set a level, or levels of modules: \"info,slotfront::pool=debug\"";
        r.problem("log", Some(format!("{log:?}")), format!("is not a log filter: {e}"), fix);
    }
    Telemetry {
        log,
        format: r.get("format", defaults::LOG_FORMAT),
        otlp: otlp(r),
        trace_sample: r.within("trace_sample", defaults::TRACE_SAMPLE, SHARE),
    }
}

/// Reads the URL of the trace collector.
fn otlp(r: &TableReader<'_>) -> Option<Secret> {
    const KEY: &str = "otlp";
    let url = r.secret(KEY)?;
    if let Some(rule) = url_fault(&url) {
        r.problem(KEY, Some("***".to_owned()), rule, "write it like \"http://127.0.0.1:4318\"");
    }
    Some(url)
}
