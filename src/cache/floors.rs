//! The floors of accounts. A floor is the highest slot at which an answer showed an account: alone, in a
//! list, in any form, or as a token balance. No answer of a lower slot is served for that account. Each
//! commitment has its own floors.
//!
//! A floor holds for as long as an answer of a lower slot could still be served. Stored entries cannot
//! replace floors: the shown entry may be evicted while an older list with the account is still stored.
//!
//! Memory is bounded. The table has several shards, each with an older and a younger half. If too many floors are in
//! force, the older half of a shard is replaced by the highest of its floors. An account of that shard without a floor
//! of its own is then not served below that slot. This costs hits, but never lets an account go back to an older slot.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::Instant;

use crate::methods::{Commitment, Pubkey, Slot};

/// The number of shards for each commitment. With this many shards, two threads seldom wait for the same lock.
const SHARDS: usize = 64;
/// The cache capacity, in bytes, for each floor that the table can hold. The smallest entry of an account
/// weighs more than half of that, so there are fewer than two such entries for each floor.
const BYTES_A_FLOOR: u64 = 1024;
/// The least number of floors that one half of a shard can hold.
const MIN_HALF: usize = 32;

/// The lowest and the highest floor of an empty list of accounts: the results of a minimum and of a maximum over
/// no floors.
pub(super) const NO_ACCOUNTS: (Slot, Slot) = (Slot::MAX, 0);

/// For each account, the lowest slot at which an answer may still be served.
pub(super) struct AccountFloors {
    /// [`SHARDS`] shards for each commitment.
    shards: Box<[FloorShard]>,
    hasher: RandomState,
    started: Instant,
    /// The number of floors that one half of a shard can hold.
    half: usize,
}

#[derive(Default)]
#[repr(align(64))]
struct FloorShard(RwLock<Floors>);

/// The lowest slot at which an account may be served, and the time until which this holds. The time is in
/// milliseconds after the table was created.
#[derive(Debug, Clone, Copy, Default)]
struct Floor {
    slot: Slot,
    until_ms: u64,
}

/// The floors of a shard's accounts, in two halves. When the young half is full, it takes the place of the
/// old half. The old floors are dropped, and the highest of them goes to `folded`.
#[derive(Default)]
struct Floors {
    young: HashMap<Pubkey, Floor>,
    old: HashMap<Pubkey, Floor>,
    /// The highest of the floors that were dropped while they were in force. It holds for every account
    /// without a floor of its own.
    folded: Floor,
}

impl Floors {
    /// Returns the lowest slot at which an account may be served at `now_ms`. 0 if the account has no floor
    /// that is still in force.
    fn slot(&self, account: &Pubkey, now_ms: u64) -> Slot {
        let floor = self.young.get(account).or_else(|| self.old.get(account));
        let floor = floor.unwrap_or(&self.folded);
        if floor.until_ms >= now_ms { floor.slot } else { 0 }
    }

    fn put(&mut self, account: Pubkey, floor: Floor, half: usize, now_ms: u64) {
        if self.young.len() >= half && !self.young.contains_key(&account) {
            let valid = self.old.values().filter(|floor| floor.until_ms >= now_ms);
            // The floor `folded` is dropped if it is no longer in force.
            let before = Some(self.folded).filter(|folded| folded.until_ms >= now_ms).unwrap_or_default();
            self.folded = valid.fold(before, |folded, floor| Floor {
                slot: folded.slot.max(floor.slot),
                until_ms: folded.until_ms.max(floor.until_ms),
            });
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(account, floor);
    }
}

impl AccountFloors {
    /// Creates an empty table, sized for a cache of `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        let halves = BYTES_A_FLOOR * (SHARDS * Commitment::ALL.len() * 2) as u64;
        let half = usize::try_from(capacity / halves).unwrap_or(usize::MAX).max(MIN_HALF);
        let shards = (0..SHARDS * Commitment::ALL.len()).map(|_| FloorShard::default()).collect();
        Self { shards, hasher: RandomState::new(), started: Instant::now(), half }
    }

    /// Returns the lowest and the highest floor among `accounts`. An account without a floor counts as 0.
    pub(super) fn span(&self, accounts: &[Pubkey], commitment: Commitment, now: Instant) -> (Slot, Slot) {
        let now_ms = self.ms(now);
        accounts.iter().fold(NO_ACCOUNTS, |(lowest, highest), account| {
            let slot = self.shard(account, commitment).read().slot(account, now_ms);
            (lowest.min(slot), highest.max(slot))
        })
    }

    /// Raises the floors of `accounts` to `slot`, except those that are higher. For `life` from `now` on, the
    /// accounts are not served below `slot`.
    pub(super) fn raise(
        &self,
        accounts: &[Pubkey],
        commitment: Commitment,
        slot: Slot,
        life: Duration,
        now: Instant,
    ) {
        self.change(accounts, commitment, slot, life, now, |floor| floor <= slot);
    }

    /// Lowers to `slot` the floors of `accounts` that are above `slot` and at most `from`. Returns true if
    /// any floor fell.
    pub(super) fn lower(
        &self,
        accounts: &[Pubkey],
        commitment: Commitment,
        (from, slot): (Slot, Slot),
        life: Duration,
        now: Instant,
    ) -> bool {
        self.change(accounts, commitment, slot, life, now, |floor| floor > slot && floor <= from)
    }

    pub(super) fn forget(&self, account: &Pubkey) {
        for commitment in Commitment::ALL {
            let mut floors = self.shard(account, commitment).write();
            floors.young.remove(account);
            floors.old.remove(account);
        }
    }

    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.write());
            drop(all);
        }
    }

    /// Sets the floor of each account to `slot` if `changes` returns true for its present floor. Returns true
    /// if any floor was set.
    fn change(
        &self,
        accounts: &[Pubkey],
        commitment: Commitment,
        slot: Slot,
        life: Duration,
        now: Instant,
        changes: impl Fn(Slot) -> bool,
    ) -> bool {
        let now_ms = self.ms(now);
        let until_ms = now_ms.saturating_add(millis(life));
        let mut any = false;
        for account in accounts {
            let mut floors = self.shard(account, commitment).write();
            if changes(floors.slot(account, now_ms)) {
                floors.put(*account, Floor { slot, until_ms }, self.half, now_ms);
                any = true;
            }
        }
        any
    }

    fn shard(&self, account: &Pubkey, commitment: Commitment) -> &FloorShard {
        #[expect(clippy::cast_possible_truncation, reason = "any of the shards will do")]
        let shard = self.hasher.hash_one(account) as usize % SHARDS;
        &self.shards[commitment.index() * SHARDS + shard]
    }

    fn ms(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.started))
    }
}

impl FloorShard {
    fn read(&self) -> RwLockReadGuard<'_, Floors> {
        self.0.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Floors> {
        self.0.write()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(10);
    const C: Commitment = Commitment::Confirmed;

    fn account(n: u64) -> Pubkey {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        Pubkey(bytes)
    }

    #[tokio::test]
    async fn floor_rises_falls_on_request_and_expires() {
        let (floors, now) = (AccountFloors::new(1 << 20), Instant::now());
        let [a, b] = [account(1), account(2)];
        let highest = |accounts: &[Pubkey], at: Instant| floors.span(accounts, C, at).1;
        floors.raise(&[a, b], C, 10, LIFE, now);
        floors.raise(&[a], C, 12, LIFE, now);
        floors.raise(&[a], C, 11, LIFE, now);
        assert_eq!((highest(&[a], now), highest(&[b], now), highest(&[a, b], now)), (12, 10, 12));
        assert_eq!(floors.span(&[a, b], C, now), (10, 12));
        assert_eq!(floors.span(&[a], Commitment::Finalized, now), (0, 0), "each commitment has its own");
        assert!(!floors.lower(&[a], C, (11, 9), LIFE, now), "it rose since that floor was looked at");
        assert!(floors.lower(&[a, b], C, (12, 11), LIFE, now));
        assert_eq!((highest(&[a], now), highest(&[b], now)), (11, 10));
        assert!(!floors.lower(&[a], C, (12, 11), LIFE, now), "it is there already");
        let (last, over) = (now + LIFE, now + LIFE + Duration::from_millis(1));
        assert_eq!((highest(&[a], last), highest(&[a], over)), (11, 0));
        floors.raise(&[a], C, 8, LIFE, over);
        assert_eq!(highest(&[a], over), 8, "what has ended holds nothing down");
        floors.forget(&a);
        assert_eq!((highest(&[a], now), highest(&[b], now)), (0, 10));
        floors.clear();
        assert_eq!(highest(&[b], now), 0);
    }

    #[tokio::test]
    async fn floors_that_do_not_fit_are_folded_upwards() {
        let (floors, now) = (AccountFloors::new(0), Instant::now());
        let room = MIN_HALF * 2 * SHARDS;
        let accounts: Vec<_> = (0..4 * room as u64).map(account).collect();
        for (slot, account) in (1..).zip(&accounts) {
            floors.raise(std::slice::from_ref(account), C, slot, LIFE, now);
        }
        for (slot, account) in (1..).zip(&accounts) {
            assert!(floors.span(std::slice::from_ref(account), C, now).0 >= slot, "{slot}");
        }
        let count: usize =
            floors.shards.iter().map(|shard| shard.read().young.len() + shard.read().old.len()).sum();
        assert!(count <= room, "{count} of {room}");
        let newest = accounts.last().map(|account| floors.span(std::slice::from_ref(account), C, now).1);
        assert_eq!(newest, Some(accounts.len() as u64), "the newest stand for themselves");
        let over = now + LIFE + Duration::from_millis(1);
        assert_eq!(floors.span(&accounts, C, over), (0, 0));
    }
}
