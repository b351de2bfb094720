//! Writes a file so that a reader, or a crash, meets either the old content or the new, never a part.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Replaces the content of `path`: written beside it, synced, renamed over it. A symlink stays one, its target is
/// replaced. A new file is its owner's alone; an existing one keeps its permissions, and its owner
/// where the writer may give files away.
pub(crate) fn atomically(path: &Path, content: &str) -> io::Result<()> {
    atomically_with(path, |file| file.write_all(content.as_bytes()))
}

/// The same with what `write` writes, in pieces.
pub(crate) fn atomically_with(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let beside = with_suffix(&path, ".new");
    let mut file = private(OpenOptions::new().write(true).create(true).truncate(true)).open(&beside)?;
    if let Ok(old) = std::fs::metadata(&path) {
        keep_owner(&file, &old);
        file.set_permissions(old.permissions())?;
    }
    write(&mut file)?;
    file.sync_all()?;
    std::fs::rename(&beside, &path)
}

/// Waits until nobody else writes `path`, for as long as the answer is held. The lock is a file of its own, since the
/// file itself is replaced.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let lock = with_suffix(&path, ".lock");
    let file = private(OpenOptions::new().write(true).create(true).truncate(false)).open(lock)?;
    file.lock()?;
    Ok(file)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Who reads the file by its group still can after root has written it. Others may not give files away, and need not.
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
    fn a_replaced_file_keeps_its_mode_and_where_that_is_allowed_its_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        atomically(&path, "old").unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().mode() & 0o777,
            0o600,
            "a new file is its owner's alone"
        );
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        // Only root may give a file to a group that it is not in; others see the group that they have.
        let _ = chown(&path, None, Some(65534));
        let before = std::fs::metadata(&path).unwrap();
        atomically(&path, "new").unwrap();
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!((after.mode() & 0o777, after.gid()), (0o640, before.gid()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn one_file_under_two_names_has_one_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("keys.toml"), dir.path().join("link.toml"));
        atomically(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        drop(lock(&link).unwrap());
        assert!(dir.path().join("keys.toml.lock").exists() && !dir.path().join("link.toml.lock").exists());
    }
}
