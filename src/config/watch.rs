//! Notices that a file has another content, by looking once in a while.
//!
//! Polling sees what notifications miss: mounted config maps that swap a symlink, network file systems, editors that
//! write a new file over the old name. A look costs one `stat`; the content is read when that differs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// A file being watched, and how it looked last.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    stamp: Option<Stamp>,
    content: Option<[u8; 32]>,
    /// The content of a young file at the last look, which has not been told.
    unsettled: Option<[u8; 32]>,
    trouble: Option<io::ErrorKind>,
}

/// What `stat` tells of a file, through symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
    /// Writes within one tick of the file system's clock look alike: a young file is read again.
    young: bool,
}

/// How long the clocks of file systems may stand still; FAT's is the coarsest.
const TICK_SECONDS: u64 = 2;

/// How often a file that is being written is looked at before it is given up.
const LOOKS: usize = 5;

impl Watched {
    /// Watches `path`, which need not exist yet. The first [`Watched::look`] finds it changed if it does.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), stamp: None, content: None, unsettled: None, trouble: None }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content, if it is another than at the last look. A file that is missing is no change: what was read last
    /// stays in force until there is something else to read.
    ///
    /// # Errors
    /// A file that exists and cannot be read; told once, until it can.
    pub fn look(&mut self) -> io::Result<Option<String>> {
        self.told(false)?.map(text).transpose()
    }

    /// The same, but a file that was just written is told once two looks have found the same content: it may be in the
    /// middle of being written.
    ///
    /// # Errors
    /// As for [`Self::look`].
    pub fn look_twice(&mut self) -> io::Result<Option<String>> {
        self.told(true)?.map(text).transpose()
    }

    /// Returns true once two looks have found another content, as of [`Self::look_twice`]; the file need not be text.
    ///
    /// # Errors
    /// As for [`Self::look`].
    pub fn changes(&mut self) -> io::Result<bool> {
        Ok(self.told(true)?.is_some())
    }

    /// Returns true if the last look found another content that may be in the middle of being written.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.is_some() && self.unsettled != self.content
    }

    /// Watches the file of `before` anew: the content that it found last is no half of anything.
    pub fn anew(before: &Self) -> Self {
        Self { unsettled: before.content, ..Self::new(&before.path) }
    }

    /// The content at the first look, as of [`Self::look_twice`]: until two looks have found the same, there is a `pause`
    /// before the next.
    ///
    /// # Errors
    /// As for [`Self::look`]; and a file that is still being written after five looks.
    pub fn settle(&mut self, mut pause: impl FnMut()) -> io::Result<Option<String>> {
        for _ in 0..LOOKS {
            let text = self.look_twice()?;
            let is_missing = self.stamp.is_none();
            if text.is_some() || is_missing {
                return Ok(text);
            }
            pause();
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    fn told(&mut self, twice: bool) -> io::Result<Option<Vec<u8>>> {
        match self.read(twice) {
            Ok(bytes) => {
                self.trouble = None;
                Ok(bytes)
            }
            Err(e) => {
                self.unsettled = None;
                let before = self.trouble.replace(e.kind());
                if before == Some(e.kind()) { Ok(None) } else { Err(e) }
            }
        }
    }

    fn read(&mut self, twice: bool) -> io::Result<Option<Vec<u8>>> {
        let stamp = match std::fs::metadata(&self.path) {
            Ok(meta) => Stamp::of(&meta),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                (self.stamp, self.unsettled) = (None, None);
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        if self.stamp == Some(stamp) && !stamp.young && self.trouble.is_none() {
            return Ok(None);
        }
        let bytes = std::fs::read(&self.path)?;
        self.stamp = Some(stamp);
        let hash = Sha256::digest(&bytes).into();
        if self.content == Some(hash) {
            self.unsettled = None;
        } else if twice && stamp.young && self.unsettled.replace(hash) != Some(hash) {
            return Ok(None);
        }
        let same = self.content.replace(hash) == Some(hash);
        Ok((!same).then_some(bytes))
    }
}

/// Returns the content of a file that is to be text.
fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

impl Stamp {
    fn of(meta: &std::fs::Metadata) -> Self {
        let modified = meta.modified().ok();
        let age = modified.and_then(|at| at.elapsed().ok());
        let young = age.is_none_or(|age| age.as_secs() < TICK_SECONDS);
        Self { modified, len: meta.len(), inode: inode(meta), young }
    }
}

#[cfg(unix)]
fn inode(meta: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(meta)
}

#[cfg(not(unix))]
fn inode(_: &std::fs::Metadata) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_content_is_seen_once_however_it_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut watched = Watched::new(&path);
        assert_eq!(watched.look().unwrap(), None, "missing is no change");

        std::fs::write(&path, "a").unwrap();
        assert_eq!(watched.look().unwrap().as_deref(), Some("a"), "appeared");
        assert_eq!(watched.look().unwrap(), None, "told once");

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
        assert_eq!(watched.look().unwrap(), None, "back with what is known");

        std::fs::write(&path, [0xff]).unwrap();
        assert!(watched.look().is_err(), "not text");
        assert_eq!(watched.look().unwrap(), None, "told once");
        std::fs::write(&path, [0xfe]).unwrap();
        assert!(watched.look().is_err(), "another that is not text");
        std::fs::write(&path, "d").unwrap();
        assert_eq!(watched.look().unwrap().as_deref(), Some("d"), "text again");
    }

    #[test]
    fn a_young_file_is_told_once_two_looks_agree() {
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
        assert_eq!(watched.look_twice().unwrap(), None, "the look before found something else");
        assert_eq!(watched.look_twice().unwrap().as_deref(), Some("c"));
        assert_eq!(watched.look_twice().unwrap(), None, "told once");

        std::fs::write(&path, "d").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - std::time::Duration::from_mins(1)).unwrap();
        assert_eq!(watched.look_twice().unwrap().as_deref(), Some("d"), "an old file is whole");
    }

    #[test]
    fn a_file_being_written_is_waited_for() {
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

    #[cfg(unix)]
    #[test]
    fn a_symlink_that_is_swapped_is_a_change() {
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
