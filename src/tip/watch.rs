//! The signatures whose end somebody waits for, and the task that asks for them.
//!
//! The task asks once a slot for all of them, and in between for new ones. A height that waits to be shown asks itself for
//! those that were not asked for at its slot yet.
//!
//! A second task looks for new ones in the nodes' history, too, which may take them seconds. No height waits for that.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::statuses::{Statuses, read_status, split};
use super::{PATIENCE, Tip};
use crate::error::Error;
use crate::methods::{Commitment, MAX_SIGNATURES, Signature, Slot, TipQuery};
use crate::pool::{CallContext, TipRequest};

/// The number of slots after which a signature that was not asked for is looked for in the history: a node finds younger
/// ones without it.
const REMEMBERED_SLOTS: u64 = 100;

/// The end of a signature: its transaction is at the commitment that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landed {
    /// The slot at which this is known, which is never below an earlier one.
    pub slot: Slot,
    /// The error of the transaction as JSON text, or `null`.
    pub err: Bytes,
}

/// One waiting for the end of a signature. Dropping it ends the waiting.
#[derive(Debug)]
pub struct Watch {
    key: WatchKey,
    number: u64,
    end: watch::Receiver<Option<Landed>>,
    watches: Arc<Watches>,
}

type WatchKey = (Signature, Commitment);

/// All signatures that are watched. There are as many as subscriptions, whose number is bounded.
#[derive(Debug)]
pub(super) struct Watches {
    table: Mutex<WatchTable>,
    /// For each commitment, a slot at or above which every signature was asked for. [`Slot::MAX`] if none is watched.
    settled: [AtomicU64; 3],
    /// The turn to ask, so that nobody asks for what another one is asking for.
    asking: tokio::sync::Mutex<()>,
    /// Notified of a new signature.
    added: Notify,
    /// Notified of a signature that is to be looked for in the history.
    unsearched: Notify,
}

#[derive(Debug, Default)]
struct WatchTable {
    watched: HashMap<WatchKey, WatchedSignature>,
    last_number: u64,
    /// The time of the last fall of the chain. `None` before the first.
    fell_at: Option<Instant>,
}

/// One signature that is watched at one commitment, by any number of callers.
#[derive(Debug)]
struct WatchedSignature {
    /// A number that no other entry has. Later entries have higher ones.
    number: u64,
    watchers: usize,
    /// The slot up to which the transaction has certainly not reached the commitment. 0 before the first answer.
    asked: Slot,
    /// True once it was looked for in the history.
    is_searched: bool,
    end: watch::Sender<Option<Landed>>,
}

impl Watch {
    /// Waits until the signature is at the commitment. It is cancel safe.
    pub async fn landed(&mut self) -> Landed {
        let landed = self.end.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone());
        match landed {
            Some(landed) => landed,
            // The sender lives as long as the watch, or has sent the end.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut table = self.watches.lock();
        let own = table.watched.get_mut(&self.key).filter(|watched| watched.number == self.number);
        let Some(watched) = own else { return };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            table.watched.remove(&self.key);
        }
    }
}

impl Default for Watches {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            settled: std::array::from_fn(|_| AtomicU64::new(Slot::MAX)),
            asking: tokio::sync::Mutex::default(),
            added: Notify::new(),
            unsearched: Notify::new(),
        }
    }
}

impl WatchTable {
    fn fell_after(&self, time: Instant) -> bool {
        self.fell_at.is_some_and(|fell_at| time < fell_at)
    }
}

impl Watches {
    pub(super) fn add(self: &Arc<Self>, signature: Signature, commitment: Commitment) -> Watch {
        let key = (signature, commitment);
        let mut table = self.lock();
        let number = table.last_number + 1;
        table.last_number = number;
        let watched = table.watched.entry(key).or_insert_with(|| WatchedSignature {
            number,
            watchers: 0,
            asked: 0,
            is_searched: false,
            end: watch::Sender::new(None),
        });
        watched.watchers += 1;
        let (number, end) = (watched.number, watched.end.subscribe());
        self.settled[commitment.index()].fetch_min(watched.asked, Ordering::AcqRel);
        drop(table);
        self.added.notify_one();
        self.unsearched.notify_one();
        Watch { key, number, end, watches: Arc::clone(self) }
    }

    fn lock(&self) -> MutexGuard<'_, WatchTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if no signature is watched.
    fn is_empty(&self) -> bool {
        let table = self.lock();
        let is_empty = table.watched.is_empty();
        if is_empty {
            self.settled.iter().for_each(|settled| settled.store(Slot::MAX, Ordering::Release));
        }
        is_empty
    }

    /// Returns the signatures that `is_due` picks.
    fn due(&self, is_due: impl Fn(Commitment, &WatchedSignature) -> bool) -> BTreeSet<Signature> {
        let table = self.lock();
        let due = table.watched.iter().filter(|(key, watched)| is_due(key.1, watched));
        due.map(|(key, _)| key.0).collect()
    }

    /// Notes that the transactions of `signatures` were looked for in the history, by a call that was sent at `sent_at`.
    fn note_searched(&self, signatures: &[Signature], sent_at: Instant) {
        let mut table = self.lock();
        // What was found was not noted.
        if table.fell_after(sent_at) {
            return;
        }
        for key in signatures.iter().flat_map(|of| Commitment::ALL.map(|commitment| (*of, commitment))) {
            if let Some(watched) = table.watched.get_mut(&key) {
                watched.is_searched = true;
            }
        }
    }

    /// Notes that the transactions of `signatures` were asked for at `sent_at`, and ends those that have reached their
    /// commitments. `tip` returns the slot that is shown for a transaction at a commitment.
    fn note(
        &self,
        signatures: &[Signature],
        statuses: &Statuses,
        sent_at: Instant,
        tip: impl Fn(Commitment, Slot) -> Slot,
    ) {
        let mut table = self.lock();
        // What was true of the chain before its fall says nothing of the blocks that it has now.
        if table.fell_after(sent_at) {
            return;
        }
        for (signature, text) in signatures.iter().zip(&statuses.each) {
            let status = read_status(text);
            for commitment in Commitment::ALL {
                let key = (*signature, commitment);
                let Some(watched) = table.watched.get_mut(&key) else { continue };
                if watched.asked > 0 && statuses.slot.saturating_sub(watched.asked) > REMEMBERED_SLOTS {
                    watched.is_searched = false;
                    self.unsearched.notify_one();
                }
                match &status {
                    Some(status) if status.confirmation_status >= Some(commitment) => {
                        let slot = tip(commitment, status.slot);
                        let err = Bytes::copy_from_slice(status.err.get().as_bytes());
                        watched.end.send_replace(Some(Landed { slot, err }));
                        table.watched.remove(&key);
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
    }

    /// Notes up to which slot all that are watched were asked for. Once for all calls of a slot, because it looks at each.
    fn note_settled(&self) {
        let table = self.lock();
        let mut lowest = [Slot::MAX; 3];
        for ((_, commitment), watched) in &table.watched {
            let lowest = &mut lowest[commitment.index()];
            *lowest = watched.asked.min(*lowest);
        }
        for (settled, lowest) in self.settled.iter().zip(lowest) {
            settled.store(lowest, Ordering::Release);
        }
    }

    /// Forgets how far the signatures were asked for, because the chain goes on from a lower slot with other blocks.
    pub(super) fn ask_anew(&self, commitment: Commitment) {
        let mut table = self.lock();
        table.fell_at = Some(Instant::now());
        for (_, watched) in table.watched.iter_mut().filter(|(key, _)| key.1 == commitment) {
            watched.asked = 0;
            self.settled[commitment.index()].store(0, Ordering::Release);
        }
    }

    /// Returns the number of the last signature that was not asked for at `slot` yet. `None` if there is none.
    fn last_unsettled(&self, commitment: Commitment, slot: Slot) -> Option<u64> {
        if slot <= self.settled[commitment.index()].load(Ordering::Acquire) {
            return None;
        }
        let table = self.lock();
        let of = table.watched.iter().filter(|(key, watched)| key.1 == commitment && watched.asked < slot);
        of.map(|(_, watched)| watched.number).max()
    }
}

impl Tip {
    /// Asks for the signatures that are watched, for ever.
    pub async fn ask_for_watched(self: Arc<Self>) {
        loop {
            self.watches.added.notified().await;
            self.ask_while_watched().await;
        }
    }

    async fn ask_while_watched(&self) {
        let (mut all, mut newest, mut next) = (true, 0, Instant::now());
        while !self.watches.is_empty() {
            if all {
                next = Instant::now() + self.frontier.slot_time();
            }
            let turn = self.watches.asking.lock().await;
            self.ask_for_due(self.floors(), |_, watched| all || watched.asked == 0).await;
            drop(turn);
            if all {
                // The answer itself may have shown a newer slot.
                newest = self.frontier.slot(Commitment::Processed);
            }
            all = tokio::select! {
                () = self.frontier.reached(Commitment::Processed, newest.saturating_add(1)) => true,
                () = sleep_until(next) => true,
                () = self.watches.added.notified() => false,
            };
        }
    }

    /// Looks for the signatures that are watched in the history of the nodes, for ever, in one call at a time.
    pub async fn search_for_watched(self: Arc<Self>) {
        loop {
            let unsearched = self.watches.due(|_, watched| !watched.is_searched);
            if unsearched.is_empty() {
                self.watches.unsearched.notified().await;
                continue;
            }
            let signatures: Arc<[_]> = unsearched.into_iter().take(MAX_SIGNATURES).collect();
            // A refusal says that no node of the pool keeps history.
            match self.ask_for_some(&signatures, true, self.floors()).await {
                Ok(sent_at) => self.watches.note_searched(&signatures, sent_at),
                Err(_) => sleep(PATIENCE).await,
            }
        }
    }

    /// Waits until every signature that is watched by now was asked for at `slot` or above.
    ///
    /// # Errors
    /// No node says in time how far the signatures are.
    pub(super) async fn settle(
        &self,
        commitment: Commitment,
        slot: Slot,
        deadline: Instant,
    ) -> Result<(), Error> {
        let Some(last) = self.watches.last_unsettled(commitment, slot) else { return Ok(()) };
        let mut floors = self.floors();
        for floor in &mut floors[..=commitment.index()] {
            *floor = slot.max(*floor);
        }
        let is_due = |of: Commitment, watched: &WatchedSignature| {
            of == commitment && watched.asked < slot && watched.number <= last
        };
        let settled = async {
            loop {
                let turn = self.watches.asking.lock().await;
                self.ask_for_due(floors, is_due).await;
                drop(turn);
                if self.watches.due(is_due).is_empty() {
                    return;
                }
                sleep(self.pause()).await;
            }
        };
        let until = deadline.min(Instant::now() + PATIENCE);
        timeout_at(until, settled).await.map_err(|_| Error::NoUpstream(Vec::new()))
    }

    /// Asks for the signatures that `is_due` picks, at or above `floors`, and notes the answers.
    async fn ask_for_due(&self, floors: [Slot; 3], is_due: impl Fn(Commitment, &WatchedSignature) -> bool) {
        let due: Vec<_> = self.watches.due(is_due).into_iter().collect();
        let calls = due.chunks(MAX_SIGNATURES).map(|due| {
            let signatures = due.into();
            async move { self.ask_for_some(&signatures, false, floors).await }
        });
        join_all(calls).await;
        self.watches.note_settled();
    }

    /// Notes statuses of signatures, asked for at `sent_at`, which end those that have landed.
    pub(super) fn note(&self, signatures: &[Signature], statuses: &Statuses, sent_at: Instant) {
        self.follow_falls();
        self.watches.note(signatures, statuses, sent_at, |commitment, slot| {
            self.lift(commitment, slot);
            self.shown[commitment.index()].load(Ordering::Acquire).max(slot)
        });
    }

    /// Asks for signatures, and notes the statuses unless a node refuses the call. Returns the time of the call.
    ///
    /// # Errors
    /// No node answers at or above `floors` in time.
    async fn ask_for_some(
        &self,
        signatures: &Arc<[Signature]>,
        search_history: bool,
        floors: [Slot; 3],
    ) -> Result<Instant, Error> {
        let query = TipQuery::Statuses { signatures: Arc::clone(signatures), search_history };
        let context = CallContext { is_background: false, ..CallContext::own(Instant::now() + PATIENCE) };
        let reply = self.pool.read_tip(&TipRequest { query, floors, context }).await?;
        if let Ok(statuses) = split(reply.body) {
            self.note(signatures, &statuses, reply.sent_at);
        }
        Ok(reply.sent_at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use Commitment::{Confirmed, Finalized, Processed};

    const SIGNATURE: Signature = Signature([7; 64]);

    fn statuses(slot: Slot, status: Option<(Slot, Commitment)>) -> Statuses {
        let text = status.map_or("null".to_owned(), |(slot, reached)| {
            format!(r#"{{"slot":{slot},"confirmations":1,"err":null,"confirmationStatus":"{reached}"}}"#)
        });
        Statuses { slot, context: Bytes::new(), each: vec![text.into()] }
    }

    fn note(watches: &Watches, slot: Slot, status: Option<(Slot, Commitment)>) {
        watches.note(&[SIGNATURE], &statuses(slot, status), Instant::now(), |_, slot| slot);
    }

    #[tokio::test]
    async fn heights_wait_for_what_may_have_landed() {
        let watches = Arc::<Watches>::default();
        assert_eq!(watches.last_unsettled(Confirmed, 100), None, "nothing is watched");
        let watch = watches.add(SIGNATURE, Confirmed);
        assert_eq!(watches.last_unsettled(Confirmed, 1), Some(1));
        assert_eq!(watches.last_unsettled(Finalized, 100), None, "each commitment has its own");
        note(&watches, 100, None);
        assert_eq!(watches.last_unsettled(Confirmed, 100), None);
        assert_eq!(watches.last_unsettled(Confirmed, 101), Some(1));
        // It is in a block, which may be confirmed at its slot.
        note(&watches, 110, Some((105, Processed)));
        assert_eq!(watches.last_unsettled(Confirmed, 104), None);
        assert_eq!(watches.last_unsettled(Confirmed, 105), Some(1));
        // The block was dropped.
        note(&watches, 111, None);
        assert_eq!(watches.last_unsettled(Confirmed, 111), None);
        note(&watches, 112, Some((112, Confirmed)));
        assert_eq!(watches.last_unsettled(Confirmed, 500), None, "it has landed");
        assert_eq!(watch.end.borrow().as_ref().map(|landed| landed.slot), Some(112));
    }

    #[tokio::test]
    async fn an_answer_from_before_a_fall_says_nothing() {
        let watches = Arc::<Watches>::default();
        let watch = watches.add(SIGNATURE, Confirmed);
        let sent_at = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        watches.ask_anew(Confirmed);
        for status in [None, Some((900, Confirmed))] {
            watches.note(&[SIGNATURE], &statuses(1_000, status), sent_at, |_, slot| slot);
        }
        watches.note_searched(&[SIGNATURE], sent_at);
        assert_eq!(watches.last_unsettled(Confirmed, 1), Some(1));
        assert_eq!(*watch.end.borrow(), None);
        assert_eq!(
            watches.due(|_, watched| !watched.is_searched).len(),
            1,
            "its history is looked for once more"
        );
    }

    #[tokio::test]
    async fn watchers_of_one_signature_share_an_entry_until_the_last_leaves() {
        let watches = Arc::<Watches>::default();
        let [one, two] = [0; 2].map(|_| watches.add(SIGNATURE, Confirmed));
        let other = watches.add(SIGNATURE, Finalized);
        assert_eq!(watches.due(|_, _| true).len(), 1, "one signature is asked for once");
        assert_eq!(watches.lock().watched.len(), 2);
        drop((one, other));
        assert_eq!(watches.lock().watched.len(), 1);
        note(&watches, 100, Some((90, Confirmed)));
        // It is watched anew, so the end of an old watch concerns nobody else.
        let anew = watches.add(SIGNATURE, Confirmed);
        drop(two);
        assert_eq!(watches.lock().watched.len(), 1);
        drop(anew);
        assert!(watches.is_empty());
        assert_eq!(watches.last_unsettled(Confirmed, 500), None);
    }

    #[tokio::test]
    async fn history_is_searched_first_and_after_a_gap() {
        let watches = Arc::<Watches>::default();
        let _watch = watches.add(SIGNATURE, Confirmed);
        let unsearched = || watches.due(|_, watched| !watched.is_searched).len();
        assert_eq!(unsearched(), 1);
        note(&watches, 1_000, None);
        watches.note_searched(&[SIGNATURE], Instant::now());
        for (asked, expected) in [(1_001, 0), (1_101, 0), (1_202, 1)] {
            note(&watches, asked, None);
            assert_eq!(unsearched(), expected, "{asked}");
        }
    }
}
