//! Atomic file writes. A reader sees either the old or the new content of a file, even after a crash.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The suffix of the name under which a new file is written, before it replaces the old file.
const NEW: &str = ".new";

/// Replaces the content of `path`: writes a new file beside it, syncs it, and renames it to `path`. If `path` is a
/// symlink, its target is replaced. Only the owner can read a new file. An existing file keeps its permissions, and
/// also its owner and group if the process may set them.
pub(crate) fn atomically(path: &Path, content: &str) -> io::Result<()> {
    atomically_with(path, |file| file.write_all(content.as_bytes()))
}

/// Works like [`atomically`], with content that `write` writes in pieces.
pub(crate) fn atomically_with(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let beside = with_suffix(&path, NEW);
    let mut file = private(OpenOptions::new().write(true).create(true).truncate(true)).open(&beside)?;
    if let Ok(old) = std::fs::metadata(&path) {
        keep_owner(&file, &old);
        file.set_permissions(old.permissions())?;
    }
    write(&mut file)?;
    file.sync_all()?;
    std::fs::rename(&beside, &path)
}

/// Waits for the lock that allows only one process at a time to change `path`. The lock is held until the returned
/// file is dropped.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let file = lock_file(path)?;
    file.lock()?;
    Ok(file)
}

/// Opens the file that is locked in place of `path`, because `path` itself is replaced. Creates it if it is missing.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let lock = with_suffix(&path, ".lock");
    private(OpenOptions::new().read(true).write(true).create(true).truncate(false)).open(lock)
}

/// Checks that [`atomically`] can replace the content of `path`. Creates a file beside it for a moment, and leaves
/// `path` as it is.
///
/// # Errors
/// No file can be created beside `path`, or the `.new` file that an interrupted write has left cannot be opened.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    // A running gateway may be writing the `.new` file, so the check does not change the file's content.
    match OpenOptions::new().write(true).open(with_suffix(&path, NEW)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let beside = with_suffix(&path, &format!(".check-{}", std::process::id()));
    private(OpenOptions::new().write(true).create_new(true)).open(&beside)?;
    std::fs::remove_file(&beside)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Gives `file` the owner and group of `old`, so that a process of that group can read the file after root has
/// written it. A failure is ignored, because only root may change an owner.
#[cfg(unix)]
fn keep_owner(file: &File, old: &std::fs::Metadata) {
    use std::os::unix::fs::{MetadataExt, fchown};
    let _ = fchown(file, Some(old.uid()), Some(old.gid()));
}

#[cfg(not(unix))]
fn keep_owner(_: &File, _: &std::fs::Metadata) {}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    use super::*;

    #[test]
    fn replaced_files_keep_mode_and_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        atomically(&path, "old").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "a new file is private");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        // Only root may set any group. For other users the file keeps its group.
        let _ = chown(&path, None, Some(65534));
        let before = std::fs::metadata(&path).unwrap();
        atomically(&path, "new").unwrap();
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!((after.mode() & 0o777, after.gid()), (0o640, before.gid()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn symlinks_share_the_lock_of_their_target() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("keys.toml"), dir.path().join("link.toml"));
        atomically(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        drop(lock(&link).unwrap());
        assert!(dir.path().join("keys.toml.lock").exists() && !dir.path().join("link.toml.lock").exists());
    }
}
