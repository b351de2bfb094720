//! The signatures whose end somebody waits for.
//!
//! A height waits for the signatures of its own caller: until they were asked for at its slot, and until those that have
//! landed are handed out.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::statuses::{Statuses, read_status};
use crate::fair::Watcher;
use crate::methods::{Commitment, MAX_SIGNATURES, Signature, Slot};

/// The number of slots after which a signature that was not asked for is looked for in the history: a node finds younger
/// ones without it.
const REMEMBERED_SLOTS: u64 = 100;
/// The time after which a signature for which no node answers is given up.
const LONGEST_UNSERVED: Duration = Duration::from_mins(1);

/// The end of a signature: its transaction is at the commitment that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    /// The slot at which this is known, which is never below an earlier one.
    pub slot: Slot,
    /// The error of the transaction as JSON text, or `null`.
    pub err: Bytes,
}

/// No node answers what has become of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unserved;

type End = Result<Landed, Unserved>;

/// One waiting for the end of a signature. Dropping it says that the end was handed out, or that nobody waits for it.
#[derive(Debug)]
pub struct Watch {
    key: WatchKey,
    /// `None` for a watch for which no height waits, beside one of a watcher.
    watcher: Option<Watcher>,
    number: u64,
    end: watch::Receiver<Option<End>>,
    watches: Arc<Watches>,
}

type WatchKey = (Signature, Commitment);

fn keys_of(signatures: &[Signature]) -> impl Iterator<Item = WatchKey> {
    signatures.iter().flat_map(|of| Commitment::ALL.map(|commitment| (*of, commitment)))
}

/// All signatures that are watched. There are as many as subscriptions, whose number is bounded.
#[derive(Debug, Default)]
pub(super) struct Watches {
    table: Mutex<WatchTable>,
    /// The highest slot, at each commitment, at which a height waits.
    wanted: [AtomicU64; 3],
    /// Notified of a new signature, and of a height that waits.
    pub(super) due: Notify,
    /// Notified of a signature that is to be looked for in the history.
    pub(super) unsearched: Notify,
    noted: Notify,
}

#[derive(Debug, Default)]
struct WatchTable {
    watched: HashMap<WatchKey, WatchedSignature>,
    of: HashMap<(Watcher, Commitment), HashMap<Signature, usize>>,
    /// The signatures of each watcher that are to be looked for in the history, with the number of his turn, and the watchers
    /// whose turn it is.
    unsearched: HashMap<Watcher, (u64, BTreeSet<Signature>)>,
    searching: HashSet<Watcher>,
    last_turn: u64,
    /// What may have to be asked for before the next slot.
    fresh: Vec<WatchKey>,
    last_number: u64,
    /// The number of the slot, in the order in which slots are looked at.
    round: u64,
    /// The time of the last fall of the chain. `None` before the first.
    fell_at: Option<Instant>,
}

#[derive(Debug)]
struct WatchedSignature {
    /// A number that no other entry has. Later entries have higher ones.
    number: u64,
    watches: usize,
    watcher: Option<Watcher>,
    /// The slot up to which the transaction has certainly not reached the commitment. 0 before the first answer.
    asked: Slot,
    answered_at: Instant,
    round: u64,
    is_asking: bool,
    is_searched: bool,
    end: watch::Sender<Option<End>>,
}

impl WatchedSignature {
    fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    fn give_up(&self) {
        self.end.send_if_modified(|end| end.is_none() && end.insert(Err(Unserved)).is_err());
    }
}

impl Watch {
    /// Waits for the end of the signature. It is cancel safe.
    ///
    /// # Errors
    /// No node answers what has become of it.
    pub async fn landed(&mut self) -> Result<Landed, Unserved> {
        // The sender lives as long as the watch, or has sent the end.
        self.end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone()).unwrap_or(Err(Unserved))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (mut table, (signature, commitment)) = (self.watches.lock(), self.key);
        if let Some(watcher) = self.watcher
            && let of = (watcher, commitment)
            && let Some(own) = table.of.get_mut(&of)
            && let Some(count) = own.get_mut(&signature)
        {
            *count -= 1;
            if *count == 0 {
                own.remove(&signature);
                if own.is_empty() {
                    table.of.remove(&of);
                }
                if let Some((_, unsearched)) = table.unsearched.get_mut(&watcher) {
                    unsearched.remove(&signature);
                }
            }
        }
        if let Some(watched) = table.watched.get_mut(&self.key).filter(|of| of.number == self.number) {
            watched.watches -= 1;
            if watched.watches == 0 {
                table.watched.remove(&self.key);
            }
        }
        drop(table);
        self.watches.noted.notify_waiters();
    }
}

impl WatchTable {
    /// Lets signatures be looked for in the history. Watchers take turns in the order in which they have begun to wait.
    fn queue_search(&mut self, watcher: Watcher, signatures: impl IntoIterator<Item = Signature>) {
        self.last_turn += 1;
        let (_, of) = self.unsearched.entry(watcher).or_insert((self.last_turn, BTreeSet::new()));
        of.extend(signatures);
    }

    fn fell_after(&self, time: Instant) -> bool {
        self.fell_at.is_some_and(|fell_at| time < fell_at)
    }

    /// Returns the signatures of a watcher, up to the number `last`, that were not asked for at `slot` yet, or whose end is not
    /// handed out yet.
    fn unsettled(
        &self,
        of: (Watcher, Commitment),
        slot: Slot,
        last: u64,
    ) -> impl Iterator<Item = &WatchedSignature> {
        let own = self.of.get(&of).into_iter().flat_map(HashMap::keys);
        own.filter_map(move |signature| self.watched.get(&(*signature, of.1)))
            .filter(move |watched| watched.number <= last && (watched.asked < slot || watched.has_ended()))
    }
}

impl Watches {
    pub(super) fn add(
        self: &Arc<Self>,
        signature: Signature,
        commitment: Commitment,
        watcher: Option<Watcher>,
    ) -> Watch {
        let key = (signature, commitment);
        let mut table = self.lock();
        let number = table.last_number + 1;
        table.last_number = number;
        let entry = table.watched.entry(key).or_insert_with(|| WatchedSignature {
            number,
            watches: 0,
            watcher,
            asked: 0,
            answered_at: Instant::now(),
            round: 0,
            is_asking: false,
            is_searched: false,
            end: watch::Sender::new(None),
        });
        entry.watches += 1;
        let (number, end, is_searched) = (entry.number, entry.end.subscribe(), entry.is_searched);
        table.fresh.push(key);
        if let Some(watcher) = watcher {
            *table.of.entry((watcher, commitment)).or_default().entry(signature).or_default() += 1;
            if !is_searched {
                table.queue_search(watcher, [signature]);
            }
        }
        drop(table);
        self.due.notify_one();
        self.unsearched.notify_one();
        Watch { key, watcher, number, end, watches: Arc::clone(self) }
    }

    fn lock(&self) -> MutexGuard<'_, WatchTable> {
        self.table.lock()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().watched.is_empty()
    }

    pub(super) fn fell_after(&self, time: Instant) -> bool {
        self.lock().fell_after(time)
    }

    pub(super) fn wanted_at(&self, commitment: Commitment) -> Slot {
        self.wanted[commitment.index()].load(Ordering::Acquire)
    }

    /// Returns true if a height may wait for one of these signatures.
    pub(super) fn are_wanted(&self, signatures: &[Signature]) -> bool {
        let table = self.lock();
        let watched = keys_of(signatures).filter_map(|key| Some((key.1, table.watched.get(&key)?)));
        watched.filter(|(_, of)| !of.has_ended()).any(|(at, of)| of.asked < self.wanted_at(at))
    }

    /// Lets the signatures of a watcher that are not settled at `slot` be asked for at once. Returns the number of the last one,
    /// `None` if all are.
    pub(super) fn want(&self, of: (Watcher, Commitment), slot: Slot) -> Option<u64> {
        let mut table = self.lock();
        let last = table.unsettled(of, slot, u64::MAX).map(|watched| watched.number).max()?;
        self.wanted[of.1.index()].fetch_max(slot, Ordering::AcqRel);
        let WatchTable { of: own, fresh, .. } = &mut *table;
        fresh.extend(own.get(&of).into_iter().flat_map(HashMap::keys).map(|signature| (*signature, of.1)));
        self.due.notify_one();
        Some(last)
    }

    /// Waits until all signatures of a watcher, up to the number `last`, are settled at `slot`.
    pub(super) async fn settled(&self, of: (Watcher, Commitment), slot: Slot, last: u64) {
        loop {
            let mut noted = pin!(self.noted.notified());
            noted.as_mut().enable();
            if self.lock().unsettled(of, slot, last).next().is_none() {
                return;
            }
            noted.await;
        }
    }

    pub(super) fn give_up(&self, of: (Watcher, Commitment), slot: Slot, last: u64) {
        self.lock().unsettled(of, slot, last).for_each(WatchedSignature::give_up);
    }

    /// Returns the signatures that are to be asked for, which counts as begun: those that were not asked for in this round,
    /// which begins now if `begins` is true, and those for which a height waits.
    pub(super) fn take_due(&self, begins: bool) -> Vec<Signature> {
        let mut table = self.lock();
        table.round += u64::from(begins);
        let (round, mut due, fresh) = (table.round, BTreeSet::new(), std::mem::take(&mut table.fresh));
        let keys = if begins { table.watched.keys().copied().collect() } else { fresh };
        for key @ (signature, commitment) in keys {
            let Some(watched) = table.watched.get_mut(&key) else { continue };
            if watched.answered_at.elapsed() > LONGEST_UNSERVED {
                watched.give_up();
            }
            let is_due = watched.round < round || watched.asked < self.wanted_at(commitment);
            if is_due && !watched.is_asking && !watched.has_ended() {
                (watched.is_asking, watched.round) = (true, round);
                due.insert(signature);
            }
        }
        due.into_iter().collect()
    }

    pub(super) fn end_look(&self, signatures: &[Signature]) {
        let mut table = self.lock();
        for key in keys_of(signatures) {
            if let Some(watched) = table.watched.get_mut(&key) {
                watched.is_asking = false;
                table.fresh.push(key);
            }
        }
    }

    pub(super) fn begin_search(&self) -> Option<(Watcher, Vec<Signature>)> {
        let (mut table, mut signatures) = (self.lock(), Vec::new());
        while signatures.is_empty() {
            let waiting = table.unsearched.iter().filter(|(watcher, _)| !table.searching.contains(watcher));
            let watcher = waiting.min_by_key(|(_, (turn, _))| *turn).map(|(watcher, _)| *watcher)?;
            let (_, mut of) = table.unsearched.remove(&watcher)?;
            // Another watcher may have had it looked for.
            let is_open = |key| table.watched.get(&key).is_some_and(|of| !of.has_ended() && !of.is_searched);
            of.retain(|signature| keys_of(&[*signature]).any(is_open));
            signatures = of.iter().copied().take(MAX_SIGNATURES).collect();
            let rest: BTreeSet<_> = of.into_iter().skip(MAX_SIGNATURES).collect();
            if !rest.is_empty() {
                table.queue_search(watcher, rest);
            }
            if !signatures.is_empty() {
                table.searching.insert(watcher);
                return Some((watcher, signatures));
            }
        }
        None
    }

    /// Notes that the transactions of `signatures` were looked for in the history.
    pub(super) fn note_searched(&self, signatures: &[Signature]) {
        let mut table = self.lock();
        for key in keys_of(signatures) {
            if let Some(watched) = table.watched.get_mut(&key) {
                watched.is_searched = true;
            }
        }
    }

    /// Ends the turn of `watcher`. The signatures `again` that it still watches are looked for once more.
    pub(super) fn end_search(&self, watcher: Watcher, mut again: Vec<Signature>) {
        let mut table = self.lock();
        table.searching.remove(&watcher);
        let of = |at: &Commitment| table.of.get(&(watcher, *at));
        again
            .retain(|signature| Commitment::ALL.iter().filter_map(of).any(|own| own.contains_key(signature)));
        if !again.is_empty() {
            table.queue_search(watcher, again);
        }
    }

    /// Notes that the transactions of `signatures` were asked for at `sent_at`, and ends those that have reached their
    /// commitments. `tip` returns the slot that is shown for a transaction at a commitment.
    pub(super) fn note(
        &self,
        signatures: &[Signature],
        statuses: &Statuses,
        sent_at: Instant,
        tip: impl Fn(Commitment, Slot) -> Slot,
    ) {
        let mut table = self.lock();
        let table = &mut *table;
        // What was true of the chain before its fall says nothing of the blocks that it has now.
        if table.fell_after(sent_at) {
            return;
        }
        let mut forgotten = Vec::new();
        for (signature, text) in signatures.iter().zip(&statuses.each) {
            let status = read_status(text);
            for commitment in Commitment::ALL {
                let watched = table.watched.get_mut(&(*signature, commitment));
                let Some(watched) = watched.filter(|watched| !watched.has_ended()) else { continue };
                watched.answered_at = Instant::now();
                if watched.asked > 0 && statuses.slot.saturating_sub(watched.asked) > REMEMBERED_SLOTS {
                    watched.is_searched = false;
                    forgotten.extend(watched.watcher.map(|watcher| (watcher, *signature)));
                }
                match &status {
                    Some(status) if status.confirmation_status >= Some(commitment) => {
                        let slot = tip(commitment, status.slot);
                        let err = Bytes::copy_from_slice(status.err.get().as_bytes());
                        watched.end.send_replace(Some(Ok(Landed { slot, err })));
                    }
                    // It is in a block of this node's chain, so it may be at the commitment from this slot on.
                    Some(status) => {
                        let before = statuses.slot.min(status.slot.saturating_sub(1));
                        watched.asked = watched.asked.max(before);
                    }
                    None => watched.asked = watched.asked.max(statuses.slot),
                }
            }
        }
        for (watcher, signature) in forgotten {
            table.queue_search(watcher, [signature]);
            self.unsearched.notify_one();
        }
        self.noted.notify_waiters();
    }

    /// Forgets how far the signatures were asked for, because the chain goes on from a lower slot with other blocks.
    pub(super) fn ask_anew(&self, commitment: Commitment) {
        self.wanted[commitment.index()].store(0, Ordering::Release);
        let mut table = self.lock();
        table.fell_at = Some(Instant::now());
        // What has landed may land again.
        table.watched.retain(|(_, at), watched| *at != commitment || !watched.has_ended());
        for (_, watched) in table.watched.iter_mut().filter(|(key, _)| key.1 == commitment) {
            watched.asked = 0;
        }
    }
}
