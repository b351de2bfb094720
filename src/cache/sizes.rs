//! The known sizes of accounts. Small accounts are fetched whole, so that an answer in any encoding, and any
//! slice, can be made from one stored answer.
//!
//! The table has a fixed number of cells, and the address of an account picks its cell. Noting the size of an
//! account replaces the account that had the cell before. No answer depends on the table: a wrong guess only
//! makes an upstream call ask for another encoding or slice.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::methods::Pubkey;

/// The number of cells, of 8 bytes each.
const CELLS: usize = 1 << 16;
/// The largest account, in bytes, that is fetched and stored whole even if a caller asks for a slice.
const SMALL_BYTES: u64 = 64 * 1024;
/// The largest total size, in bytes, of several accounts that are fetched whole in one call.
const TOGETHER_BYTES: u64 = 1024 * 1024;
/// The bits of a cell that hold an account's size, which always fits in them. The other bits identify the
/// account.
const SIZE_BITS: u64 = (1 << 24) - 1;

/// The size of an account, or of several, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeClass {
    /// The account had at most 64 KiB when last seen. For several accounts: each is small, and together they
    /// have at most 1 MiB.
    Small,
    /// The account was not seen, or its size was forgotten. For several accounts: one of them is unknown, and
    /// none is large.
    Unknown,
    /// The account had more than 64 KiB when last seen, or was once too large to fetch. For several accounts:
    /// one of them is large, or together they have more than 1 MiB.
    Large,
}

/// The table of known sizes.
#[derive(Debug)]
pub struct Sizes(Box<[AtomicU64]>);

impl Default for Sizes {
    /// Creates an empty table.
    fn default() -> Self {
        Self((0..CELLS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Sizes {
    /// Notes that an account was seen with `space` bytes.
    pub fn note(&self, pubkey: &Pubkey, space: u64) {
        let (cell, mark) = self.cell(pubkey);
        let (known, noted) = (cell.load(Ordering::Relaxed), mark | space.min(SIZE_BITS));
        if known != noted && known != mark | SIZE_BITS {
            cell.store(noted, Ordering::Relaxed);
        }
    }

    /// Notes that an account was too large to be fetched whole. Sizes noted later for the account are
    /// ignored.
    pub fn note_large(&self, pubkey: &Pubkey) {
        self.note(pubkey, SIZE_BITS);
    }

    /// Returns the account's size in bytes when it was last seen. `None` if the size is not known. An account
    /// that was too large to fetch has the size 2²⁴ − 1.
    fn space(&self, pubkey: &Pubkey) -> Option<u64> {
        let (cell, mark) = self.cell(pubkey);
        let noted = cell.load(Ordering::Relaxed);
        (noted & !SIZE_BITS == mark).then_some(noted & SIZE_BITS)
    }

    /// Returns the size class of an account.
    pub fn of(&self, pubkey: &Pubkey) -> SizeClass {
        match self.space(pubkey) {
            None => SizeClass::Unknown,
            Some(..=SMALL_BYTES) => SizeClass::Small,
            Some(_) => SizeClass::Large,
        }
    }

    /// Returns how large several accounts are, as far as their sizes are known: as large as the largest one.
    /// Small accounts of more than 1 MiB together count as large.
    pub fn of_all(&self, pubkeys: &[Pubkey]) -> SizeClass {
        let size = pubkeys.iter().map(|pubkey| self.of(pubkey)).max().unwrap_or(SizeClass::Small);
        let together = || pubkeys.iter().filter_map(|pubkey| self.space(pubkey)).sum::<u64>();
        if size == SizeClass::Small && together() > TOGETHER_BYTES { SizeClass::Large } else { size }
    }

    fn cell(&self, pubkey: &Pubkey) -> (&AtomicU64, u64) {
        let word = |at: usize| pubkey.0[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        // Zero stands for an empty cell, so the mark is never zero.
        let mark = (word(0) ^ word(8).rotate_left(17)) | 1 << 63;
        #[expect(clippy::cast_possible_truncation, reason = "any cell will do")]
        let cell = (word(16) ^ word(24)) as usize % CELLS;
        (&self.0[cell], mark & !SIZE_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_known_until_its_cell_is_reused() {
        let sizes = Sizes::default();
        let (one, same_cell) = (Pubkey([1; 32]), {
            let mut bytes = [1; 32];
            bytes[0] = 2;
            Pubkey(bytes)
        });
        assert_eq!(sizes.of(&one), SizeClass::Unknown);
        sizes.note(&one, SMALL_BYTES);
        assert_eq!((sizes.of(&one), sizes.of(&same_cell)), (SizeClass::Small, SizeClass::Unknown));
        sizes.note(&one, SMALL_BYTES + 1);
        assert_eq!(sizes.of(&one), SizeClass::Large);
        assert_eq!(sizes.of_all(&[one, same_cell]), SizeClass::Large);
        sizes.note_large(&one);
        sizes.note(&one, 1);
        assert_eq!(sizes.of(&one), SizeClass::Large, "once too much, always too much");
        sizes.note(&same_cell, 0);
        assert_eq!((sizes.of(&one), sizes.of(&same_cell)), (SizeClass::Unknown, SizeClass::Small));
        assert_eq!(sizes.of_all(&[]), SizeClass::Small);
        sizes.note(&one, SMALL_BYTES);
        assert_eq!(
            (sizes.of_all(&[one; 16]), sizes.of_all(&[one; 17])),
            (SizeClass::Small, SizeClass::Large)
        );
    }
}
