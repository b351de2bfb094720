//! The usage of all keys, and the file that keeps it over restarts.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use super::super::clock::{Period, is_clock_set};
use super::super::usage_file::{UsageFile, UsageLines};
use super::{Record, Used};
use crate::redis_store::limits::{Booker, Booking};

/// The usage of each key, and the file that keeps it over restarts.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The lock is held while the file is written.
    file: Option<Mutex<UsageFile>>,
    keys: Mutex<BTreeMap<Arc<str>, Account>>,
    /// True if a shared store counts the used units as well.
    shared: AtomicBool,
    booker: Booker,
}

#[derive(Debug)]
struct Account {
    name: Arc<str>,
    used: Arc<Used>,
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
        let mut ledger = Self {
            file: None,
            keys: Mutex::default(),
            shared: AtomicBool::new(false),
            booker: Booker::new(),
        };
        let Some(path) = file else { return Ok(ledger) };
        let fault = |problem: String| UsageError::new(path, &problem);
        let mut lines = UsageLines::open(path).map_err(fault)?;
        ledger.file = Some(Mutex::new(UsageFile::new(path, 0)));
        for line in &mut lines {
            let line = line.map_err(fault)?;
            let used = ledger.of(&Arc::from(line.key), &Arc::from(line.name));
            used.lock().used.set(Period::of_date(line.day), line.used.map(|units| units.0));
        }
        if let Some(line) = lines.cut {
            let usage_file = path.display();
            tracing::warn!(%usage_file, line, "the last line of the usage file was not written to its end, and does not count");
        }
        ledger.file = Some(Mutex::new(UsageFile::new(path, lines.len)));
        Ok(ledger)
    }

    /// Returns the usage of the key `id` of the owner `name`, which is zero for a new key.
    pub(crate) fn of(&self, id: &Arc<str>, name: &Arc<str>) -> Arc<Used> {
        let mut keys = self.keys();
        let account = keys.entry(Arc::clone(id)).or_insert_with(|| {
            let record = Record { unsaved: self.file.as_ref().map(|_| Vec::new()), ..Record::default() };
            Account { name: Arc::default(), used: Arc::new(Used(Mutex::new(record))) }
        });
        account.name = Arc::clone(name);
        if self.shared.load(Ordering::Relaxed) {
            account.used.lock().sharing.get_or_insert_default();
        }
        Arc::clone(&account.used)
    }

    /// Forgets the keys for which `is_in_force` returns false. Keeps such a key while a request uses it, the file or the
    /// shared store lacks some of its units, or it has used units in `period`. A key that comes back before it is forgotten
    /// continues its usage.
    pub(crate) fn forget(&self, period: Period, is_in_force: impl Fn(&str) -> bool) {
        self.keys().retain(|id, Account { used, .. }| {
            is_in_force(id) || Arc::strong_count(used) > 1 || !used.is_over(period)
        });
    }

    /// Makes all keys collect their units for the shared store. Called when the store is connected.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
        for account in self.keys().values() {
            account.used.lock().sharing.get_or_insert_default();
        }
    }

    pub(crate) fn bookings(&self, period: Period) -> Vec<(Arc<str>, Arc<Used>, Booking)> {
        let keys = self.keys();
        let due = keys.iter().filter_map(|(id, Account { used, .. })| {
            Some((Arc::clone(id), Arc::clone(used), used.booking(period, &self.booker)?))
        });
        due.collect()
    }

    pub(crate) fn booker(&self) -> &Booker {
        &self.booker
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.keys().len()
    }

    /// Writes what the usage file does not have yet. Waits for a write under way.
    ///
    /// # Errors
    /// The file cannot be written. The next call tries again.
    pub(crate) fn save(&self, wall: Timestamp) -> Result<(), UsageError> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut file = file.lock();
        let fault = |path: &Path, cause: &dyn Display| UsageError::new(path, cause);
        // What could not be written before is written first, so that no more than that waits here.
        file.save().map_err(|cause| fault(&cause.path, &cause))?;
        if is_clock_set(wall) {
            for (id, Account { name, used }) in &*self.keys() {
                used.write_unsaved(id, name, Period::of(wall).day, &mut file.unwritten);
            }
        }
        file.save().map_err(|cause| fault(&cause.path, &cause))
    }

    fn keys(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Account>> {
        self.keys.lock()
    }
}

#[cfg(test)]
impl Ledger {
    /// Lets no write end while the guard lives, as a disk that hangs.
    pub(in crate::gateway) fn hang(&self) -> MutexGuard<'_, UsageFile> {
        self.file.as_ref().unwrap().lock()
    }
}
