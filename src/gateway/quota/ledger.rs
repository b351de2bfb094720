//! The usage of all keys, and the file that keeps it over restarts. Writing the file takes at most 1 % of a core,
//! because calls are served meanwhile. Writing takes more only if a single write needs more than 100 ms of CPU
//! time.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::super::write;
use super::{Period, Used, UsedUnits, Window, is_clock_set, thousandths};
use crate::config::io_fault;

type UsageById = BTreeMap<Arc<str>, Arc<Used>>;

/// The pause between the starts of two writes of the usage file, as a multiple of the earlier write's CPU time.
const PAUSE_FACTOR: u32 = 100;
/// The longest pause between the starts of two writes of the usage file. A crash loses the units used since the last
/// write.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// The maximum number of keys that are written to the usage file before the lock on the keys is released.
const KEYS_PER_LOCK: usize = 1000;

/// Returns the CPU time of this thread, which does not include waiting for a disk.
fn thread_cpu_time() -> Duration {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(clock).unwrap_or_default()
}

/// Returns the time from the start of a write that took the CPU time `took` until the next write may start.
fn pause_after(took: Duration) -> Duration {
    (took * PAUSE_FACTOR).min(MAX_PAUSE)
}

/// The usage of each key, and the file that keeps it over restarts.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: Option<PathBuf>,
    used: Mutex<UsageById>,
    /// True if units were used since the usage file was last written.
    dirty: Arc<AtomicBool>,
    /// The earliest time of the next write, `None` before the first write. The lock is held while the file is written.
    next_save: Mutex<Option<Instant>>,
    /// True if a shared store counts the used units as well.
    shared: AtomicBool,
}

/// The content of the usage file: the usage of the day and month that contain `date`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageFile {
    date: Date,
    keys: BTreeMap<String, KeyUsage>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyUsage {
    day_units: f64,
    month_units: f64,
}

/// The reason why a usage file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("auth.usage_file: {path}: {problem}", path = path.display())]
pub struct UsageError {
    path: PathBuf,
    problem: String,
}

impl UsageError {
    pub(crate) fn new(path: &Path, problem: &dyn Display) -> Self {
        Self { path: path.to_path_buf(), problem: problem.to_string() }
    }
}

impl Ledger {
    /// Reads the usage in `file`. Without a file, or if the file does not exist, there is no usage.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid.
    pub(crate) fn open(file: Option<&Path>) -> Result<Self, UsageError> {
        let dirty = Arc::default();
        let used = file.map_or_else(|| Ok(UsageById::new()), |path| read(path, &dirty))?;
        Ok(Self {
            file: file.map(Path::to_path_buf),
            used: Mutex::new(used),
            dirty,
            next_save: Mutex::default(),
            shared: AtomicBool::new(false),
        })
    }

    /// Returns the usage of the key `id`, which is zero for a new key.
    pub(crate) fn of(&self, id: &Arc<str>) -> Arc<Used> {
        let mut keys = self.uses();
        let fresh = || Arc::new(Used { dirty: Arc::clone(&self.dirty), ..Used::default() });
        let used = keys.entry(Arc::clone(id)).or_insert_with(fresh);
        if self.shared.load(Ordering::Relaxed) {
            used.pending.get_or_init(Arc::default);
        }
        Arc::clone(used)
    }

    /// Forgets the keys for which `is_in_force` returns false. Keeps such a key while a request uses it, or the
    /// shared store has not counted all its units. Also keeps a key that has used units in `period`. A key that
    /// comes back before it is forgotten continues its usage.
    pub(crate) fn forget(&self, period: Period, is_in_force: impl Fn(&str) -> bool) {
        self.uses()
            .retain(|id, used| is_in_force(id) || Arc::strong_count(used) > 1 || !used.is_over(period));
    }

    /// Makes all keys collect their units for the shared store. Called when the store is connected.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
        for used in self.uses().values() {
            used.pending.get_or_init(Arc::default);
        }
    }

    /// Returns the keys with units to add to the shared store, or with totals to read from it.
    pub(crate) fn pending(&self) -> Vec<(Arc<str>, Arc<Used>)> {
        let keys = self.uses();
        let pending = keys.iter().filter(|(_, used)| used.needs_booking());
        pending.map(|(id, used)| (Arc::clone(id), Arc::clone(used))).collect()
    }

    /// Returns the number of keys whose usage is kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.uses().len()
    }

    /// Writes the usage file as [`Self::save`] does. `None` if the last write was too recent.
    pub(crate) fn save_if_due(&self, wall: Timestamp) -> Option<Result<(), UsageError>> {
        let began = Instant::now();
        let mut next = self.next_save.lock();
        if next.is_some_and(|next| began < next) {
            return None;
        }
        let before = thread_cpu_time();
        let saved = self.save_now(wall);
        *next = Some(began + pause_after(thread_cpu_time().saturating_sub(before)));
        Some(saved)
    }

    /// Writes the usage file if one is configured and units were used since the last write. Waits for a write under way.
    ///
    /// # Errors
    /// The file cannot be written. The next call tries again.
    pub(crate) fn save(&self, wall: Timestamp) -> Result<(), UsageError> {
        let _one = self.next_save.lock();
        self.save_now(wall)
    }

    fn save_now(&self, wall: Timestamp) -> Result<(), UsageError> {
        let Some(path) = &self.file else { return Ok(()) };
        // With the date of such a clock, the file would be of a month that is over.
        if !is_clock_set(wall) || !self.dirty.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        write::atomically(path, |file| self.write(file, Period::of(wall))).map_err(|cause| {
            self.dirty.store(true, Ordering::Relaxed);
            UsageError::new(path, &cause)
        })
    }

    /// Writes the usage in `period` to `out`, in the form that [`UsageFile`] parses.
    fn write(&self, out: &mut impl Write, period: Period) -> io::Result<()> {
        write!(out, r#"{{"date":"{}","keys":{{"#, period.date)?;
        let (mut text, mut last, mut any) = (Vec::new(), None::<Arc<str>>, false);
        loop {
            text.clear();
            {
                let keys = self.uses();
                let after = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut some = keys.range::<str, _>((after, Bound::Unbounded)).take(KEYS_PER_LOCK).peekable();
                if some.peek().is_none() {
                    break;
                }
                let mut end = None;
                for (id, used) in some {
                    end = Some(id);
                    let [day_units, month_units] = used.units(period);
                    if month_units > 0.0 {
                        if std::mem::replace(&mut any, true) {
                            text.push(b',');
                        }
                        serde_json::to_writer(&mut text, &**id)?;
                        text.push(b':');
                        serde_json::to_writer(&mut text, &KeyUsage { day_units, month_units })?;
                    }
                }
                last = end.map(Arc::clone);
            }
            out.write_all(&text)?;
        }
        out.write_all(b"}}\n")
    }

    fn uses(&self) -> MutexGuard<'_, UsageById> {
        self.used.lock()
    }
}

fn read(path: &Path, dirty: &Arc<AtomicBool>) -> Result<UsageById, UsageError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(UsageById::new()),
        Err(cause) => {
            return Err(UsageError::new(path, &format!("cannot be read: {}", io_fault(path, &cause))));
        }
    };
    let file: UsageFile = serde_json::from_str(&text).map_err(|cause| {
        UsageError::new(path, &format!("{cause}; repair it, or remove it to count from zero"))
    })?;
    let midnight = Offset::UTC.to_timestamp(file.date.to_datetime(jiff::civil::Time::midnight()));
    let period = Period::of(midnight.unwrap_or(Timestamp::UNIX_EPOCH));
    let used = |key: &KeyUsage| Used {
        usage: UsedUnits([
            Window::at(period.day, thousandths(key.day_units)),
            Window::at(period.month, thousandths(key.month_units)),
        ]),
        dirty: Arc::clone(dirty),
        ..Used::default()
    };
    Ok(file.keys.iter().map(|(id, key)| (Arc::from(id.as_str()), Arc::new(used(key)))).collect())
}

#[cfg(test)]
mod tests {
    use super::super::Booker;
    use super::super::tests::{at, check};
    use super::*;

    impl Ledger {
        /// Lets no write end while the guard lives, as a disk that hangs.
        pub(in crate::gateway) fn hang(&self) -> MutexGuard<'_, Option<Instant>> {
            self.next_save.lock()
        }
    }

    #[test]
    fn clock_that_was_never_set_loses_no_usage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usage.json");
        let text = r#"{"date":"2026-11-21","keys":{"key-1":{"day_units":1.0,"month_units":5.0}}}"#;
        std::fs::write(&path, text).unwrap();
        let ledger = Ledger::open(Some(&path)).unwrap();
        let (id, never_set) = (Arc::from("key-1"), at("1970-01-01T00:00:05Z"));
        ledger.of(&id).book(Period::of(never_set), 2.0);
        ledger.forget(Period::of(never_set), |_| false);
        ledger.save(never_set).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);

        // The clock is set while the process runs.
        check(&ledger.of(&id), "2026-11-21T13:00:00Z", 3.0, 7.0);
        ledger.save(at("2026-11-21T13:00:00Z")).unwrap();
        check(&Ledger::open(Some(&path)).unwrap().of(&id), "2026-11-21T13:00:00Z", 3.0, 7.0);
    }

    #[test]
    fn usage_outlasts_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usage.json");
        let wall = at("2026-11-21T12:00:00Z");
        let id = Arc::from("key-1");
        let ledger = Ledger::open(Some(&path)).unwrap();
        ledger.of(&id).book(Period::of(at("2026-11-20T12:00:00Z")), 4.0);
        ledger.of(&id).book(Period::of(wall), 1.5);
        ledger.of(&Arc::from("unused"));
        ledger.save(wall).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        insta::assert_snapshot!(text, @r#"
    {"date":"2026-11-21","keys":{"key-1":{"day_units":1.5,"month_units":5.5}}}
    "#);

        check(&Ledger::open(Some(&path)).unwrap().of(&id), "2026-11-21T13:00:00Z", 1.5, 5.5);
        check(&Ledger::open(Some(&path)).unwrap().of(&id), "2026-11-22T13:00:00Z", 0.0, 5.5);
        check(&Ledger::open(Some(&path)).unwrap().of(&id), "2027-11-21T13:00:00Z", 0.0, 0.0);

        std::fs::remove_file(&path).unwrap();
        ledger.save(wall).unwrap();
        assert!(!path.exists(), "nothing new, nothing written");

        // A file that cannot be read whole stops the start, and would otherwise be overwritten without a part of it.
        for (wrong, named) in
            [("{}".to_owned(), "`date`"), (text.replace("5.5}", "5.5,\"hour_units\":1.0}"), "`hour_units`")]
        {
            std::fs::write(&path, wrong).unwrap();
            let error = Ledger::open(Some(&path)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
            assert!(error.ends_with("repair it, or remove it to count from zero"), "{error}");
        }
    }

    #[test]
    fn all_keys_are_written_once_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usage.json");
        let wall = at("2026-11-21T12:00:00Z");
        let ids: Vec<Arc<str>> = (0..=2 * KEYS_PER_LOCK).map(|i| Arc::from(format!("key-{i:05}"))).collect();
        let ledger = Ledger::open(Some(&path)).unwrap();
        // Every third key has used nothing, so that groups of `KEYS_PER_LOCK` keys begin or end with unused keys.
        let uses = |i: usize| if i.is_multiple_of(3) { 0.0 } else { f64::from(u32::try_from(i).unwrap()) };
        for (i, id) in ids.iter().enumerate().rev() {
            ledger.of(id).book(Period::of(wall), uses(i));
        }
        ledger.save(wall).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let places: Vec<_> = ids.iter().filter_map(|id| text.find(&**id)).collect();
        assert!(places.is_sorted() && places.len() == text.matches("key-").count(), "{}", places.len());
        let known = Ledger::open(Some(&path)).unwrap();
        for (i, id) in ids.iter().enumerate() {
            check(&known.of(id), "2026-11-21T13:00:00Z", uses(i), uses(i));
        }
    }

    #[test]
    fn writing_takes_a_hundredth_of_a_core() {
        let ms = Duration::from_millis;
        assert!(pause_after(ms(2)) < ms(1000), "a quick write repeats each second");
        assert_eq!(pause_after(ms(30)), ms(3000));
        assert_eq!(pause_after(ms(3_600_000)), ms(10_000), "bounded loss in a crash");
    }

    #[test]
    fn skipped_writes_are_not_reported_as_success() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(Some(&folder.path().join("usage.json"))).unwrap();
        let wall = "2026-11-21T12:00:00Z".parse().unwrap();
        assert!(matches!(ledger.save_if_due(wall), Some(Ok(()))));
        *ledger.next_save.lock() = Some(Instant::now() + MAX_PAUSE);
        assert!(ledger.save_if_due(wall).is_none());
    }

    #[test]
    fn unused_keys_are_forgotten_after_their_end() {
        let (ledger, now) = (Ledger::open(None).unwrap(), Period::of(at("2026-11-21T12:00:00Z")));
        let names = ["in force", "used", "held", "revoked"];
        let [in_force, used, held, revoked] = names.map(|name| ledger.of(&Arc::from(name)));
        used.book(now, 1.0);
        drop((in_force, used, revoked));
        let forget = || ledger.forget(now, |id| id == "in force");
        let known = || -> Vec<_> { ledger.uses().keys().map(ToString::to_string).collect() };
        forget();
        assert_eq!(known(), ["held", "in force", "used"]);
        drop(held);
        forget();
        assert_eq!(known(), ["in force", "used"]);
    }

    #[test]
    fn bookings_of_returned_keys_count() {
        let (ledger, gateway, id) = (Ledger::open(None).unwrap(), Booker::new(), Arc::from("key"));
        ledger.share();
        let book = |wall| {
            let used = ledger.of(&id);
            let period = Period::of(at(wall));
            used.book(period, 1.0);
            let booking = used.booking(period, &gateway);
            used.booked(&booking, booking.units, period);
            booking.number
        };
        let first = book("2026-11-30T12:00:00Z");
        ledger.forget(Period::of(at("2026-12-01T12:00:00Z")), |_| false);
        assert_eq!(ledger.len(), 0);
        // The store counts a number only once, and still knows the first booking.
        assert!(book("2026-12-02T12:00:00Z") > first);
    }

    #[test]
    fn totals_of_other_gateways_are_saved() {
        let dir = tempfile::tempdir().unwrap();
        let (path, wall) = (dir.path().join("usage.json"), at("2026-11-21T12:00:00Z"));
        let (id, period) = (Arc::from("key"), Period::of(wall));
        let ledger = Ledger::open(Some(&path)).unwrap();
        ledger.share();
        ledger.of(&id).book(period, 1.0);
        ledger.save(wall).unwrap();
        let booking = ledger.of(&id).booking(period, &Booker::new());
        ledger.of(&id).booked(&booking, [4000, 8000], period);
        ledger.save(wall).unwrap();
        check(&Ledger::open(Some(&path)).unwrap().of(&id), "2026-11-21T13:00:00Z", 4.0, 8.0);
    }
}
