//! The use of every key, and the file that keeps it over a restart: written while calls go on, so a small part of a core
//! at most is spent on it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::super::write;
use super::{Period, Used, Window, thousandths};

/// The use of every key by its id.
type Uses = BTreeMap<Arc<str>, Arc<Used>>;

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

    /// Returns the use of the key `id`.
    pub(crate) fn of(&self, id: &Arc<str>) -> Arc<Used> {
        let mut keys = self.uses();
        let fresh = || Arc::new(Used { dirty: Arc::clone(&self.dirty), ..Used::default() });
        let used = keys.entry(Arc::clone(id)).or_insert_with(fresh);
        if self.shared.load(Ordering::Relaxed) {
            used.unshared.get_or_init(Arc::default);
        }
        Arc::clone(used)
    }

    /// Forgets the keys that are not in force, once nothing of their use counts any more: until then a key that comes back
    /// goes on where it was. A key that a call still holds is kept.
    pub(crate) fn forget(&self, period: Period, is_in_force: impl Fn(&str) -> bool) {
        self.uses()
            .retain(|id, used| is_in_force(id) || Arc::strong_count(used) > 1 || !used.is_over(period));
    }

    /// From now on the use is booked in a shared store, too.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
        for used in self.uses().values() {
            used.unshared.get_or_init(Arc::default);
        }
    }

    /// The keys of which the shared store has something to hear, or somebody wants to hear.
    pub(crate) fn unshared(&self) -> Vec<(Arc<str>, Arc<Used>)> {
        let keys = self.uses();
        let untold = keys.iter().filter(|(_, used)| used.is_untold());
        untold.map(|(id, used)| (Arc::clone(id), Arc::clone(used))).collect()
    }

    /// How many keys it knows.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.uses().len()
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
                let keys = self.uses();
                let after = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut some = keys.range::<str, _>((after, Bound::Unbounded)).take(AT_A_TIME).peekable();
                if some.peek().is_none() {
                    break;
                }
                let mut end = None;
                for (id, used) in some {
                    end = Some(id);
                    let (day_units, month_units) = used.units(period);
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
    Ok(kept.keys.iter().map(|(id, key)| (Arc::from(id.as_str()), Arc::new(used(key)))).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, check};
    use super::*;

    #[test]
    fn use_outlives_a_restart() {
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
