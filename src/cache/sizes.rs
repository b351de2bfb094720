//! Which accounts are known to be small: those are fetched whole, so that every form follows from one answer.
//!
//! A table of fixed size, a place for each account by its address, and a newcomer takes the place. Nothing that is
//! answered depends on it: a wrong guess costs an upstream call of the other shape.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::methods::Pubkey;

/// Places, of 8 bytes each.
const PLACES: usize = 1 << 16;
/// Up to this size an account is fetched and kept whole, whatever is asked of it.
const SMALL_BYTES: u64 = 64 * 1024;
/// Up to this size together several accounts are, and go up in one call.
pub(super) const TOGETHER_BYTES: u64 = 1024 * 1024;
/// The part of a place that holds the size; the rest is a mark of whose it is. No account is larger.
const SPACE: u64 = (1 << 24) - 1;

/// What is known of an account's size, or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// At most 64 KiB when it was last seen; several: each, and at most 1 MiB together.
    Small,
    /// It was not seen, or is forgotten.
    Unknown,
    /// More.
    Large,
}

/// What is known of accounts' sizes.
#[derive(Debug)]
pub struct Sizes(Box<[AtomicU64]>);

impl Default for Sizes {
    /// Nothing is known.
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Sizes {
    /// An account was seen to be of `space` bytes.
    pub fn note(&self, pubkey: &Pubkey, space: u64) {
        let (place, mark) = self.place(pubkey);
        let (held, noted) = (place.load(Ordering::Relaxed), mark | space.min(SPACE));
        if held != noted && held != mark | SPACE {
            place.store(noted, Ordering::Relaxed);
        }
    }

    /// All of an account proved to be too much: it is not asked for again, whatever its size is said to be.
    pub fn note_large(&self, pubkey: &Pubkey) {
        self.note(pubkey, SPACE);
    }

    /// An account's size in bytes when it was last seen.
    pub fn space(&self, pubkey: &Pubkey) -> Option<u64> {
        let (place, mark) = self.place(pubkey);
        let noted = place.load(Ordering::Relaxed);
        (noted & !SPACE == mark).then_some(noted & SPACE)
    }

    /// What is known of an account.
    pub fn of(&self, pubkey: &Pubkey) -> Size {
        match self.space(pubkey) {
            None => Size::Unknown,
            Some(..=SMALL_BYTES) => Size::Small,
            Some(_) => Size::Large,
        }
    }

    /// Several accounts are as their largest; an unknown one may be large, and many small ones are much.
    pub fn of_all(&self, pubkeys: &[Pubkey]) -> Size {
        let size = pubkeys.iter().map(|pubkey| self.of(pubkey)).max().unwrap_or(Size::Small);
        let together = || pubkeys.iter().filter_map(|pubkey| self.space(pubkey)).sum::<u64>();
        if size == Size::Small && together() > TOGETHER_BYTES { Size::Large } else { size }
    }

    fn place(&self, pubkey: &Pubkey) -> (&AtomicU64, u64) {
        let word = |at: usize| pubkey.0[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        // Never zero, which is an empty place.
        let mark = (word(0) ^ word(8).rotate_left(17)) | 1 << 63;
        #[expect(clippy::cast_possible_truncation, reason = "any place will do")]
        let place = (word(16) ^ word(24)) as usize % PLACES;
        (&self.0[place], mark & !SPACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_known_until_another_account_takes_the_place() {
        let sizes = Sizes::default();
        let (one, same_place) = (Pubkey([1; 32]), {
            let mut bytes = [1; 32];
            bytes[0] = 2;
            Pubkey(bytes)
        });
        assert_eq!(sizes.of(&one), Size::Unknown);
        sizes.note(&one, SMALL_BYTES);
        assert_eq!((sizes.of(&one), sizes.of(&same_place)), (Size::Small, Size::Unknown));
        sizes.note(&one, SMALL_BYTES + 1);
        assert_eq!(sizes.of(&one), Size::Large);
        assert_eq!(sizes.of_all(&[one, same_place]), Size::Large);
        sizes.note_large(&one);
        sizes.note(&one, 1);
        assert_eq!(sizes.of(&one), Size::Large, "once too much, always too much");
        sizes.note(&same_place, 0);
        assert_eq!((sizes.of(&one), sizes.of(&same_place)), (Size::Unknown, Size::Small));
        assert_eq!(sizes.of_all(&[]), Size::Small);
        sizes.note(&one, SMALL_BYTES);
        assert_eq!((sizes.of_all(&[one; 16]), sizes.of_all(&[one; 17])), (Size::Small, Size::Large));
    }
}
