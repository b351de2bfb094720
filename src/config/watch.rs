//! Detects changes of files by polling.
//!
//! Polling also sees mounted config maps that swap a symlink, network file systems, and editors that replace the
//! file. A check of a [`Watched`] file costs one `stat`; the content is read if the result differs.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::secret::sha256;

/// The pause between two looks at a file. A change is in force within two seconds if the file is quiet (two looks), and
/// within three if it changes all the time (three looks); what is left of them is for the work itself.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(900);

/// Reads a file that a setting names. Of what is no file, such as a FIFO, nothing is read, because a reader could wait for
/// its content for ever.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    std::fs::read(path)
}

/// Reads a text file that a setting names, as [`read_file`] does.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_file(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

/// The look at which a file that has changed at each look is taken as it is.
const LAST_LOOK: u32 = 3;

/// Decides when a changed content is whole: when two looks in a row have found it, or at the third look if each of them
/// has found another one. Whoever changes a file all the time would otherwise keep its changes out of force.
#[derive(Debug)]
pub(crate) struct Settling<T> {
    /// The content that was taken last.
    taken: Option<T>,
    /// The content at the last look.
    found: Option<T>,
    /// The number of looks in a row that have found another content than the look before.
    changes: u32,
}

impl<T: Clone + PartialEq> Settling<T> {
    pub(crate) fn of(taken: Option<T>) -> Self {
        Self { found: taken.clone(), taken, changes: 0 }
    }

    /// Makes `content` the one that was taken last.
    pub(crate) fn take(&mut self, content: T) {
        *self = Self::of(Some(content));
    }

    /// Notes what a look has found. Returns true if it is another content than the one that was taken, and is whole.
    pub(crate) fn is_due(&mut self, found: &T) -> bool {
        let is_new = self.taken.as_ref() != Some(found);
        let is_same = self.found.replace(found.clone()).as_ref() == Some(found);
        self.changes = if is_new && !is_same { self.changes + 1 } else { 0 };
        let is_due = is_new && (is_same || self.changes == LAST_LOOK);
        self.changes %= LAST_LOOK;
        is_due
    }
}

/// A watched file, and the result of the last check.
#[derive(Debug)]
pub(crate) struct Watched {
    path: PathBuf,
    stamp: Option<FileStamp>,
    /// The hashes of the content. It is taken once it was reported as whole.
    settling: Settling<[u8; 32]>,
    last_error: Option<io::ErrorKind>,
}

/// A new content of a watched file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewContent {
    pub(crate) text: String,
    /// False if it may be half written.
    pub(crate) is_whole: bool,
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

impl Watched {
    /// Watches the file at `path`, which may not exist yet. The first [`Watched::look`] reports the content of an
    /// existing file.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), stamp: None, settling: Settling::of(None), last_error: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content as whole if it has changed since it was last reported so, otherwise `None`. A missing file is
    /// not a change: the last content stays in force.
    ///
    /// # Errors
    /// The file exists, but cannot be read or is not UTF-8. Each error is reported once until the file can be read
    /// again.
    pub(crate) fn look(&mut self) -> io::Result<Option<NewContent>> {
        self.read_reporting_once(true)
    }

    /// Works like [`Self::look`], but reports the content as whole only once it has settled, because it may be half
    /// written. Until then, each check reports what it has found.
    ///
    /// # Errors
    /// As for [`Self::look`].
    pub(crate) fn look_again(&mut self) -> io::Result<Option<NewContent>> {
        self.read_reporting_once(false)
    }

    /// Creates a second watch of the file that `before` watches. If the file still has the content that `before`
    /// reported last as whole, the first check of the new watch does so at once.
    pub(crate) fn anew(before: &Self) -> Self {
        let Settling { taken, changes, .. } = before.settling;
        let settling = Settling { taken: None, found: taken, changes };
        Self { settling, ..Self::new(&before.path) }
    }

    /// Returns the whole content, or `None` if the file is missing. While the content may be half written, gives it to
    /// `pause`, and checks again.
    ///
    /// # Errors
    /// As for [`Self::look`].
    pub(crate) fn settle(&mut self, mut pause: impl FnMut(&str)) -> io::Result<Option<String>> {
        loop {
            match self.look_again()? {
                Some(NewContent { text, is_whole: false }) => pause(&text),
                whole => return Ok(whole.map(|new| new.text)),
            }
        }
    }

    fn read_reporting_once(&mut self, at_once: bool) -> io::Result<Option<NewContent>> {
        match self.read(at_once) {
            Ok(new) => {
                self.last_error = None;
                let Some((bytes, is_whole)) = new else { return Ok(None) };
                let text = String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData)?;
                Ok(Some(NewContent { text, is_whole }))
            }
            Err(e) => {
                self.settling = Settling::of(self.settling.taken);
                let before = self.last_error.replace(e.kind());
                if before == Some(e.kind()) { Ok(None) } else { Err(e) }
            }
        }
    }

    /// Returns a new content, and whether it is whole.
    fn read(&mut self, at_once: bool) -> io::Result<Option<(Vec<u8>, bool)>> {
        let stamp = match std::fs::metadata(&self.path) {
            Ok(meta) => FileStamp::of(&meta),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                (self.stamp, self.settling) = (None, Settling::of(self.settling.taken));
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let is_settled = self.settling.found == self.settling.taken;
        if self.stamp == Some(stamp) && !stamp.young && is_settled && self.last_error.is_none() {
            return Ok(None);
        }
        let bytes = read_file(&self.path)?;
        self.stamp = Some(stamp);
        let hash = sha256(&bytes);
        let is_whole = self.settling.is_due(&hash) || at_once;
        if self.settling.taken == Some(hash) {
            return Ok(None);
        }
        if is_whole {
            self.settling.take(hash);
        }
        Ok(Some((bytes, is_whole)))
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

    fn whole(found: io::Result<Option<NewContent>>) -> Option<String> {
        let new = found.unwrap()?;
        assert!(new.is_whole);
        Some(new.text)
    }

    #[test]
    fn content_changes_are_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut watched = Watched::new(&path);
        assert_eq!(whole(watched.look()), None, "missing is no change");

        std::fs::write(&path, "a").unwrap();
        assert_eq!(whole(watched.look()).as_deref(), Some("a"), "appeared");
        assert_eq!(whole(watched.look()), None, "reported once");

        std::fs::write(&path, "b").unwrap();
        assert_eq!(whole(watched.look()).as_deref(), Some("b"), "same length, same tick of the clock");

        std::fs::write(&path, "b").unwrap();
        assert_eq!(whole(watched.look()), None, "touched, not changed");

        std::fs::write(dir.path().join("new"), "c").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert_eq!(whole(watched.look()).as_deref(), Some("c"), "renamed over");

        std::fs::remove_file(&path).unwrap();
        assert_eq!(whole(watched.look()), None, "gone is no change");
        std::fs::write(&path, "c").unwrap();
        assert_eq!(whole(watched.look()), None, "back with the known content");

        std::fs::write(&path, [0xff]).unwrap();
        assert!(watched.look().is_err(), "not text");
        assert_eq!(whole(watched.look()), None, "reported once");
        std::fs::write(&path, [0xfe]).unwrap();
        assert!(watched.look().is_err(), "other content that is not text");
        std::fs::write(&path, "d").unwrap();
        assert_eq!(whole(watched.look()).as_deref(), Some("d"), "text again");
    }

    #[test]
    fn contents_are_whole_after_two_equal_checks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut watched = Watched::new(&path);
        std::fs::write(&path, "ab").unwrap();
        assert_eq!(whole(watched.look()).as_deref(), Some("ab"));
        let mut found = |text: &str| {
            std::fs::write(&path, text).unwrap();
            watched.look_again().unwrap().map(|new| (new.text, new.is_whole))
        };
        let half = |text: &str| Some((text.to_owned(), false));
        for text in ["", "c"] {
            assert_eq!(found(text), half(text), "{text:?} may be half of it");
        }
        assert_eq!(found("ab"), None, "as before");
        assert_eq!(found("c"), half("c"), "the check before found another content");
        assert_eq!(found("c"), Some(("c".to_owned(), true)));
        assert_eq!(found("c"), None, "reported once");
    }

    #[test]
    fn old_files_are_checked_twice_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "a").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        // The clock of a file server may be behind, so a file that is being written may look old.
        file.set_modified(SystemTime::now() - Duration::from_mins(1)).unwrap();
        let mut watched = Watched::new(&path);
        let mut is_whole = || watched.look_again().unwrap().map(|new| new.is_whole);
        assert_eq!([is_whole(), is_whole(), is_whole()], [Some(false), Some(true), None]);
    }

    #[test]
    fn restless_contents_are_taken_at_the_third_check() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut watched = Watched::new(&path);
        let mut taken = (0..9).map(|i: i32| {
            std::fs::write(&path, i.to_string()).unwrap();
            watched.look_again().unwrap().is_some_and(|new| new.is_whole)
        });
        let each_third = [false, false, true].repeat(3);
        assert!(taken.by_ref().eq(each_third));
    }

    #[test]
    fn settle_waits_for_half_written_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut halves = Vec::new();
        let missing = Watched::new(&path).settle(|_| unreachable!("there is nothing to wait for"));
        assert_eq!(missing.unwrap(), None);
        std::fs::write(&path, "ha").unwrap();
        let mut watched = Watched::new(&path);
        let text = watched.settle(|half| {
            halves.push(half.to_owned());
            std::fs::write(&path, "half").unwrap();
        });
        assert_eq!(text.unwrap().as_deref(), Some("half"));
        assert_eq!(halves, ["ha", "half"]);
        let known = Watched::anew(&watched).settle(|_| unreachable!("it is known"));
        assert_eq!(known.unwrap().as_deref(), Some("half"));
        let mut pauses = 0;
        let restless = Watched::new(&path).settle(|_| {
            pauses += 1;
            std::fs::write(&path, pauses.to_string()).unwrap();
        });
        assert_eq!(restless.unwrap().as_deref(), Some("2"), "the wait has an end");
    }

    #[test]
    fn what_is_no_file_is_refused_without_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for (path, why) in [(fifo, "it is not a file"), (dir.path().to_owned(), "is a directory")] {
            let error = read_text(&path).unwrap_err();
            let mut watched = Watched::new(&path);
            assert_eq!(watched.look().unwrap_err().kind(), error.kind());
            assert_eq!(watched.look().unwrap(), None, "it is told once");
            let problems = crate::config::load(Some(&path), &std::collections::BTreeMap::new()).unwrap_err();
            assert!(problems.to_string().contains(why), "{problems}");
        }
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
        assert_eq!(whole(watched.look()).as_deref(), Some("1"));
        std::os::unix::fs::symlink(at("two"), at("next")).unwrap();
        std::fs::rename(at("next"), at("data")).unwrap();
        assert_eq!(whole(watched.look()).as_deref(), Some("2"));
    }
}
