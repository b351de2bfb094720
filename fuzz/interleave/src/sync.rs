//! The names of the product's `src/sync.rs`, on shuttle's tasks and locks.

use std::sync::Arc;
pub use std::time::Instant;

use shuttle::future::{JoinHandle, block_on, spawn};
pub use shuttle::sync::{MutexGuard, RwLockReadGuard, atomic};

pub mod watch;

pub const UNDER_SHUTTLE: bool = true;

/// A lock with the interface of `parking_lot`, which knows no poison.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// As [`Mutex`].
#[derive(Debug, Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap()
    }

    pub fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap()
    }
}

/// A replacement of `tokio_util`'s tracker, on shuttle's tasks.
#[derive(Debug, Clone, Default)]
pub struct TaskTracker(Arc<std::sync::Mutex<Vec<JoinHandle<()>>>>);

impl TaskTracker {
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = spawn(task);
        self.0.lock().unwrap().push(task);
    }

    /// Runs every task to its end. Each scene must end with this call, because the scheduler drops unfinished tasks, and
    /// taking a lock during a drop aborts the process.
    pub fn finish(&self) {
        loop {
            let task = self.0.lock().unwrap().pop();
            let Some(task) = task else { return };
            block_on(task).unwrap();
        }
    }
}
