//! Atomic file writes. A reader sees either the old or the new content of a file, even after a crash.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// The suffix of the name under which a new file is written, before it replaces the old file.
const NEW: &str = ".new";

/// Replaces the content of `path` by what `write` writes: into a new file beside it, which is synced and renamed to
/// `path`. If `path` is a symlink, its target is replaced. Only the owner can read a new file. An existing file keeps
/// its permissions, and also its owner and group if the process may set them.
pub(crate) fn atomically(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
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
fn keep_owner(file: &File, old: &Metadata) {
    let _ = fchown(file, Some(old.uid()), Some(old.gid()));
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, chown};

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
    fn symlinks_share_the_lock_of_their_target() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("keys.toml"), dir.path().join("link.toml"));
        atomically(&file, |_| Ok(())).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        lock_file(&link).unwrap().lock().unwrap();
        assert!(dir.path().join("keys.toml.lock").exists() && !dir.path().join("link.toml.lock").exists());
    }
}
