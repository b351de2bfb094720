//! How much: units used in this UTC day and month, one word each, kept over a restart in a file.
//!
//! Booked after the answer, so a quota may be overshot by the calls in flight. A window that ended is not reset by
//! anybody: it is seen to be another one by whoever looks next.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::standing::Standing;
use super::write;
use crate::shared::limits::{Booked, Booking};

/// Units are counted in thousandths, since a hit may cost a fraction.
const THOUSANDTHS: f64 = 1000.0;

/// A day or a month, numbered from 1970; 65,536 days reach to 2149.
type Number = u16;

/// The day and the month of a moment, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    day: Number,
    month: Number,
    date: Date,
}

impl Period {
    /// The period that `wall` lies in.
    pub(crate) fn of(wall: Timestamp) -> Self {
        let date = Offset::UTC.to_datetime(wall).date();
        let months = i32::from(date.year() - 1970) * 12 + i32::from(date.month()) - 1;
        let number = |n: i64| Number::try_from(n.max(0)).unwrap_or(Number::MAX);
        Self { day: number(wall.as_second().div_euclid(86_400)), month: number(months.into()), date }
    }

    /// Until the day ends, and until the month ends.
    pub(crate) fn ends_in(wall: Timestamp) -> (Duration, Duration) {
        let date = Offset::UTC.to_datetime(wall).date();
        let until = |end: Option<Date>| {
            let end = end.and_then(|date| {
                Offset::UTC.to_timestamp(date.to_datetime(jiff::civil::Time::midnight())).ok()
            });
            end.and_then(|end| Duration::try_from(end.duration_since(wall)).ok()).unwrap_or_default()
        };
        (until(date.tomorrow().ok()), until(date.last_of_month().tomorrow().ok()))
    }
}

/// The use in one window: its number in the upper 16 bits, thousandths of units in the lower 48 (2.8e11 units).
#[derive(Debug, Default)]
struct Window(AtomicU64);

const USED: u64 = (1 << 48) - 1;

impl Window {
    fn at(number: Number, used: u64) -> Self {
        Self(AtomicU64::new(u64::from(number) << 48 | used.min(USED)))
    }

    /// What was used in window `number`.
    fn used(&self, number: Number) -> u64 {
        Self::seen(self.0.load(Ordering::Relaxed), number).1
    }

    /// Adds to window `number`.
    fn add(&self, number: Number, thousandths: u64) {
        let add = |word| {
            let (number, used) = Self::seen(word, number);
            Some(u64::from(number) << 48 | used.saturating_add(thousandths).min(USED))
        };
        // Infallible: the closure always gives a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Raises window `number` to `used`, if it is lower.
    fn at_least(&self, number: Number, used: u64) {
        let raise = |word| {
            let (number, known) = Self::seen(word, number);
            Some(u64::from(number) << 48 | known.max(used).min(USED))
        };
        // Infallible: the closure always gives a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// The window that `word` stands for when it is `number` by the clock. A clock that went back by one window does
    /// not give a quota away a second time; one that is further off was wrong before, and is believed now.
    fn seen(word: u64, number: Number) -> (Number, u64) {
        // Truncation is the point: the upper 16 bits alone.
        let known = (word >> 48) as Number;
        if known == number || known.checked_sub(1) == Some(number) {
            (known, word & USED)
        } else {
            (number, 0)
        }
    }
}

/// What of a key's use the shared store has still to hear of.
#[derive(Debug, Default)]
struct Unshared {
    /// Thousandths of units that wait.
    waiting: AtomicU64,
    /// The booking under way.
    attempt: Mutex<Attempt>,
    /// Whether somebody wants to know what others have booked.
    wanted: AtomicBool,
}

/// A booking: the same until the store has answered, so that it counts once however often it is sent.
#[derive(Debug, Default)]
struct Attempt {
    open: bool,
    number: u64,
    units: u64,
}

impl Unshared {
    fn attempt(&self) -> MutexGuard<'_, Attempt> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one key has used; by itself in a ledger of its own, as of an address, which is not kept.
#[derive(Debug, Default)]
pub(crate) struct Used {
    day: Window,
    month: Window,
    /// Set by every booking; shared by all keys of a ledger.
    dirty: Arc<AtomicBool>,
    /// What the shared store does not know yet, where there is one.
    unshared: OnceLock<Arc<Unshared>>,
}

impl Used {
    /// Reads what a call reads; see `Held::warm` of the table.
    pub(crate) fn warm(&self) -> u64 {
        self.month.0.load(Ordering::Relaxed)
    }

    /// Adds to both windows.
    pub(crate) fn book(&self, period: Period, units: f64) {
        let thousandths = thousandths(units);
        self.day.add(period.day, thousandths);
        self.month.add(period.month, thousandths);
        if let Some(unshared) = self.unshared.get() {
            unshared.waiting.fetch_add(thousandths, Ordering::AcqRel);
        }
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Relaxed);
        }
    }

    /// What is to be booked in the shared store: what an earlier attempt may or may not have, else all that waits.
    pub(crate) fn booking(&self, period: Period, who: u64) -> Booking {
        let mut booking =
            Booking { windows: [period.day, period.month], units: 0, known: [0; 2], who, number: 0 };
        let Some(unshared) = self.unshared.get() else { return booking };
        let mut attempt = unshared.attempt();
        if !attempt.open {
            *attempt = Attempt {
                open: true,
                number: attempt.number + 1,
                units: unshared.waiting.swap(0, Ordering::AcqRel),
            };
        }
        (booking.units, booking.number) = (attempt.units, attempt.number);
        // What the store has been told: it may have forgotten it.
        let (day, month) = (self.day.used(period.day), self.month.used(period.month));
        let untold = attempt.units + unshared.waiting.load(Ordering::Acquire);
        booking.known = [day.saturating_sub(untold), month.saturating_sub(untold)];
        booking
    }

    /// It is booked: what others have booked counts here, too.
    pub(crate) fn booked(&self, booking: &Booking, booked: &Booked) {
        let Some(unshared) = self.unshared.get() else { return };
        let mut attempt = unshared.attempt();
        attempt.open = false;
        let waiting = unshared.waiting.load(Ordering::Acquire);
        for (at, window) in [&self.day, &self.month].into_iter().enumerate() {
            if booked.windows[at] == booking.windows[at] {
                window.at_least(booked.windows[at], booked.units[at].saturating_add(waiting));
            }
        }
        if booking.units > 0 {
            self.dirty.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the store is to hear of it, or it of the store.
    fn is_untold(&self) -> bool {
        self.unshared.get().is_some_and(|unshared| {
            unshared.wanted.swap(false, Ordering::Relaxed)
                || unshared.waiting.load(Ordering::Relaxed) > 0
                || unshared.attempt().open
        })
    }

    /// Somebody looks: the next look should see what others have booked meanwhile.
    pub(crate) fn wanted(&self) {
        if let Some(unshared) = self.unshared.get() {
            unshared.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Units used in this day and this month.
    pub(crate) fn units(&self, period: Period) -> (f64, f64) {
        (units(self.day.used(period.day)), units(self.month.used(period.month)))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is meant"
)]
fn thousandths(units: f64) -> u64 {
    (units * THOUSANDTHS).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "48 bits fit an f64")]
fn units(thousandths: u64) -> f64 {
    thousandths as f64 / THOUSANDTHS
}

/// The use of every key by its id.
type Uses = BTreeMap<Arc<str>, Arc<Standing>>;

/// Writing all use of a hundred thousand keys takes a while, on a core that calls want: it takes at most so small a part of
/// it.
const PART: u32 = 100;
/// But it is not put off for longer: a crash loses what was used since.
const MOST: Duration = Duration::from_secs(10);
/// Keys that are written at a time: the table is not held any longer.
const AT_A_TIME: usize = 1000;

/// What this thread has computed until now; a disk that is waited for takes nothing from anybody.
fn computed() -> Duration {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(clock).unwrap_or_default()
}

/// How often the file may be written.
#[derive(Debug, Default)]
struct Pace {
    /// Not before.
    next: Option<Instant>,
}

impl Pace {
    /// Whether it may be written at `now`.
    fn allows(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// It was, from `began` on, which took so much of a core.
    fn written(&mut self, began: Instant, took: Duration) {
        self.next = Some(began + (took * PART).min(MOST));
    }
}

/// The use of every key by its id, and the file that keeps it.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: Option<PathBuf>,
    /// In order, as in the file.
    used: Mutex<Uses>,
    dirty: Arc<AtomicBool>,
    pace: Mutex<Pace>,
    /// Whether the use is booked in a shared store, too.
    shared: AtomicBool,
}

/// The file: the day and month that its numbers belong to, and the numbers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    date: Date,
    keys: BTreeMap<String, KeptKey>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptKey {
    day_units: f64,
    month_units: f64,
}

/// Why a usage file cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// It cannot be read or written.
    #[error("auth.usage_file: {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// It is not what was written.
    #[error("auth.usage_file: {path}: {cause}; repair it, or remove it to count from zero")]
    Content {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: serde_json::Error,
    },
}

impl Ledger {
    /// The ledger in `file`; a missing file is an empty one.
    pub(crate) fn open(file: Option<&Path>) -> Result<Self, UsageError> {
        let dirty = Arc::default();
        let used = file.map_or_else(|| Ok(Uses::new()), |path| read(path, &dirty))?;
        Ok(Self {
            file: file.map(Path::to_path_buf),
            used: Mutex::new(used),
            dirty,
            pace: Mutex::default(),
            shared: AtomicBool::new(false),
        })
    }

    /// What the key `id` has used.
    pub(crate) fn of(&self, id: &Arc<str>) -> Arc<Standing> {
        let mut used = self.uses();
        let fresh = || {
            let used = Used { dirty: Arc::clone(&self.dirty), ..Used::default() };
            Arc::new(Standing { used, ..Standing::default() })
        };
        let standing = used.entry(Arc::clone(id)).or_insert_with(fresh);
        if self.shared.load(Ordering::Relaxed) {
            standing.used.unshared.get_or_init(Arc::default);
        }
        Arc::clone(standing)
    }

    /// From now on the use is booked in a shared store, too.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
        for standing in self.uses().values() {
            standing.used.unshared.get_or_init(Arc::default);
        }
    }

    /// The keys of which the shared store has something to hear, or somebody wants to hear.
    pub(crate) fn unshared(&self) -> Vec<(Arc<str>, Arc<Standing>)> {
        let used = self.uses();
        let untold = used.iter().filter(|(_, standing)| standing.used.is_untold());
        untold.map(|(id, standing)| (Arc::clone(id), Arc::clone(standing))).collect()
    }

    /// Writes the file, if anything was booked since the last time; where it takes long, not each time: then nothing is
    /// known of how it would go.
    pub(crate) fn save_in_pace(&self, wall: Timestamp) -> Option<Result<(), UsageError>> {
        let began = Instant::now();
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        if !pace.allows(began) {
            return None;
        }
        let before = computed();
        let saved = self.save(wall);
        pace.written(began, computed().saturating_sub(before));
        Some(saved)
    }

    /// Writes the file, if anything was booked since the last time.
    pub(crate) fn save(&self, wall: Timestamp) -> Result<(), UsageError> {
        let Some(path) = &self.file else { return Ok(()) };
        if !self.dirty.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        write::atomically_with(path, |file| self.write(file, Period::of(wall))).map_err(|cause| {
            self.dirty.store(true, Ordering::Relaxed);
            UsageError::Io { path: path.clone(), cause }
        })
    }

    /// Writes what [`Kept`] reads.
    fn write(&self, out: &mut impl Write, period: Period) -> io::Result<()> {
        write!(out, r#"{{"date":"{}","keys":{{"#, period.date)?;
        let (mut text, mut last, mut any) = (Vec::new(), None::<Arc<str>>, false);
        loop {
            text.clear();
            {
                let used = self.uses();
                let after = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut some = used.range::<str, _>((after, Bound::Unbounded)).take(AT_A_TIME).peekable();
                if some.peek().is_none() {
                    break;
                }
                let mut end = None;
                for (id, standing) in some {
                    end = Some(id);
                    let (day_units, month_units) = standing.used.units(period);
                    if month_units > 0.0 {
                        if std::mem::replace(&mut any, true) {
                            text.push(b',');
                        }
                        serde_json::to_writer(&mut text, &**id)?;
                        text.push(b':');
                        serde_json::to_writer(&mut text, &KeptKey { day_units, month_units })?;
                    }
                }
                last = end.map(Arc::clone);
            }
            out.write_all(&text)?;
        }
        out.write_all(b"}}\n")
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path, dirty: &Arc<AtomicBool>) -> Result<Uses, UsageError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Uses::new()),
        Err(cause) => return Err(UsageError::Io { path: path.to_path_buf(), cause }),
    };
    let kept: Kept = serde_json::from_str(&text)
        .map_err(|cause| UsageError::Content { path: path.to_path_buf(), cause })?;
    let midnight = Offset::UTC.to_timestamp(kept.date.to_datetime(jiff::civil::Time::midnight()));
    let period = Period::of(midnight.unwrap_or(Timestamp::UNIX_EPOCH));
    let used = |key: &KeptKey| Used {
        day: Window::at(period.day, thousandths(key.day_units)),
        month: Window::at(period.month, thousandths(key.month_units)),
        dirty: Arc::clone(dirty),
        unshared: OnceLock::new(),
    };
    Ok(kept
        .keys
        .iter()
        .map(|(id, key)| {
            (Arc::from(id.as_str()), Arc::new(Standing { used: used(key), ..Standing::default() }))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[track_caller]
    fn check(used: &Used, wall: &str, day: f64, month: f64) {
        let (d, m) = used.units(Period::of(at(wall)));
        assert!((d - day).abs() < 1e-9 && (m - month).abs() < 1e-9, "{wall}: {d} a day, {m} a month");
    }

    #[test]
    fn windows_roll_over_at_utc_midnight_and_month() {
        let used = Used::default();
        used.book(Period::of(at("2026-11-29T23:59:59.999Z")), 2.5);
        check(&used, "2026-11-29T00:00:00Z", 2.5, 2.5);
        check(&used, "2026-11-30T00:00:00Z", 0.0, 2.5);
        used.book(Period::of(at("2026-11-30T12:00:00Z")), 1.0);
        check(&used, "2026-11-30T23:59:59Z", 1.0, 3.5);
        check(&used, "2026-12-01T00:00:00Z", 0.0, 0.0);
        used.book(Period::of(at("2026-12-01T00:00:00Z")), 1.0);
        check(&used, "2026-12-01T00:00:00Z", 1.0, 1.0);
    }

    #[test]
    fn a_clock_that_jumps_gives_no_quota_twice() {
        let used = Used::default();
        used.book(Period::of(at("2026-11-30T00:00:01Z")), 5.0);
        check(&used, "2026-11-29T23:59:59Z", 5.0, 5.0);
        used.book(Period::of(at("2036-01-01T00:00:00Z")), 7.0);
        check(&used, "2026-11-30T00:00:02Z", 0.0, 0.0);
        used.book(Period::of(at("2026-11-30T00:00:02Z")), 1.0);
        check(&used, "2026-11-30T00:00:02Z", 1.0, 1.0);
    }

    #[test]
    fn the_end_of_a_window_is_known_before() {
        let (day, month) = Period::ends_in(at("2028-02-28T23:00:00Z"));
        assert_eq!((day.as_secs(), month.as_secs()), (3600, 3600 + 86_400));
    }

    #[test]
    fn use_outlives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usage.json");
        let wall = at("2026-11-21T12:00:00Z");
        let id = Arc::from("key-1");
        let ledger = Ledger::open(Some(&path)).unwrap();
        ledger.of(&id).used.book(Period::of(at("2026-11-20T12:00:00Z")), 4.0);
        ledger.of(&id).used.book(Period::of(wall), 1.5);
        ledger.of(&Arc::from("unused"));
        ledger.save(wall).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        insta::assert_snapshot!(text, @r#"
    {"date":"2026-11-21","keys":{"key-1":{"day_units":1.5,"month_units":5.5}}}
    "#);

        check(&Ledger::open(Some(&path)).unwrap().of(&id).used, "2026-11-21T13:00:00Z", 1.5, 5.5);
        check(&Ledger::open(Some(&path)).unwrap().of(&id).used, "2026-11-22T13:00:00Z", 0.0, 5.5);
        check(&Ledger::open(Some(&path)).unwrap().of(&id).used, "2027-11-21T13:00:00Z", 0.0, 0.0);

        std::fs::remove_file(&path).unwrap();
        ledger.save(wall).unwrap();
        assert!(!path.exists(), "nothing new, nothing written");

        std::fs::write(&path, "{}").unwrap();
        let error = Ledger::open(Some(&path)).unwrap_err().to_string();
        assert!(error.ends_with("repair it, or remove it to count from zero"), "{error}");
    }

    #[test]
    fn all_of_many_keys_are_written_in_order_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usage.json");
        let wall = at("2026-11-21T12:00:00Z");
        let ids: Vec<Arc<str>> = (0..=2 * AT_A_TIME).map(|i| Arc::from(format!("key-{i:05}"))).collect();
        let ledger = Ledger::open(Some(&path)).unwrap();
        // Every third has used nothing, so that pieces begin and end with such.
        let uses = |i: usize| if i.is_multiple_of(3) { 0.0 } else { f64::from(u32::try_from(i).unwrap()) };
        for (i, id) in ids.iter().enumerate().rev() {
            ledger.of(id).used.book(Period::of(wall), uses(i));
        }
        ledger.save(wall).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let places: Vec<_> = ids.iter().filter_map(|id| text.find(&**id)).collect();
        assert!(places.is_sorted() && places.len() == text.matches("key-").count(), "{}", places.len());
        let known = Ledger::open(Some(&path)).unwrap();
        for (i, id) in ids.iter().enumerate() {
            check(&known.of(id).used, "2026-11-21T13:00:00Z", uses(i), uses(i));
        }
    }

    #[test]
    fn writing_takes_a_small_part_of_the_time() {
        let (mut pace, ms, now) = (Pace::default(), Duration::from_millis, Instant::now());
        assert!(pace.allows(now));
        pace.written(now, ms(2));
        assert!(pace.allows(now + ms(1000)), "what is quick is written each second");
        pace.written(now, ms(30));
        assert!(!pace.allows(now + ms(2999)) && pace.allows(now + ms(3000)));
        pace.written(now, ms(3_600_000));
        assert!(!pace.allows(now + ms(9999)) && pace.allows(now + ms(10_000)), "and no crash loses more");
    }

    #[test]
    fn what_is_not_tried_is_no_success() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(Some(&folder.path().join("usage.json"))).unwrap();
        let wall = "2026-11-21T12:00:00Z".parse().unwrap();
        assert!(matches!(ledger.save_in_pace(wall), Some(Ok(()))));
        ledger.pace.lock().unwrap().written(Instant::now(), MOST);
        assert!(ledger.save_in_pace(wall).is_none());
    }
}
