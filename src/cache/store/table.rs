//! The entries by their keys, as they are read: two lines of memory away and their own, in shards that each have a lock.
//!
//! What is in here is what moka has been told of, or is about to be: each placing has a number, and the one that moka lets
//! go is the one that leaves.

use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::super::key::Key;
use super::buckets::Buckets;
use super::held::Held;

/// So many that two who read at once seldom meet, and that one of them is moved quickly when it grows: with 5 million
/// entries it has 5,000.
const SHARDS: usize = 1024;

/// The entries by their keys.
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Shard]>,
    hasher: RandomState,
}

/// A line of the processor's cache to itself: its lock is written by each who reads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    held: RwLock<Buckets<Held>>,
    alone: Mutex<()>,
}

/// What was taken out; millions of entries take seconds to free.
pub(super) struct Emptied(Vec<Buckets<Held>>);

impl Emptied {
    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(Buckets::len).sum()
    }
}

impl Default for Table {
    /// No entries.
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect(), hasher: RandomState::new() }
    }
}

impl Table {
    /// What stands for `key` here, and in moka.
    pub(super) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Holds back everybody else who would change what has this hash, here and in moka, but moka itself: what the two are
    /// told stays in one order.
    pub(super) fn alone(&self, hash: u64) -> MutexGuard<'_, ()> {
        self.shard(hash).alone()
    }

    /// The entry in the place of `key`, whose hash is `hash`.
    pub(super) fn get(&self, hash: u64, key: &Key) -> Option<Held> {
        self.shard(hash).read().find(hash, |held| held.key() == key).cloned()
    }

    /// Puts `entry` into the place of its key.
    pub(super) fn put(&self, hash: u64, entry: Held) {
        let key = entry.key().clone();
        let mut shard = self.shard(hash).write();
        let before = shard.put(hash, entry, |held| *held.key() == key);
        // Freeing a long answer is no work under the lock.
        drop(shard);
        drop(before);
    }

    /// Empties the place of `key`; whether there was anything.
    pub(super) fn remove(&self, hash: u64, key: &Key) -> bool {
        self.remove_where(hash, |held| held.key() == key)
    }

    /// Empties the place that was filled by this number, unless something else is there by now.
    pub(super) fn remove_placing(&self, hash: u64, number: u64) {
        self.remove_where(hash, |held| held.number() == number);
    }

    /// Takes everything out at once, and does `then` before anybody places something again.
    pub(super) fn emptied(&self, then: impl FnOnce()) -> Emptied {
        // Everybody else holds one of them at most.
        let _alone: Vec<_> = self.shards.iter().map(Shard::alone).collect();
        let all = self.shards.iter().map(|shard| mem::take(&mut *shard.write())).collect();
        then();
        Emptied(all)
    }

    /// The keys that `takes`, shard by shard: what is done with one is done while no lock is held. Each key is
    /// fetched from memory, so a shard of thousands is held for longer than one read takes.
    pub(super) fn keys(&self, takes: impl Fn(&Key) -> bool) -> impl Iterator<Item = Key> {
        self.shards.iter().flat_map(move |shard| {
            let shard = shard.read();
            shard.iter().map(Held::key).filter(|key| takes(key)).cloned().collect::<Vec<_>>()
        })
    }

    fn remove_where(&self, hash: u64, is_it: impl FnMut(&Held) -> bool) -> bool {
        let mut shard = self.shard(hash).write();
        let removed = shard.take(hash, is_it);
        drop(shard);
        removed.is_some()
    }

    fn shard(&self, hash: u64) -> &Shard {
        // The lowest bits say where in its shard an entry is, the highest stand for it there.
        let bits = (hash >> 32) as usize;
        &self.shards[bits % SHARDS]
    }
}

impl Shard {
    fn alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Buckets<Held>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Buckets<Held>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::entry;
    use super::*;

    #[test]
    fn what_a_read_touches_is_a_line_each() {
        assert_eq!((size_of::<Shard>(), size_of::<Option<Held>>()), (64, 8));
    }

    #[test]
    fn keys_of_one_hash_keep_apart() {
        let (table, hash) = (Table::default(), 7);
        let slot = |key: u64| table.get(hash, &Key::NoBlock(key)).map(|held| held.slot());
        for key in 0..3 {
            table.put(hash, Held::new(Key::NoBlock(key), &entry(10 + key, 4), key));
        }
        assert_eq!([slot(0), slot(1), slot(2), slot(3)], [Some(10), Some(11), Some(12), None]);
        table.remove_placing(hash, 1);
        assert!(table.remove(hash, &Key::NoBlock(2)) && !table.remove(hash, &Key::NoBlock(2)));
        assert_eq!([slot(0), slot(1), slot(2)], [Some(10), None, None]);
    }

    #[test]
    fn what_took_a_place_later_is_not_taken_for_what_leaves() {
        let (table, key) = (Table::default(), Key::NoBlock(1));
        let hash = table.hash(&key);
        table.put(hash, Held::new(key.clone(), &entry(10, 4), 1));
        table.put(hash, Held::new(key.clone(), &entry(11, 4), 2));
        table.remove_placing(hash, 1);
        assert_eq!(table.get(hash, &key).map(|held| held.slot()), Some(11));
        table.remove_placing(hash, 2);
        assert!(table.get(hash, &key).is_none());
    }

    #[test]
    fn room_that_many_needed_is_not_kept_for_few() {
        let table = Table::default();
        let room = || table.shards.iter().map(|shard| shard.read().room()).sum::<usize>();
        let keys: Vec<Key> = (0..100_000).map(Key::NoBlock).collect();
        for (number, key) in (0..).zip(&keys) {
            table.put(table.hash(key), Held::new(key.clone(), &entry(1, 4), number));
        }
        let full = room();
        assert!(full >= keys.len());
        keys.iter().skip(1_000).for_each(|key| assert!(table.remove(table.hash(key), key)));
        assert!(room() < full / 4, "room for {} of {full}", room());
        assert_eq!(table.keys(|_| true).count(), 1_000);
        assert_eq!(table.emptied(|| assert_eq!(room(), 0)).len(), 1_000);
        assert_eq!((room(), table.keys(|_| true).count()), (0, 0));
    }
}
