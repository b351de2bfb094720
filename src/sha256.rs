//! SHA-256, by the crate that TLS uses as well.

use ring::digest::{SHA256, digest};

/// Returns the SHA-256 of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}
