//! A hash table of pointers that finds one with a single line of memory: seven to a bucket, beside a byte of each one's
//! hash. What finds its bucket full goes to the next that is not.
//!
//! A general table looks for the hash in one line, and finds the pointer in another; in a large cache either comes from far
//! away.

use std::mem;

/// With the bytes of their hashes and one more, as many pointers as fill a line.
const PLACES: usize = 7;
/// Of ten places so many may be taken: with more, many would not be in their own bucket.
const MOST_IN_TEN: usize = 8;

/// Items by their hashes, which may be equal.
#[derive(Debug)]
pub(super) struct Buckets<T> {
    /// A power of two of them, or none.
    rows: Box<[Bucket<T>]>,
    /// What of each item's hash says where it is, so that a table that grows does not have to look at the items.
    hashes: Box<[[u32; PLACES]]>,
    len: usize,
}

#[derive(Debug)]
#[repr(align(64))]
struct Bucket<T> {
    /// What stands for each item's hash; 0 where there is none.
    marks: [u8; PLACES],
    /// How many have found this bucket full and gone on; 255 stands for any number from there on.
    passed: u8,
    items: [Option<T>; PLACES],
}

impl<T> Default for Bucket<T> {
    fn default() -> Self {
        Self { marks: [0; PLACES], passed: 0, items: [const { None }; PLACES] }
    }
}

impl<T> Default for Buckets<T> {
    /// No items, and no room.
    fn default() -> Self {
        Self { rows: Box::default(), hashes: Box::default(), len: 0 }
    }
}

/// The byte that stands for `hash` in its bucket: of bits that do not say which bucket it is, and never 0.
fn mark(hash: u64) -> u8 {
    hash.to_be_bytes()[0].max(1)
}

/// The bits of `hash` that say which bucket it belongs to.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn low(hash: u64) -> u32 {
    hash as u32
}

impl<T> Buckets<T> {
    /// How many items there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// For how many there is room.
    pub(super) fn room(&self) -> usize {
        self.rows.len() * PLACES * MOST_IN_TEN / 10
    }

    /// All items, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.iter().flat_map(|bucket| bucket.items.iter().flatten())
    }

    /// The item of this hash that `is_it`.
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        let (bucket, place) = self.place(hash, is_it)?;
        self.rows[bucket].items[place].as_ref()
    }

    /// Puts `item` into the place of the one of this hash that `is_it`, which is given back, or into a place of its own.
    pub(super) fn put(&mut self, hash: u64, item: T, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        if let Some((bucket, place)) = self.place(hash, is_it) {
            return self.rows[bucket].items[place].replace(item);
        }
        if self.len >= self.room() {
            self.resize((self.rows.len() * 2).max(1));
        }
        self.add(mark(hash), low(hash), item);
        None
    }

    /// Takes out the item of this hash that `is_it`.
    pub(super) fn take(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let (bucket, place) = self.place(hash, is_it)?;
        // Those on the way to it have one less that passed.
        let home = self.home(low(hash));
        for step in 0..self.steps(home, bucket) {
            let passed = &mut self.rows[self.after(home, step)].passed;
            if *passed < u8::MAX {
                *passed -= 1;
            }
        }
        self.len -= 1;
        let bucket = &mut self.rows[bucket];
        bucket.marks[place] = 0;
        let item = bucket.items[place].take();
        // Room that many needed is not kept when they are gone.
        if self.len * 8 < self.room() {
            self.resize(self.rows.len() / 2);
        }
        item
    }

    /// The bucket, and the place in it, of the item of this hash that `is_it`.
    fn place(&self, hash: u64, mut is_it: impl FnMut(&T) -> bool) -> Option<(usize, usize)> {
        let mark = mark(hash);
        let home = self.home(low(hash));
        for step in 0..self.rows.len() {
            let at = self.after(home, step);
            let bucket = &self.rows[at];
            for (place, held) in bucket.marks.iter().enumerate() {
                if *held == mark && bucket.items[place].as_ref().is_some_and(&mut is_it) {
                    return Some((at, place));
                }
            }
            if bucket.passed == 0 {
                break;
            }
        }
        None
    }

    /// Adds an item that is not there, where there is room.
    fn add(&mut self, mark: u8, low: u32, item: T) {
        let home = self.home(low);
        let steps = 0..self.rows.len();
        let free = |at: usize| self.rows[at].marks.iter().position(|mark| *mark == 0);
        let found = steps.map(|step| self.after(home, step)).find_map(|at| Some((at, free(at)?)));
        // There is room for fewer than there are places.
        let Some((at, place)) = found else { return };
        for step in 0..self.steps(home, at) {
            let passed = &mut self.rows[self.after(home, step)].passed;
            *passed = passed.saturating_add(1);
        }
        let bucket = &mut self.rows[at];
        (bucket.marks[place], bucket.items[place]) = (mark, Some(item));
        self.hashes[at][place] = low;
        self.len += 1;
    }

    /// Makes room in so many buckets, a power of two; there has to be enough.
    fn resize(&mut self, buckets: usize) {
        let fresh = Self {
            rows: (0..buckets).map(|_| Bucket::default()).collect(),
            hashes: vec![[0; PLACES]; buckets].into(),
            len: 0,
        };
        let before = mem::replace(self, fresh);
        for (bucket, hashes) in before.rows.into_iter().zip(before.hashes) {
            for ((mark, low), item) in bucket.marks.into_iter().zip(hashes).zip(bucket.items) {
                if let Some(item) = item {
                    self.add(mark, low, item);
                }
            }
        }
    }

    fn home(&self, low: u32) -> usize {
        low as usize & self.rows.len().wrapping_sub(1)
    }

    /// The bucket so many steps after `home`.
    fn after(&self, home: usize, step: usize) -> usize {
        (home + step) & self.rows.len().wrapping_sub(1)
    }

    /// How many steps it is from `home` to `at`.
    fn steps(&self, home: usize, at: usize) -> usize {
        at.wrapping_sub(home) & self.rows.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bucket_of_pointers_is_a_line_of_memory() {
        assert_eq!(size_of::<Bucket<std::sync::Arc<u8>>>(), 64);
    }

    #[derive(Debug, Clone)]
    enum Deed {
        Put(u64, u32),
        Take(u64),
    }

    /// Hashes of which many share a bucket and some a mark, all of both, or next to nothing.
    fn hash() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => any::<u64>(),
            4 => (0..4_u64, 0..3_u64).prop_map(|(low, high)| low | high << 56),
            2 => (0..300_u64).prop_map(|high| u64::from(u32::MAX) | high << 50),
        ]
    }

    fn deeds() -> impl Strategy<Value = Vec<Deed>> {
        let hashes = prop::collection::vec(hash(), 1..150);
        hashes.prop_flat_map(|hashes| {
            let hash = prop::sample::select(hashes);
            let deed = prop_oneof![
                5 => (hash.clone(), any::<u32>()).prop_map(|(hash, item)| Deed::Put(hash, item)),
                4 => hash.prop_map(Deed::Take),
            ];
            prop::collection::vec(deed, 0..600)
        })
    }

    proptest! {
        #[test]
        fn what_is_put_is_found_until_it_is_taken(deeds in deeds()) {
            let (mut buckets, mut model) = (Buckets::default(), HashMap::new());
            for deed in &deeds {
                match *deed {
                    Deed::Put(hash, item) => {
                        let before = buckets.put(hash, (hash, item), |held| held.0 == hash);
                        prop_assert_eq!(before.map(|held| held.1), model.insert(hash, item));
                    }
                    Deed::Take(hash) => {
                        let taken = buckets.take(hash, |held| held.0 == hash);
                        prop_assert_eq!(taken.map(|held| held.1), model.remove(&hash));
                    }
                }
                prop_assert_eq!(buckets.len(), model.len());
                prop_assert!(buckets.room() >= model.len() && buckets.room() / 16 <= model.len());
            }
            for (hash, item) in &model {
                prop_assert_eq!(buckets.find(*hash, |held| held.0 == *hash), Some(&(*hash, *item)));
            }
            let all: HashMap<_, _> = buckets.iter().copied().collect();
            prop_assert_eq!(&all, &model);
            for (hash, _) in all {
                buckets.take(hash, |held| held.0 == hash);
            }
            prop_assert_eq!((buckets.len(), buckets.room()), (0, 0), "what is empty has no room");
        }
    }

    #[test]
    fn more_than_can_be_counted_pass_a_bucket_and_are_found() {
        let mut buckets = Buckets::default();
        for item in 0..1_000 {
            buckets.put(7, item, |held| *held == item);
        }
        assert!((0..1_000).all(|item| buckets.find(7, |held| *held == item) == Some(&item)));
        for item in 0..1_000 {
            assert_eq!(buckets.take(7, |held| *held == item), Some(item));
            assert!((item + 1..1_000).all(|item| buckets.find(7, |held| *held == item).is_some()));
        }
    }
}
