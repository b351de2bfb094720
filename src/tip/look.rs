//! The tasks that ask for the signatures that are watched.
//!
//! One task asks once a slot for all of them, and in between for new ones and for those that a height waits for. A second
//! task looks for new ones in the nodes' history, too, which may take them seconds. No height waits for that, and no watcher
//! for the search of another one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::statuses::{Statuses, split};
use super::{PATIENCE, Tip, own_context};
use crate::error::Error;
use crate::fair::Watcher;
use crate::methods::{Commitment, MAX_SIGNATURES, Signature, Slot, TipQuery};
use crate::pool::{CallContext, TipRequest};
use crate::telemetry::Trace;

/// The maximum number of searches of the history at a time. Each watcher has one.
const MAX_SEARCHES: usize = 64;
/// The longest time for a search, which nodes may need for old signatures.
const SEARCH_TIME: Duration = Duration::from_secs(30);

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
            let is_watched = !self.watches.is_empty();
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
            let wanted = self.watches.wanted_at(commitment);
            for floor in &mut floors[..=commitment.index()] {
                *floor = wanted.max(*floor);
            }
        }
        let answer = self.ask_for_some(&signatures, false, floors, own_context(Trace::default())).await;
        // Whoever asks again at once would get the same answer.
        if answer.is_err() || self.watches.are_wanted(&signatures) {
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
                Ok(sent_at) if self.watches.fell_after(sent_at) => parts.push(part),
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
        let of = (watcher, commitment);
        let Some(last) = self.watches.want(of, slot) else { return Ok(()) };
        let settled = self.watches.settled(of, slot, last);
        let patience = Instant::now() + PATIENCE;
        if timeout_at(deadline.min(patience), settled).await.is_ok() {
            return Ok(());
        }
        if deadline < patience {
            return Err(Error::NoUpstream(Vec::new()));
        }
        self.watches.give_up(of, slot, last);
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
