//! Hashing of what is uniform already: hashes, by some of their own bytes.

use std::hash::{BuildHasherDefault, Hasher};

/// Hashes to the first eight bytes that it is given.
///
/// Only for what callers cannot choose, or where they gain nothing by choosing it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uniform(u64);

/// Builds [`Uniform`].
pub(crate) type BuildUniform = BuildHasherDefault<Uniform>;

impl Hasher for Uniform {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
