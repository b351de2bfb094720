//! Detects changes of a file by polling.
//!
//! Polling also sees mounted config maps that swap a symlink, network file systems, and editors that replace the
//! file. A check costs one `stat`; the content is read if the result differs.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::secret::sha256;

/// A watched file, and the result of the last check.
#[derive(Debug)]
pub(crate) struct Watched {
    path: PathBuf,
    stamp: Option<FileStamp>,
    content: Option<[u8; 32]>,
    /// The hash of the content at the last check, if the file was recently written and the content is not reported yet.
    unsettled: Option<[u8; 32]>,
    last_error: Option<io::ErrorKind>,
}

/// The metadata of a file, read through symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
    /// True for a recently written file. Two writes within one tick of the file system's clock look equal, so the file
    /// is read again.
    young: bool,
}

/// The longest tick of a file system's clock, in seconds. FAT has the longest.
const TICK_SECONDS: u64 = 2;

/// The maximum number of checks of a file that is being written.
const MAX_CHECKS: usize = 5;

impl Watched {
    /// Watches the file at `path`, which may not exist yet. The first [`Watched::look`] reports the content of an
    /// existing file.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), stamp: None, content: None, unsettled: None, last_error: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content if it has changed since the last check, otherwise `None`. A missing file is not a change:
    /// the last content stays in force.
    ///
    /// # Errors
    /// The file exists, but cannot be read or is not UTF-8. Each error is reported once until the file can be read
    /// again.
    pub(crate) fn look(&mut self) -> io::Result<Option<String>> {
        self.read_reporting_once(false)
    }

    /// Works like [`Self::look`], but reports a recently written file only after two checks found the same content,
    /// because it may be half written.
    ///
    /// # Errors
    /// As for [`Self::look`].
    pub(crate) fn look_twice(&mut self) -> io::Result<Option<String>> {
        self.read_reporting_once(true)
    }

    /// Creates a second watch of the file that `before` watches. If the file still has the content that `before`
    /// reported last, the first check of the new watch reports this content at once.
    pub(crate) fn anew(before: &Self) -> Self {
        Self { unsettled: before.content, ..Self::new(&before.path) }
    }

    /// Returns the complete content, or `None` if the file is missing. Repeats the check while the content may be half
    /// written, and calls `pause` before each repetition.
    ///
    /// # Errors
    /// [`Self::look`] fails, or the file is still being written after five checks.
    pub(crate) fn settle(&mut self, mut pause: impl FnMut()) -> io::Result<Option<String>> {
        for _ in 0..MAX_CHECKS {
            let text = self.look_twice()?;
            let is_missing = self.stamp.is_none();
            if text.is_some() || is_missing {
                return Ok(text);
            }
            pause();
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    fn read_reporting_once(&mut self, twice: bool) -> io::Result<Option<String>> {
        match self.read(twice) {
            Ok(bytes) => {
                self.last_error = None;
                let text = bytes.map(String::from_utf8).transpose();
                text.map_err(|_| io::ErrorKind::InvalidData.into())
            }
            Err(e) => {
                self.unsettled = None;
                let before = self.last_error.replace(e.kind());
                if before == Some(e.kind()) { Ok(None) } else { Err(e) }
            }
        }
    }

    fn read(&mut self, twice: bool) -> io::Result<Option<Vec<u8>>> {
        let stamp = match std::fs::metadata(&self.path) {
            Ok(meta) => FileStamp::of(&meta),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                (self.stamp, self.unsettled) = (None, None);
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        if self.stamp == Some(stamp) && !stamp.young && self.last_error.is_none() {
            return Ok(None);
        }
        let bytes = std::fs::read(&self.path)?;
        self.stamp = Some(stamp);
        let hash = sha256(&bytes);
        if self.content == Some(hash) {
            self.unsettled = None;
        } else if twice && stamp.young && self.unsettled.replace(hash) != Some(hash) {
            return Ok(None);
        }
        let same = self.content.replace(hash) == Some(hash);
        Ok((!same).then_some(bytes))
    }
}

impl FileStamp {
    fn of(meta: &std::fs::Metadata) -> Self {
        let modified = meta.modified().ok();
        let age = modified.and_then(|at| at.elapsed().ok());
        let young = age.is_none_or(|age| age.as_secs() < TICK_SECONDS);
        Self { modified, len: meta.len(), inode: meta.ino(), young }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_changes_are_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut watched = Watched::new(&path);
        assert_eq!(watched.look().unwrap(), None, "missing is no change");

        std::fs::write(&path, "a").unwrap();
        assert_eq!(watched.look().unwrap().as_deref(), Some("a"), "appeared");
        assert_eq!(watched.look().unwrap(), None, "reported once");

        std::fs::write(&path, "b").unwrap();
        assert_eq!(watched.look().unwrap().as_deref(), Some("b"), "same length, same tick of the clock");

        std::fs::write(&path, "b").unwrap();
        assert_eq!(watched.look().unwrap(), None, "touched, not changed");

        std::fs::write(dir.path().join("new"), "c").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert_eq!(watched.look().unwrap().as_deref(), Some("c"), "renamed over");

        std::fs::remove_file(&path).unwrap();
        assert_eq!(watched.look().unwrap(), None, "gone is no change");
        std::fs::write(&path, "c").unwrap();
        assert_eq!(watched.look().unwrap(), None, "back with the known content");

        std::fs::write(&path, [0xff]).unwrap();
        assert!(watched.look().is_err(), "not text");
        assert_eq!(watched.look().unwrap(), None, "reported once");
        std::fs::write(&path, [0xfe]).unwrap();
        assert!(watched.look().is_err(), "other content that is not text");
        std::fs::write(&path, "d").unwrap();
        assert_eq!(watched.look().unwrap().as_deref(), Some("d"), "text again");
    }

    #[test]
    fn recent_writes_are_reported_after_two_equal_checks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut watched = Watched::new(&path);
        std::fs::write(&path, "ab").unwrap();
        assert_eq!(watched.look().unwrap().as_deref(), Some("ab"));
        for half in ["", "c"] {
            std::fs::write(&path, half).unwrap();
            assert_eq!(watched.look_twice().unwrap(), None, "{half:?} may be half of it");
        }
        std::fs::write(&path, "ab").unwrap();
        assert_eq!(watched.look_twice().unwrap(), None, "as before");
        std::fs::write(&path, "c").unwrap();
        assert_eq!(watched.look_twice().unwrap(), None, "the check before found another content");
        assert_eq!(watched.look_twice().unwrap().as_deref(), Some("c"));
        assert_eq!(watched.look_twice().unwrap(), None, "reported once");

        std::fs::write(&path, "d").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - std::time::Duration::from_mins(1)).unwrap();
        assert_eq!(watched.look_twice().unwrap().as_deref(), Some("d"), "an old file is complete");
    }

    #[test]
    fn settle_waits_for_half_written_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut pauses = 0;
        let missing = Watched::new(&path).settle(|| unreachable!("there is nothing to wait for"));
        assert_eq!(missing.unwrap(), None);
        std::fs::write(&path, "ha").unwrap();
        let mut watched = Watched::new(&path);
        let text = watched.settle(|| {
            pauses += 1;
            std::fs::write(&path, "half").unwrap();
        });
        assert_eq!((text.unwrap().as_deref(), pauses), (Some("half"), 2));
        let known = Watched::anew(&watched).settle(|| unreachable!("it is known"));
        assert_eq!(known.unwrap().as_deref(), Some("half"));
        let restless = Watched::new(&path).settle(|| {
            pauses += 1;
            std::fs::write(&path, pauses.to_string()).unwrap();
        });
        assert_eq!(restless.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    }

    #[test]
    fn swapped_symlinks_are_changes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, text) in [("one", "1"), ("two", "2")] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("keys"), text).unwrap();
        }
        std::os::unix::fs::symlink(at("one"), at("data")).unwrap();
        let mut watched = Watched::new(at("data").join("keys"));
        assert_eq!(watched.look().unwrap().as_deref(), Some("1"));
        std::os::unix::fs::symlink(at("two"), at("next")).unwrap();
        std::fs::rename(at("next"), at("data")).unwrap();
        assert_eq!(watched.look().unwrap().as_deref(), Some("2"));
    }
}
