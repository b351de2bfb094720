//! The lock on the usage file. Each process writes the whole file from its own counts, so two processes with one file
//! would overwrite each other's.
//!
//! The system frees the lock when its process ends, however it ends. The text in the lock file names the process, for
//! messages only.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::quota::UsageError;
use super::write::{self, FileError};

const RETRY: Duration = Duration::from_millis(100);
const MAX_TEXT: u64 = 512;

/// The lock on a usage file, which is held until the value is dropped.
#[derive(Debug)]
pub struct UsageLock {
    file: File,
    /// The text that the last process has left in the lock file, because it did not end in an orderly way.
    left: String,
}

impl UsageLock {
    /// Waits at most `patience` for the lock on the usage file `path`. A process that is stopping holds it until its
    /// requests in flight have finished. `None` if the file cannot be locked, for example on a read-only disk.
    ///
    /// # Errors
    /// Another process still holds the lock. The error names it.
    pub async fn wait(path: &Path, patience: Duration) -> Result<Option<Self>, UsageError> {
        let deadline = Instant::now() + patience;
        let mut told = false;
        let usage_file = path.display();
        loop {
            let holder = match Self::take(path) {
                Ok(Ok(lock)) => {
                    lock.warn_of_another_host(path);
                    return Ok(Some(lock));
                }
                Ok(Err(holder)) => holder,
                Err(error) => {
                    tracing::warn!(%usage_file, %error, "the usage file cannot be locked: a second process with the same file would go unnoticed");
                    return Ok(None);
                }
            };
            if Instant::now() >= deadline {
                let why = "uses it, and two processes would overwrite each other's counts; stop that one, or give each process a file of its own";
                return Err(UsageError::new(path, &format!("{holder} {why}")));
            }
            if !std::mem::replace(&mut told, true) {
                let wait_at_most_ms = patience.as_millis();
                tracing::warn!(%usage_file, %holder, wait_at_most_ms, "another process holds the usage file; waiting for its end");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Takes the lock if it is free. Otherwise returns the name of the process that holds it.
    fn take(path: &Path) -> Result<Result<Self, String>, FileError> {
        let file = write::lock_file(path)?;
        Self::hold(file).map_err(|cause| FileError { path: write::lock_path(path), cause })
    }

    fn hold(mut file: File) -> io::Result<Result<Self, String>> {
        let locked = file.try_lock();
        let mut text = Vec::new();
        (&file).take(MAX_TEXT).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        match locked {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(error),
            // A process that has just taken the lock has not written its name yet.
            Err(TryLockError::WouldBlock) if text.is_empty() => return Ok(Err("another process".to_owned())),
            Err(TryLockError::WouldBlock) => return Ok(Err(text)),
        }
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "process {} on {}", std::process::id(), host())?;
        Ok(Ok(Self { file, left: text }))
    }

    /// Warns if a process on another host has not given the lock back: either the host is gone, or the locks of this
    /// file system do not reach it.
    fn warn_of_another_host(&self, path: &Path) {
        if !self.left.is_empty() && !self.left.ends_with(&format!(" on {}", host())) {
            tracing::warn!(
                usage_file = %path.display(),
                holder = self.left,
                "the usage file was not given back; if that process still runs, the locks of this file system do not reach it, and both overwrite each other's counts"
            );
        }
    }
}

impl Drop for UsageLock {
    /// Removes the name of this process. The system then frees the lock.
    fn drop(&mut self) {
        // Only the text of a message depends on this.
        let _ = self.file.set_len(0);
    }
}

/// Returns the name of this machine or container. Only Linux tells it in a file.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "this host".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TIME: Duration = Duration::ZERO;

    #[tokio::test]
    async fn one_process_holds_a_usage_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usage.json");
        let lock_file = dir.path().join("usage.json.lock");
        let held = UsageLock::wait(&path, NO_TIME).await.unwrap().unwrap();
        let who = format!("process {} on {}", std::process::id(), host());
        assert_eq!(std::fs::read_to_string(&lock_file).unwrap(), who);
        let refused = UsageLock::wait(&path, NO_TIME).await.unwrap_err().to_string();
        assert!(refused.contains(&who) && refused.contains("usage.json"), "{refused}");
        // A symlink is the same file, and a name that was never written does not matter.
        std::fs::write(&path, "{}").unwrap();
        std::os::unix::fs::symlink(&path, dir.path().join("link.json")).unwrap();
        std::fs::write(&lock_file, "").unwrap();
        let refused = UsageLock::wait(&dir.path().join("link.json"), NO_TIME).await.unwrap_err().to_string();
        assert!(refused.contains("another process"), "{refused}");

        let waiting = UsageLock::wait(&path, Duration::from_mins(1));
        let (taken, ()) = tokio::join!(waiting, async { drop(held) });
        drop(taken.unwrap().unwrap());
        assert_eq!(std::fs::read_to_string(&lock_file).unwrap(), "");
    }

    #[tokio::test]
    async fn locks_of_dead_processes_are_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usage.json");
        for left in ["process 7 on elsewhere", &"x".repeat(10_000), &format!("process 7 on {}", host())] {
            std::fs::write(dir.path().join("usage.json.lock"), left).unwrap();
            let lock = UsageLock::wait(&path, NO_TIME).await.unwrap().unwrap();
            assert_eq!(lock.left.len(), left.len().min(512));
        }
    }

    #[tokio::test]
    async fn unlockable_files_are_used_without_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().join("missing/usage.json"), "/proc/usage.json".into()] {
            assert!(UsageLock::wait(&path, NO_TIME).await.unwrap().is_none(), "{path:?}");
        }
    }
}
