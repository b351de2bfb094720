//! Atomic file writes. A reader sees either the old or the new content of a file, even after a crash.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::config::{folder_of, io_fault};

/// The suffix of the name under which a new file is written, before it replaces the old file.
const NEW: &str = ".new";
/// The mode of a new file: only its owner has rights.
const PRIVATE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), io_fault(path, cause))]
pub(crate) struct FileError {
    pub(crate) path: PathBuf,
    pub(crate) cause: io::Error,
}

/// Replaces the content of `path` by what `write` writes: into a new file beside it, which is synced and renamed to
/// `path`. If `path` is a symlink, its target is replaced. An existing file keeps its permissions, and also its owner and
/// group if the process may set them. A new file belongs to its folder, and others cannot read it.
pub(crate) fn atomically(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), FileError> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let beside = with_suffix(&path, NEW);
    let replace = || {
        // What an interrupted write has left may belong to another user, or lead elsewhere.
        let _ = std::fs::remove_file(&beside);
        let mut file = create_private(&beside)?;
        if let Ok(old) = std::fs::metadata(&path) {
            set_owner(&file, &old);
            file.set_permissions(old.permissions())?;
        } else {
            belong_to_folder(&file, &path, 0o040)?;
        }
        write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)
    };
    replace().map_err(|cause| FileError { path: beside.clone(), cause })
}

/// Opens the file that is locked in place of `path`, because `path` itself is replaced. Creates it if it is missing, so
/// that it belongs to its folder.
pub(crate) fn lock_file(path: &Path) -> Result<File, FileError> {
    let lock = lock_path(path);
    let open = || match create_beside(&lock, 0o060) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().read(true).write(true).open(&lock)
        }
        created => created,
    };
    open().map_err(|cause| FileError { path: lock.clone(), cause })
}

/// Creates a file that belongs to its folder. A group that may write in the folder gets the permission bits `group`.
///
/// # Errors
/// As for [`create_private`].
pub(crate) fn create_beside(path: &Path, group: u32) -> io::Result<File> {
    let file = create_private(path)?;
    belong_to_folder(&file, path, group)?;
    Ok(file)
}

/// Returns the path of the file that is locked in place of `path`.
pub(crate) fn lock_path(path: &Path) -> PathBuf {
    with_suffix(&std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()), ".lock")
}

/// Creates a file that only its owner may read and write.
///
/// # Errors
/// The file cannot be created, or something, if only a symlink, has this name.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(PRIVATE).open(path)
}

/// Checks that [`atomically`] can replace the content of `path`. Creates a file beside it for a moment, and leaves
/// `path` as it is.
///
/// # Errors
/// No file can be created beside `path`, or a folder has the name of the new file.
pub(crate) fn check_writable(path: &Path) -> Result<(), FileError> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let new = with_suffix(&path, NEW);
    if new.is_dir() {
        return Err(FileError { path: new, cause: ErrorKind::IsADirectory.into() });
    }
    // A running gateway may be writing the `.new` file, so another name is tried.
    let beside = with_suffix(&path, &format!(".check-{}", std::process::id()));
    let tried = create_private(&beside).and_then(|_| std::fs::remove_file(&beside));
    tried.map_err(|cause| FileError { path: beside, cause })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Gives a new file the owner and group of the folder of `path`: what root has made, the user of the folder must be able
/// to use. A group that may write in the folder, and so replace the file, gets the permission bits `group`.
fn belong_to_folder(file: &File, path: &Path, group: u32) -> io::Result<()> {
    let folder = std::fs::metadata(folder_of(path))?;
    set_owner(file, &folder);
    if folder.mode() & 0o020 != 0 && file.metadata()?.gid() == folder.gid() {
        file.set_permissions(Permissions::from_mode(PRIVATE | group))?;
    }
    Ok(())
}

/// Gives `file` the owner and group of `like`. A failure is ignored, because only root may change an owner, and others
/// only to a group of theirs.
fn set_owner(file: &File, like: &Metadata) {
    let _ = fchown(file, None, Some(like.gid()));
    let _ = fchown(file, Some(like.uid()), None);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn replaced_files_keep_mode_and_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        atomically(&path, |file| file.write_all(b"old")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "a new file is private");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        // Only root may set any group. For other users the file keeps its group.
        let _ = chown(&path, None, Some(65534));
        let before = std::fs::metadata(&path).unwrap();
        atomically(&path, |file| file.write_all(b"new")).unwrap();
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!((after.mode() & 0o777, after.gid()), (0o640, before.gid()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn new_files_belong_to_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        // Only root may give a folder to another user. For others the folder stays theirs.
        let _ = chown(dir.path(), Some(65534), Some(65533));
        for (folder, lock, file) in [(0o755, 0o600, 0o600), (0o775, 0o660, 0o640)] {
            std::fs::set_permissions(dir.path(), Permissions::from_mode(folder)).unwrap();
            let folder = std::fs::metadata(dir.path()).unwrap();
            let path = dir.path().join("keys.toml");
            lock_file(&path).unwrap();
            atomically(&path, |file| file.write_all(b"new")).unwrap();
            for (path, mode) in [(&path, file), (&lock_path(&path), lock)] {
                let made = std::fs::metadata(path).unwrap();
                let expected = (folder.uid(), folder.gid(), mode);
                assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), expected, "{path:?}");
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    #[test]
    fn what_an_interrupted_write_has_left_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("keys.toml"), dir.path().join("other"));
        std::fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("keys.toml.new")).unwrap();
        check_writable(&path).unwrap();
        atomically(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "other");
    }

    #[test]
    fn refusals_name_the_file_that_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        for name in ["keys.toml.lock", "keys.toml.new"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let refused = [lock_file(&path).map(drop), atomically(&path, |_| Ok(())), check_writable(&path)];
        let named = refused.map(|refused| refused.unwrap_err().path.file_name().unwrap().to_owned());
        assert_eq!(named, ["keys.toml.lock", "keys.toml.new", "keys.toml.new"]);
        let error = lock_file(&dir.path().join("nowhere/keys.toml")).unwrap_err().to_string();
        assert!(error.ends_with("nowhere/keys.toml.lock: it does not exist, nor does its folder"), "{error}");
    }

    #[test]
    fn symlinks_share_the_lock_of_their_target() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("keys.toml"), dir.path().join("link.toml"));
        atomically(&file, |_| Ok(())).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        lock_file(&link).unwrap().lock().unwrap();
        assert!(dir.path().join("keys.toml.lock").exists() && !dir.path().join("link.toml.lock").exists());
    }
}
