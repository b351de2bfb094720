//! The signatures whose end somebody waits for, and the tasks that ask for them.
//!
//! One task asks once a slot for all of them, and in between for new ones and for those that a height waits for. A height
//! waits for the signatures of its own caller: until they were asked for at its slot, and until those that have landed are
//! handed out.
//!
//! A second task looks for new ones in the nodes' history, too, which may take them seconds. No height waits for that, and
//! no watcher for the search of another one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::statuses::{Statuses, read_status, split};
use super::{PATIENCE, Tip, own_context};
use crate::error::Error;
use crate::fair::Watcher;
use crate::methods::{Commitment, MAX_SIGNATURES, Signature, Slot, TipQuery};
use crate::pool::{CallContext, TipRequest};
use crate::telemetry::Trace;

/// The number of slots after which a signature that was not asked for is looked for in the history: a node finds younger
/// ones without it.
const REMEMBERED_SLOTS: u64 = 100;
/// The maximum number of searches of the history at a time. Each watcher has one.
const MAX_SEARCHES: usize = 64;
/// The longest time for a search, which nodes may need for old signatures.
const SEARCH_TIME: Duration = Duration::from_secs(30);
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

/// All signatures that are watched. There are as many as subscriptions, whose number is bounded.
#[derive(Debug, Default)]
pub(super) struct Watches {
    table: Mutex<WatchTable>,
    /// The highest slot, at each commitment, at which a height waits.
    wanted: [AtomicU64; 3],
    /// Notified of a new signature, and of a height that waits.
    due: Notify,
    /// Notified of a signature that is to be looked for in the history.
    unsearched: Notify,
    /// Notified of whatever a height may wait for.
    noted: Notify,
}

#[derive(Debug, Default)]
struct WatchTable {
    watched: HashMap<WatchKey, WatchedSignature>,
    /// The signatures of each watcher, each with the number of its watches.
    of: HashMap<(Watcher, Commitment), HashMap<Signature, usize>>,
    /// The signatures of each watcher that are to be looked for in the history, and the watchers whose turn it is.
    unsearched: HashMap<Watcher, BTreeSet<Signature>>,
    searching: HashSet<Watcher>,
    /// What may have to be asked for before the next slot.
    fresh: Vec<WatchKey>,
    last_number: u64,
    /// The number of the slot, in the order in which slots are looked at.
    round: u64,
    /// The time of the last fall of the chain. `None` before the first.
    fell_at: Option<Instant>,
}

/// One signature that is watched at one commitment, by any number of watchers.
#[derive(Debug)]
struct WatchedSignature {
    /// A number that no other entry has. Later entries have higher ones.
    number: u64,
    watches: usize,
    /// Who watches it first.
    watcher: Option<Watcher>,
    /// The slot up to which the transaction has certainly not reached the commitment. 0 before the first answer.
    asked: Slot,
    answered_at: Instant,
    /// The last round in which it was asked for.
    round: u64,
    is_asking: bool,
    /// True once it was looked for in the history.
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
                table.forget_search(watcher, signature);
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
    /// Returns what is known of a signature that has not ended, at each commitment at which it is watched.
    fn entries(&self, signature: Signature) -> impl Iterator<Item = &WatchedSignature> {
        let entries = Commitment::ALL.into_iter().filter_map(move |at| self.watched.get(&(signature, at)));
        entries.filter(|watched| !watched.has_ended())
    }

    fn fell_after(&self, time: Instant) -> bool {
        self.fell_at.is_some_and(|fell_at| time < fell_at)
    }

    fn forget_search(&mut self, watcher: Watcher, signature: Signature) {
        if let Some(of) = self.unsearched.get_mut(&watcher) {
            of.remove(&signature);
            if of.is_empty() {
                self.unsearched.remove(&watcher);
            }
        }
    }

    /// Returns the number of the last signature, up to `last`, that was not asked for at `slot` yet, or whose end is not
    /// handed out yet.
    fn last_unsettled(&self, of: (Watcher, Commitment), slot: Slot, last: u64) -> Option<u64> {
        self.unsettled(of, slot, last).map(|watched| watched.number).max()
    }

    /// Lets all signatures of a watcher be looked at before the next slot.
    fn refresh(&mut self, of: (Watcher, Commitment)) {
        let own = self.of.get(&of).into_iter().flat_map(HashMap::keys);
        self.fresh.extend(own.map(|signature| (*signature, of.1)));
    }

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
                table.unsearched.entry(watcher).or_default().insert(signature);
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

    /// Returns the signatures that are to be asked for, which counts as begun: those that were not asked for in this round,
    /// which begins now if `begins` is true, and those for which a height waits.
    fn take_due(&self, begins: bool) -> Vec<Signature> {
        let wanted = self.wanted.each_ref().map(|wanted| wanted.load(Ordering::Acquire));
        let mut table = self.lock();
        table.round += u64::from(begins);
        let (round, mut due, fresh) = (table.round, BTreeSet::new(), std::mem::take(&mut table.fresh));
        let keys = if begins { table.watched.keys().copied().collect() } else { fresh };
        for key @ (signature, commitment) in keys {
            let Some(watched) = table.watched.get_mut(&key) else { continue };
            if watched.answered_at.elapsed() > LONGEST_UNSERVED {
                watched.give_up();
            }
            let is_due = watched.round < round || watched.asked < wanted[commitment.index()];
            if is_due && !watched.is_asking && !watched.has_ended() {
                (watched.is_asking, watched.round) = (true, round);
                due.insert(signature);
            }
        }
        due.into_iter().collect()
    }

    /// Notes that these signatures are not being asked for any more.
    fn end_look(&self, signatures: &[Signature]) {
        let mut table = self.lock();
        for key in signatures.iter().flat_map(|of| Commitment::ALL.map(|commitment| (*of, commitment))) {
            if let Some(watched) = table.watched.get_mut(&key) {
                watched.is_asking = false;
                table.fresh.push(key);
            }
        }
    }

    /// Returns a watcher whose turn it is to have signatures looked for in the history, and the signatures.
    fn begin_search(&self) -> Option<(Watcher, Vec<Signature>)> {
        let (mut table, mut signatures) = (self.lock(), Vec::new());
        while signatures.is_empty() {
            let is_next = |watcher: &&Watcher| !table.searching.contains(watcher);
            let watcher = *table.unsearched.keys().find(is_next)?;
            let mut of = table.unsearched.remove(&watcher)?;
            // Another watcher may have had it looked for.
            of.retain(|signature| table.entries(*signature).any(|watched| !watched.is_searched));
            signatures = of.iter().copied().take(MAX_SIGNATURES).collect();
            let rest: BTreeSet<_> = of.into_iter().skip(MAX_SIGNATURES).collect();
            if !rest.is_empty() {
                table.unsearched.insert(watcher, rest);
            }
            if !signatures.is_empty() {
                table.searching.insert(watcher);
                return Some((watcher, signatures));
            }
        }
        None
    }

    /// Notes that the transactions of `signatures` were looked for in the history.
    fn note_searched(&self, signatures: &[Signature]) {
        let mut table = self.lock();
        for key in signatures.iter().flat_map(|of| Commitment::ALL.map(|commitment| (*of, commitment))) {
            if let Some(watched) = table.watched.get_mut(&key) {
                watched.is_searched = true;
            }
        }
    }

    /// Ends the turn of `watcher`. The signatures `again` that it still watches are looked for once more.
    fn end_search(&self, watcher: Watcher, mut again: Vec<Signature>) {
        let mut table = self.lock();
        table.searching.remove(&watcher);
        let of = |at: &Commitment| table.of.get(&(watcher, *at));
        again
            .retain(|signature| Commitment::ALL.iter().filter_map(of).any(|own| own.contains_key(signature)));
        if !again.is_empty() {
            table.unsearched.entry(watcher).or_default().extend(again);
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
        let table = &mut *table;
        // What was true of the chain before its fall says nothing of the blocks that it has now.
        if table.fell_after(sent_at) {
            return;
        }
        for (signature, text) in signatures.iter().zip(&statuses.each) {
            let status = read_status(text);
            for commitment in Commitment::ALL {
                let watched = table.watched.get_mut(&(*signature, commitment));
                let Some(watched) = watched.filter(|watched| !watched.has_ended()) else { continue };
                watched.answered_at = Instant::now();
                if watched.asked > 0 && statuses.slot.saturating_sub(watched.asked) > REMEMBERED_SLOTS {
                    watched.is_searched = false;
                    if let Some(watcher) = watched.watcher {
                        table.unsearched.entry(watcher).or_default().insert(*signature);
                        self.unsearched.notify_one();
                    }
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

impl Tip {
    /// Asks for the signatures that are watched, for ever. A slow answer about some of them delays no other one.
    pub async fn ask_for_watched(self: Arc<Self>) {
        let mut looks = FuturesUnordered::new();
        let (mut newest, mut next) = (0, Instant::now());
        loop {
            let (slot, now) = (self.frontier.slot(Commitment::Processed), Instant::now());
            let begins = slot > newest || now >= next;
            if begins {
                (newest, next) = (slot, now + self.frontier.slot_time());
            }
            let due = self.watches.take_due(begins);
            looks.extend(due.chunks(MAX_SIGNATURES).map(|due| self.look(due.into())));
            let is_watched = !self.watches.lock().watched.is_empty();
            tokio::select! {
                // The answer itself may have shown a newer slot.
                Some(()) = looks.next() => newest = newest.max(self.frontier.slot(Commitment::Processed)),
                () = self.watches.due.notified() => {}
                () = self.frontier.reached(Commitment::Processed, newest.saturating_add(1)), if is_watched => {}
                () = sleep_until(next), if is_watched => {}
            }
        }
    }

    /// Asks once for these signatures, at the slots for which heights wait.
    async fn look(&self, signatures: Arc<[Signature]>) {
        let mut floors = self.floors();
        for commitment in Commitment::ALL {
            let wanted = self.watches.wanted[commitment.index()].load(Ordering::Acquire);
            for floor in &mut floors[..=commitment.index()] {
                *floor = wanted.max(*floor);
            }
        }
        let answer = self.ask_for_some(&signatures, false, floors, own_context(Trace::default())).await;
        let is_wanted = |key: &Signature| {
            let (table, wanted) = (self.watches.lock(), &self.watches.wanted);
            Commitment::ALL.iter().any(|at| {
                let watched = table.watched.get(&(*key, *at)).filter(|watched| !watched.has_ended());
                watched.is_some_and(|of| of.asked < wanted[at.index()].load(Ordering::Acquire))
            })
        };
        // Whoever asks again at once would get the same answer.
        if answer.is_err() || signatures.iter().any(is_wanted) {
            sleep(self.pause()).await;
        }
        self.watches.end_look(&signatures);
    }

    /// Looks for the signatures that are watched in the history of the nodes, for ever: one call at a time for each watcher.
    pub async fn search_for_watched(self: Arc<Self>) {
        let mut searches = FuturesUnordered::new();
        loop {
            while searches.len() < MAX_SEARCHES
                && let Some((watcher, signatures)) = self.watches.begin_search()
            {
                searches.push(self.search(watcher, signatures));
            }
            tokio::select! {
                Some(()) = searches.next() => {}
                () = self.watches.unsearched.notified(), if searches.len() < MAX_SEARCHES => {}
            }
        }
    }

    /// Looks for signatures of one watcher in the history. If that fails, each half of them is looked for by itself, since one
    /// signature may take a node longer than all others.
    async fn search(&self, watcher: Watcher, signatures: Vec<Signature>) {
        let (mut parts, mut failed) = (vec![signatures], Vec::new());
        while let Some(mut part) = parts.pop() {
            let context = CallContext {
                caller: watcher.caller,
                is_background: false,
                ..CallContext::own(Instant::now() + SEARCH_TIME)
            };
            match self.ask_for_some(&part.as_slice().into(), true, self.floors(), context).await {
                // What was found was not noted.
                Ok(sent_at) if self.watches.lock().fell_after(sent_at) => parts.push(part),
                Ok(_) => self.watches.note_searched(&part),
                Err(_) if part.len() > 1 => {
                    parts.push(part.split_off(part.len() / 2));
                    parts.push(part);
                }
                Err(_) => failed.append(&mut part),
            }
        }
        if !failed.is_empty() {
            sleep(PATIENCE).await;
        }
        self.watches.end_search(watcher, failed);
    }

    /// Waits until every signature that `watcher` watches by now was asked for at `slot` or above, and the end of each that
    /// has landed is handed out. What no node answers for is given up after a while.
    ///
    /// # Errors
    /// The deadline passes first.
    pub(super) async fn settle(
        &self,
        watcher: Watcher,
        commitment: Commitment,
        slot: Slot,
        deadline: Instant,
    ) -> Result<(), Error> {
        let (all, of) = (&self.watches, (watcher, commitment));
        let Some(last) = all.lock().last_unsettled(of, slot, u64::MAX) else { return Ok(()) };
        all.wanted[commitment.index()].fetch_max(slot, Ordering::AcqRel);
        all.lock().refresh(of);
        all.due.notify_one();
        let settled = async {
            loop {
                let mut noted = pin!(all.noted.notified());
                noted.as_mut().enable();
                if all.lock().last_unsettled(of, slot, last).is_none() {
                    return;
                }
                noted.await;
            }
        };
        let patience = Instant::now() + PATIENCE;
        if timeout_at(deadline.min(patience), settled).await.is_ok() {
            return Ok(());
        }
        if deadline < patience {
            return Err(Error::NoUpstream(Vec::new()));
        }
        all.lock().unsettled(of, slot, last).for_each(WatchedSignature::give_up);
        Ok(())
    }

    /// Notes statuses of signatures, asked for at `sent_at`, which end those that have landed.
    pub(super) fn note(&self, signatures: &[Signature], statuses: &Statuses, sent_at: Instant) {
        self.follow_falls();
        self.watches.note(signatures, statuses, sent_at, |commitment, slot| {
            self.lift(commitment, slot);
            self.shown[commitment.index()].load(Ordering::Acquire).max(slot)
        });
    }

    /// Asks for signatures, and notes the statuses. Returns the time of the call.
    ///
    /// # Errors
    /// No node answers at or above `floors` in time, or a node refuses the call.
    async fn ask_for_some(
        &self,
        signatures: &Arc<[Signature]>,
        search_history: bool,
        floors: [Slot; 3],
        context: CallContext,
    ) -> Result<Instant, Error> {
        let query = TipQuery::Statuses { signatures: Arc::clone(signatures), search_history };
        let reply = self.pool.read_tip(&TipRequest { query, floors, context }).await?;
        let sent_at = reply.sent_at;
        match split(reply) {
            Ok(statuses) => self.note(signatures, &statuses, sent_at),
            // No node of the pool keeps history.
            Err(_) if search_history => {}
            Err(_) => return Err(Error::NoUpstream(Vec::new())),
        }
        Ok(sent_at)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::fair::CallerId;
    use Commitment::{Confirmed, Finalized, Processed};

    const SIGNATURE: Signature = Signature([7; 64]);

    fn watcher(number: usize) -> Watcher {
        Watcher { caller: CallerId::numbered(number), address: None }
    }

    fn statuses(slot: Slot, status: Option<(Slot, Commitment)>) -> Statuses {
        let text = status.map_or("null".to_owned(), |(slot, reached)| {
            format!(r#"{{"slot":{slot},"confirmations":1,"err":null,"confirmationStatus":"{reached}"}}"#)
        });
        Statuses { slot, context: Bytes::new(), each: vec![text.into()], node: 0 }
    }

    fn note(watches: &Watches, slot: Slot, status: Option<(Slot, Commitment)>) {
        watches.note(&[SIGNATURE], &statuses(slot, status), Instant::now(), |_, slot| slot);
    }

    fn unsettled(watches: &Watches, number: usize, commitment: Commitment, slot: Slot) -> bool {
        watches.lock().last_unsettled((watcher(number), commitment), slot, u64::MAX).is_some()
    }

    #[tokio::test]
    async fn heights_wait_for_what_may_have_landed_and_was_not_told() {
        let watches = Arc::<Watches>::default();
        let waits = |commitment, slot| unsettled(&watches, 1, commitment, slot);
        assert!(!waits(Confirmed, 100), "nothing is watched");
        let [mut watch, other] = [1, 2].map(|of| watches.add(SIGNATURE, Confirmed, Some(watcher(of))));
        assert!(waits(Confirmed, 1));
        assert!(!waits(Finalized, 100), "each commitment has its own");
        assert!(!unsettled(&watches, 3, Confirmed, 100), "somebody else's");
        note(&watches, 100, None);
        assert!(!waits(Confirmed, 100) && waits(Confirmed, 101));
        // It is in a block, which may be confirmed at its slot.
        note(&watches, 110, Some((105, Processed)));
        assert!(!waits(Confirmed, 104) && waits(Confirmed, 105));
        // The block was dropped.
        note(&watches, 111, None);
        assert!(!waits(Confirmed, 111));
        note(&watches, 112, Some((112, Confirmed)));
        assert!(waits(Confirmed, 1), "it has landed, and nobody was told");
        assert_eq!(watch.landed().now_or_never().unwrap().unwrap().slot, 112);
        drop(watch);
        assert!(!waits(Confirmed, 500), "it was told");
        assert!(unsettled(&watches, 2, Confirmed, 500), "another one is told later");
        drop(other);
        assert!(watches.lock().of.is_empty() && watches.lock().watched.is_empty());
    }

    #[tokio::test]
    async fn an_answer_from_before_a_fall_says_nothing() {
        let watches = Arc::<Watches>::default();
        let mut watch = watches.add(SIGNATURE, Confirmed, Some(watcher(1)));
        let sent_at = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        watches.ask_anew(Confirmed);
        for status in [None, Some((900, Confirmed))] {
            watches.note(&[SIGNATURE], &statuses(1_000, status), sent_at, |_, slot| slot);
        }
        assert!(unsettled(&watches, 1, Confirmed, 1));
        assert_eq!(watch.landed().now_or_never(), None);
        // What has landed before the fall may land again, for whoever comes after it.
        note(&watches, 1_000, Some((900, Confirmed)));
        watches.ask_anew(Confirmed);
        let mut anew = watches.add(SIGNATURE, Confirmed, Some(watcher(1)));
        assert!(watch.landed().now_or_never().is_some() && anew.landed().now_or_never().is_none());
        drop(watch);
        assert_eq!(watches.lock().watched.len(), 1);
    }

    #[tokio::test]
    async fn watches_of_one_signature_share_an_entry_until_the_last_ends() {
        let watches = Arc::<Watches>::default();
        let [one, two] = [0; 2].map(|_| watches.add(SIGNATURE, Confirmed, Some(watcher(1))));
        let other = watches.add(SIGNATURE, Finalized, None);
        assert_eq!(watches.take_due(true), [SIGNATURE], "one signature is asked for once");
        assert!(watches.take_due(false).is_empty(), "it is being asked for");
        watches.end_look(&[SIGNATURE]);
        assert!(watches.take_due(false).is_empty(), "it was asked for in this slot");
        watches.wanted[Confirmed.index()].store(7, Ordering::Release);
        watches.lock().refresh((watcher(1), Confirmed));
        assert_eq!(watches.take_due(false), [SIGNATURE], "a height waits");
        drop((one, other));
        assert_eq!(watches.lock().watched.len(), 1);
        note(&watches, 100, Some((90, Confirmed)));
        let mut late = watches.add(SIGNATURE, Confirmed, Some(watcher(2)));
        assert!(late.landed().now_or_never().is_some(), "what is known is told at once");
        drop((two, late));
        assert!(watches.lock().watched.is_empty());
    }

    #[tokio::test]
    async fn history_is_searched_first_and_after_a_gap_in_turn() {
        let watches = Arc::<Watches>::default();
        let [_one, _other] = [1, 2].map(|of| watches.add(SIGNATURE, Confirmed, Some(watcher(of))));
        let (first, signatures) = watches.begin_search().unwrap();
        let (second, same) = watches.begin_search().unwrap();
        assert!(first != second && signatures == [SIGNATURE] && same == [SIGNATURE]);
        assert!(watches.begin_search().is_none(), "each has its turn");
        note(&watches, 1_000, None);
        watches.note_searched(&signatures);
        watches.end_search(first, vec![]);
        watches.end_search(second, same);
        assert!(watches.begin_search().is_none(), "the search of one has found what there is");
        for (asked, expected) in [(1_001, false), (1_101, false), (1_202, true)] {
            note(&watches, asked, None);
            assert_eq!(watches.begin_search().is_some(), expected, "{asked}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_node_answers_for_is_given_up() {
        let watches = Arc::<Watches>::default();
        let mut watch = watches.add(SIGNATURE, Confirmed, Some(watcher(1)));
        tokio::time::advance(LONGEST_UNSERVED).await;
        note(&watches, 100, None);
        for (seconds, expected) in [(59, None), (2, Some(Err(Unserved)))] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            watches.take_due(true);
            assert_eq!(watch.landed().now_or_never(), expected);
        }
    }
}
