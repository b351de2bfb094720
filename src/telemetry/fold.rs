//! Failures that repeat: the first line, then how often in each interval, then that it is over.
//!
//! A warning or error that says word for word what one said before is not written again: a node that is down, a file
//! that cannot be read and a process without file descriptors each fail thousands of times and are one piece of news.
//! Lines of level info and below pass untouched, at the cost of a comparison.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// After so long a repeated line is counted aloud, and one that has not come again is over: two lines a minute are
/// read, and whoever watches an outage does not wait long.
const INTERVAL: Duration = Duration::from_secs(30);
/// Different lines that are known at once. Past it the lines of one place in the code count as one: what differs in
/// them is then too much to tell.
const MAX_LINES: usize = 64;
/// Bytes of a line that its count repeats.
const MAX_WORDS: usize = 240;

/// The layer of the log that folds.
pub(super) struct Fold(pub(super) Arc<Folds>);

/// The lines that were said within the last interval.
#[derive(Default)]
pub(super) struct Folds(Mutex<HashMap<u64, Line>>);

/// A line that was said, and how often it would have been since.
struct Line {
    level: Level,
    words: String,
    /// When the interval began.
    since: Instant,
    /// Within the interval.
    repeats: u64,
    /// Before it.
    before: u64,
}

/// What a report says of one line.
#[derive(Debug, PartialEq, Eq)]
struct News {
    level: Level,
    words: String,
    /// How often, in the last interval; or, when it is over, in all.
    repeats: u64,
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

/// Libraries name addresses in what they say of connections, and an upstream's address may be a secret.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "slotfront" || metadata.target().starts_with("slotfront::")
}

impl Folds {
    /// Whether the line is news; else it is counted.
    fn admits(&self, event: &Event<'_>, now: Instant) -> bool {
        let place = event.metadata().callsite();
        let mut hashed = DefaultHasher::new();
        place.hash(&mut hashed);
        let alike = hashed.finish();
        event.record(&mut Words(&mut Hashed(&mut hashed)));
        let level = *event.metadata().level();
        self.counts(hashed.finish(), alike, level, now, || {
            let mut words = Short(String::new());
            event.record(&mut Words(&mut words));
            words.0
        })
    }

    /// The same for the line with hash `own`, in a place of the code with hash `alike`.
    fn counts(
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
        lines.insert(key, Line { level, words: words(), since: now, repeats: 0, before: 0 });
        true
    }

    /// Says what is due.
    pub(super) fn report(&self, now: Instant) {
        for News { level, words, repeats, over } in self.due(now) {
            let seconds = INTERVAL.as_secs();
            macro_rules! say {
                ($say:ident) => {
                    if over {
                        tracing::$say!(log.repeated = repeats, "no longer repeated: {words}");
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

    /// What is to be said of lines whose interval is over.
    fn due(&self, now: Instant) -> Vec<News> {
        let mut news = Vec::new();
        self.lock().retain(|_, line| {
            if now.duration_since(line.since) < INTERVAL {
                return true;
            }
            let over = line.repeats == 0;
            // What was said once and no more needs no second line.
            if !over || line.before > 0 {
                let repeats = if over { line.before } else { line.repeats };
                news.push(News { level: line.level, words: line.words.clone(), repeats, over });
            }
            line.before += line.repeats;
            line.repeats = 0;
            line.since = now;
            !over
        });
        news
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes an event's message and fields.
struct Words<'a, W>(&'a mut W);

impl<W: fmt::Write> Visit for Words<'_, W> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Neither of the two writers fails.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
    }
}

/// Takes what is written into a hash.
struct Hashed<'a>(&'a mut DefaultHasher);

impl fmt::Write for Hashed<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.write(s.as_bytes());
        Ok(())
    }
}

/// Keeps the first [`MAX_WORDS`] bytes, whole characters.
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = MAX_WORDS.saturating_sub(self.0.len());
        self.0.push_str(&s[..s.floor_char_boundary(room)]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn news(repeats: u64, over: bool) -> Vec<News> {
        vec![News { level: Level::WARN, words: "it failed".to_owned(), repeats, over }]
    }

    #[test]
    fn a_line_is_said_once_then_counted_then_over() {
        let (folds, start) = (Folds::default(), Instant::now());
        let say = |now| folds.counts(1, 0, Level::WARN, now, || "it failed".to_owned());
        let at = |intervals: u32| start + INTERVAL * intervals;
        assert!(say(start));
        assert!((0..999).all(|_| !say(start)));
        assert_eq!(folds.due(start + INTERVAL / 2), []);
        assert_eq!(folds.due(at(1)), news(999, false));
        assert!(!say(at(1)));
        assert_eq!(folds.due(at(2)), news(1, false));
        assert_eq!(folds.due(at(3)), news(1000, true));
        assert_eq!(folds.due(at(4)), []);
        assert!(say(at(4)), "it is news again");
        assert_eq!(folds.due(at(5)), [], "said once, and over without a word");
    }

    #[test]
    fn what_is_known_is_bounded_by_the_places_in_the_code() {
        let (folds, now) = (Folds::default(), Instant::now());
        let said =
            (0..10_000_u64).filter(|n| folds.counts(1000 + n, n % 3, Level::ERROR, now, String::new)).count();
        assert_eq!(said, MAX_LINES + 3);
    }

    /// Lines as the log has them, without colours and times.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_our_own_lines_are_written_and_repeats_are_folded() {
        let (written, folds) = (Written::default(), Arc::new(Folds::default()));
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
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
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
