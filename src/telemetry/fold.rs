//! Folds repeated log lines. The first line is written. Its repetitions are only counted, and the count is logged every
//! 30 s.
//!
//! A line repeats if it is a warning or error with the text and fields of a recent line. An outage causes thousands of
//! such lines, which say nothing new. Lines of level info and below are not folded.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The interval between two reports about a repeated line. A line that does not repeat for one interval is forgotten.
const INTERVAL: Duration = Duration::from_secs(30);
/// The maximum number of lines that are told apart by their text. Further lines are told apart by their place in the
/// code only.
const MAX_LINES: usize = 64;
/// The maximum length of a line's text in a report, in bytes.
const MAX_TEXT_BYTES: usize = 240;

/// The log layer that drops repeated lines, and all lines of other crates.
pub(super) struct Fold(pub(super) Arc<Folds>);

/// The lines that were written or repeated within the last interval, by the hash of their text.
#[derive(Default)]
pub(super) struct Folds(Mutex<HashMap<u64, FoldedLine>>);

/// A line that was written, and the number of its repetitions since.
struct FoldedLine {
    level: Level,
    words: String,
    /// The start of the current interval.
    since: Instant,
    /// The number of repetitions in the current interval.
    repeats: u64,
    /// The number of repetitions in earlier intervals.
    before: u64,
}

/// A report about one repeated line.
#[derive(Debug, PartialEq, Eq)]
struct FoldReport {
    level: Level,
    words: String,
    /// The number of repetitions in the last interval, or in total if the line has stopped repeating.
    repeats: u64,
    /// True if the line has stopped repeating.
    over: bool,
}

impl<S: Subscriber> Layer<S> for Fold {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_ours(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_ours(metadata)
    }

    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        *metadata.level() > Level::WARN
            || metadata.target() == module_path!()
            || self.0.admits(event, Instant::now())
    }
}

/// Returns true for events of slotfront. Other crates log addresses, and an upstream's address may be a secret.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "slotfront" || metadata.target().starts_with("slotfront::")
}

impl Folds {
    /// Returns true if the event should be written. Otherwise counts it as a repetition.
    fn admits(&self, event: &Event<'_>, now: Instant) -> bool {
        let place = event.metadata().callsite();
        let mut hashed = DefaultHasher::new();
        place.hash(&mut hashed);
        let alike = hashed.finish();
        event.record(&mut EventText(&mut HashWriter(&mut hashed)));
        let level = *event.metadata().level();
        self.admits_line(hashed.finish(), alike, level, now, || {
            let mut words = Truncated(String::new());
            event.record(&mut EventText(&mut words));
            words.0
        })
    }

    /// Returns true if a line should be written. Otherwise counts it as a repetition. `own` is the hash of the
    /// line's text and place in the code. `alike` is the hash of the place alone. `words` returns the line's text.
    fn admits_line(
        &self,
        own: u64,
        alike: u64,
        level: Level,
        now: Instant,
        words: impl FnOnce() -> String,
    ) -> bool {
        let mut lines = self.lock();
        let key = if lines.len() < MAX_LINES || lines.contains_key(&own) { own } else { alike };
        if let Some(line) = lines.get_mut(&key) {
            line.repeats += 1;
            return false;
        }
        lines.insert(key, FoldedLine { level, words: words(), since: now, repeats: 0, before: 0 });
        true
    }

    /// Logs the reports about repeated lines that are due.
    pub(super) fn report(&self, now: Instant) {
        for FoldReport { level, words, repeats, over } in self.due(now) {
            let seconds = INTERVAL.as_secs();
            macro_rules! say {
                ($say:ident) => {
                    if over {
                        tracing::$say!(
                            log.repeated_total = repeats,
                            "this message has stopped repeating: {words}"
                        );
                    } else {
                        tracing::$say!(log.repeated = repeats, log.interval_s = seconds, "repeated: {words}");
                    }
                };
            }
            if level == Level::ERROR {
                say!(error);
            } else {
                say!(warn);
            }
        }
    }

    /// Returns the reports about lines whose interval has passed. Starts the next interval of the lines that repeated,
    /// and forgets the others.
    fn due(&self, now: Instant) -> Vec<FoldReport> {
        let mut news = Vec::new();
        self.lock().retain(|_, line| {
            if now.duration_since(line.since) < INTERVAL {
                return true;
            }
            let over = line.repeats == 0;
            // A line that was not repeated needs no report.
            if !over || line.before > 0 {
                let repeats = if over { line.before } else { line.repeats };
                news.push(FoldReport { level: line.level, words: line.words.clone(), repeats, over });
            }
            line.before += line.repeats;
            line.repeats = 0;
            line.since = now;
            !over
        });
        news
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, FoldedLine>> {
        self.0.lock()
    }
}

/// A visitor that writes the message and the fields of an event to a writer.
struct EventText<'a, W>(&'a mut W);

impl<W: fmt::Write> Visit for EventText<'_, W> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // The two writers used here never fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
    }
}

/// A writer that feeds a hasher.
struct HashWriter<'a>(&'a mut DefaultHasher);

impl fmt::Write for HashWriter<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.write(s.as_bytes());
        Ok(())
    }
}

/// A writer that keeps the first [`MAX_TEXT_BYTES`] bytes, without splitting a character.
struct Truncated(String);

impl fmt::Write for Truncated {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = MAX_TEXT_BYTES.saturating_sub(self.0.len());
        self.0.push_str(&s[..s.floor_char_boundary(room)]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn news(repeats: u64, over: bool) -> Vec<FoldReport> {
        vec![FoldReport { level: Level::WARN, words: "it failed".to_owned(), repeats, over }]
    }

    #[test]
    fn lines_are_written_once_counted_then_over() {
        let (folds, start) = (Folds::default(), Instant::now());
        let say = |now| folds.admits_line(1, 0, Level::WARN, now, || "it failed".to_owned());
        let at = |intervals: u32| start + INTERVAL * intervals;
        assert!(say(start));
        assert!((0..999).all(|_| !say(start)));
        assert_eq!(folds.due(start + INTERVAL / 2), []);
        assert_eq!(folds.due(at(1)), news(999, false));
        assert!(!say(at(1)));
        assert_eq!(folds.due(at(2)), news(1, false));
        assert_eq!(folds.due(at(3)), news(1000, true));
        assert_eq!(folds.due(at(4)), []);
        assert!(say(at(4)), "a new outage is written again");
        assert_eq!(folds.due(at(5)), [], "a line without repetitions needs no report");
    }

    #[test]
    fn distinct_lines_are_bounded() {
        let (folds, now) = (Folds::default(), Instant::now());
        let said = (0..10_000_u64)
            .filter(|n| folds.admits_line(1000 + n, n % 3, Level::ERROR, now, String::new))
            .count();
        assert_eq!(said, MAX_LINES + 3);
    }

    /// The log output, without colours and times.
    #[derive(Clone, Default)]
    struct LogOutput(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogOutput {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn foreign_lines_are_dropped_and_repeats_folded() {
        let (written, folds) = (LogOutput::default(), Arc::new(Folds::default()));
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer()
            .without_time()
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let log = tracing_subscriber::registry().with(Fold(Arc::clone(&folds))).with(lines);
        tracing::subscriber::with_default(log, || {
            for n in 0..100 {
                tracing::warn!(upstream.name = "a", reason = "timeout", "attempt failed");
                tracing::warn!(upstream.name = "b", reason = "timeout", "attempt failed");
                if n < 2 {
                    tracing::info!(n, "news");
                }
                tracing::error!(target: "h2::client", "connecting to http://secret@node");
            }
            folds.report(Instant::now() + INTERVAL);
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.split_once(": ").unwrap().1).collect();
        let mut expected = vec![
            "attempt failed upstream.name=\"a\" reason=\"timeout\"",
            "attempt failed upstream.name=\"b\" reason=\"timeout\"",
            "news n=0",
            "news n=1",
            "repeated: attempt failed upstream.name=\"a\" reason=\"timeout\"  log.repeated=99 log.interval_s=30",
            "repeated: attempt failed upstream.name=\"b\" reason=\"timeout\"  log.repeated=99 log.interval_s=30",
        ];
        let mut lines = lines;
        lines.sort_unstable();
        expected.sort_unstable();
        assert_eq!(lines, expected);
    }
}
