//! `[telemetry]`: the log and the traces.

use crate::config::bounds::{SHARE, url_fault};
use crate::config::reader::Reader;
use crate::config::{Secret, Telemetry, defaults};

/// Reads the section.
pub(super) fn read(r: &Reader<'_>) -> Telemetry {
    let log = r.get("log", defaults::LOG.to_owned());
    if let Err(e) = tracing_subscriber::EnvFilter::try_new(&log) {
        let fix = "write a level, or parts of the program with levels: \"info,slotfront::pool=debug\"";
        r.problem("log", Some(format!("{log:?}")), format!("is no log filter: {e}"), fix);
    }
    Telemetry {
        log,
        format: r.get("format", defaults::LOG_FORMAT),
        otlp: otlp(r),
        trace_sample: r.within("trace_sample", defaults::TRACE_SAMPLE, SHARE),
    }
}

/// Reads the address of the collector of traces. A build that cannot send traces refuses it, since silence would look like
/// a collector without spans.
fn otlp(r: &Reader<'_>) -> Option<Secret> {
    const KEY: &str = "otlp";
    let url = r.secret(KEY)?;
    if !cfg!(feature = "otlp") {
        let rule = "sends traces, which this build cannot";
        r.problem(KEY, None, rule, "build with it: cargo build --release --features otlp; or remove it");
    } else if let Some(rule) = url_fault(&url) {
        r.problem(KEY, Some("***".to_owned()), rule, "write it like \"http://127.0.0.1:4318\"");
    }
    Some(url)
}
