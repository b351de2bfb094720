//! Writes a file so that a reader, or a crash, meets either the old content or the new, never a part.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Replaces the content of `path`: written beside it, synced, renamed over it. A symlink stays one, its target is
/// replaced. A new file is its owner's alone; an existing one keeps its permissions.
pub(crate) fn atomically(path: &Path, content: &str) -> io::Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let beside = with_suffix(&path, ".new");
    let mut file = private(OpenOptions::new().write(true).create(true).truncate(true)).open(&beside)?;
    if let Ok(old) = std::fs::metadata(&path) {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, &path)
}

/// Waits until nobody else writes `path`, for as long as the answer is held. The lock is a file of its own, since the
/// file itself is replaced.
pub(crate) fn lock(path: &Path) -> io::Result<File> {
    let lock = with_suffix(path, ".lock");
    let file = private(OpenOptions::new().write(true).create(true).truncate(false)).open(lock)?;
    file.lock()?;
    Ok(file)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}
