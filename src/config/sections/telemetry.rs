//! `[telemetry]`: logs and traces.

use super::{SHARE, url_fault};
use crate::config::Secret;
use crate::config::setting::{Field, section};

const DEFAULT_LOG: &str = "info";

section! {
    /// Logs and traces.
    pub struct Telemetry {
        /// The log filter: a level, or levels of modules, such as `info,slotfront::pool=debug`.
        // Starts, stops, reloads and failures that need a person, but no line for each request.
        log: String = live.with(log),
        /// "pretty" for people, "json" for machines, which each line of `slotfront serve` then is, "auto" for
        /// pretty on a terminal and JSON otherwise.
        format: LogFormat = restart.get("auto"),
        /// The base URL of an OTLP collector for traces, to which /v1/traces is appended; or `env:NAME`, `file:PATH`.
        otlp: Option<Secret> = restart.with(otlp),
        /// The share of requests without a `traceparent` that are traced. With a `traceparent`, its sampled flag
        /// decides.
        // Enough to see where time goes: 100 traces a second at 10,000 requests a second.
        trace_sample: f64 = restart.within(0.01, SHARE),
        /// Maximum keys with metrics of their own; all others count as the key `other`. Revoked and removed keys give their
        /// places back.
        // A key in use has some 25 series.
        key_series: usize = live.within(200, 0..=100_000),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Auto,
    Pretty,
    Json,
}

fn log(f: &Field<'_, '_>) -> String {
    let log: String = f.get(DEFAULT_LOG);
    if let Err(e) = tracing_subscriber::EnvFilter::try_new(&log) {
        let fix = "set a level, or levels of modules: \"info,slotfront::pool=debug\"";
        f.problem(Some(format!("{log:?}")), format!("is not a log filter: {e}"), fix);
        return DEFAULT_LOG.to_owned();
    }
    log
}

fn otlp(f: &Field<'_, '_>) -> Option<Secret> {
    let url = f.secret("http://127.0.0.1:4318")?;
    if let Some(rule) = url_fault(&url) {
        f.secret_problem(rule, "write it like \"http://127.0.0.1:4318\"");
    }
    Some(url)
}
