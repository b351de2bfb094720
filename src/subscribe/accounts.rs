//! The changes of accounts, read through the cache once a slot.
//!
//! Lists of accounts in base64 tell which of them have changed. Only a changed account is read in the forms of its
//! subscriptions, which the cache makes from the list's answer where it can. While the chain is followed, an account that
//! no block has written is a hit, so that reading it costs the nodes nothing.
//!
//! No read waits for another one. A list that is slow or too long is read in parts the next time, so that an account that is
//! slow by itself soon delays no other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until};

use super::Hub;
use super::account_view::{Outcome, READ_TIMEOUT, ask, meaning, read, record, shown};
use super::feeds::{AccountHash, SeenAccount};
use crate::cache::entry::Payload;
use crate::config::sha256;
use crate::error::{Error, FailedAttempt};
use crate::methods::{
    AccountEncoding, AccountForm, AccountsQuery, Commitment, DataSlice, MAX_KEYS, Pubkey, Query, Slot,
    Subscription,
};
use crate::node::Contextual;
use crate::node::shape::elements;
use crate::pool::CallerId;
use crate::telemetry::AttemptResult;

/// The number by which the length of a slow list is divided, and that of the calls which this may cost at a time.
const PARTS: usize = 8;
const MAX_EXTRA_CALLS: usize = 64;

/// What is read to learn whether an account has changed: the part that its subscriptions show.
type Part = (Pubkey, Option<DataSlice>);

struct PartReads {
    /// The longest list in which it is read now, and the longest that has not been too long for an answer.
    company: usize,
    most: usize,
    under_way: usize,
    asked_at: Instant,
    text: AccountHash,
    whole: AccountHash,
}

/// The end of a call.
enum Done {
    List { parts: Vec<Part>, slot: Slot, answer: Result<Bytes, Error> },
    Form { of: Arc<Subscription>, whole: AccountHash, slot: Slot, answer: Option<(Slot, Bytes)> },
}

/// The reads of all accounts that are subscribed to at one commitment.
struct Looker {
    hub: Arc<Hub>,
    commitment: Commitment,
    reads: HashMap<Part, PartReads>,
    calls: FuturesUnordered<BoxFuture<'static, Done>>,
    round: u64,
    forms: HashSet<Arc<Subscription>>,
}

/// Reads, at each new slot, all accounts that are subscribed to at `commitment`.
pub(super) async fn follow(hub: Arc<Hub>, commitment: Commitment) {
    let (mut last, mut next) = (0, Instant::now());
    let (calls, forms) = (FuturesUnordered::new(), HashSet::new());
    let mut looker =
        Looker { hub: Arc::clone(&hub), commitment, reads: HashMap::new(), calls, round: 0, forms };
    loop {
        let slot = tokio::select! {
            Some(done) = looker.calls.next() => {
                looker.end(done);
                continue;
            }
            slot = hub.next_slot(commitment, last) => slot,
            // Without other calls, only this one tells of new slots.
            () = sleep_until(next) => hub.parts.frontier.slot(commitment),
        };
        if slot < last {
            hub.feeds.interrupt(|subscription| {
                matches!(subscription, Subscription::Account { commitment: at, .. } if *at == commitment)
            });
        }
        if slot > 0 && hub.feeds.lock().has_accounts() {
            looker.begin(slot, slot != last);
        }
        (last, next) = (slot, Instant::now() + hub.parts.frontier.slot_time());
    }
}

/// Returns what is read for a subscription. `None` if it is none to an account.
fn part_of(subscription: &Subscription) -> Option<Part> {
    let Subscription::Account { pubkey, form, .. } = subscription else { return None };
    // What a program's account means is in all of it.
    Some((*pubkey, form.slice.filter(|_| form.encoding != AccountEncoding::JsonParsed)))
}

impl Looker {
    fn watched(&self) -> HashMap<Part, Vec<(Arc<Subscription>, SeenAccount)>> {
        let mut watched = HashMap::<_, Vec<_>>::new();
        for (subscription, seen) in self.hub.feeds.lock().accounts() {
            if let Some(part) =
                part_of(subscription).filter(|_| subscription.commitment() == Some(self.commitment))
            {
                watched.entry(part).or_default().push((Arc::clone(subscription), *seen));
            }
        }
        watched
    }

    /// Begins to read what is not being read already. What is late is read once more, in a shorter list. `is_new` is false
    /// if nobody has told of a slot since the last time, so that stored answers tell nothing.
    fn begin(&mut self, slot: Slot, is_new: bool) {
        self.round += 1;
        let (watched, now) = (self.watched(), Instant::now());
        self.reads.retain(|part, reads| watched.contains_key(part) || reads.under_way > 0);
        let (usual, late) = (watched.len() / MAX_KEYS + 1, self.hub.parts.frontier.slot_time());
        let may_divide = self.calls.len() < usual + MAX_EXTRA_CALLS;
        let mut lists = BTreeMap::<_, Vec<_>>::new();
        for part in watched.into_keys() {
            let reads = self.reads.entry(part).or_insert(PartReads {
                company: MAX_KEYS,
                most: MAX_KEYS,
                under_way: 0,
                asked_at: now,
                text: [0; 32],
                whole: [0; 32],
            });
            if reads.under_way > 0 {
                if reads.company == 1 || !may_divide || now.duration_since(reads.asked_at) < late {
                    continue;
                }
                reads.company = (reads.company / PARTS).max(1);
            }
            let slice = part.1.map(|slice| (slice.offset, slice.length));
            lists.entry((reads.company, slice)).or_default().push(part);
        }
        for ((company, _), parts) in lists {
            parts.chunks(company).for_each(|parts| self.read_list(parts.to_vec(), slot, is_new));
        }
    }

    fn read_list(&mut self, parts: Vec<Part>, slot: Slot, is_new: bool) {
        for part in &parts {
            if let Some(reads) = self.reads.get_mut(part) {
                (reads.under_way, reads.asked_at) = (reads.under_way + 1, Instant::now());
            }
        }
        let (hub, commitment) = (Arc::clone(&self.hub), self.commitment);
        let slice = parts.first().and_then(|part| part.1);
        let reading = async move {
            let query = Query::Accounts(AccountsQuery {
                pubkeys: parts.iter().map(|part| part.0).collect(),
                form: AccountForm { encoding: AccountEncoding::Base64, slice },
                commitment,
                min_context_slot: Some(slot),
            });
            // The followed chain knows of each write at confirmed and finalized.
            let is_followed = commitment != Commitment::Processed && hub.parts.tip.follows();
            let bypass = !is_new && !is_followed;
            let answer = match ask(&hub, &query, CallerId::default(), READ_TIMEOUT, bypass).await {
                Ok(Payload::Result(list)) => Ok(list.whole()),
                Ok(Payload::Error { .. }) => Err(Error::NoUpstream(Vec::new())),
                Err(error) => Err(error),
            };
            Done::List { parts, slot, answer }
        };
        self.calls.push(reading.boxed());
    }

    fn end(&mut self, done: Done) {
        match done {
            Done::List { parts, slot, answer } => self.end_list(&parts, slot, answer),
            Done::Form { of, whole, slot, answer } => {
                self.forms.remove(&of);
                let outcome = match &answer {
                    Some((slot, shown)) => Outcome::Read { slot: *slot, whole, shown },
                    None => Outcome::Unread(slot),
                };
                record(&self.hub, &of, &outcome);
            }
        }
    }

    fn end_list(&mut self, parts: &[Part], slot: Slot, answer: Result<Bytes, Error>) {
        let is_too_long = matches!(&answer, Err(Error::NoUpstream(attempts)) if is_too_large(attempts));
        let late = self.hub.parts.frontier.slot_time();
        for part in parts {
            let Some(reads) = self.reads.get_mut(part) else { continue };
            reads.under_way -= 1;
            if is_too_long {
                reads.most = (parts.len() / 2).max(1);
                reads.company = reads.most;
            } else if answer.is_ok() && reads.asked_at.elapsed() < late {
                reads.company = (reads.company * 2).min(reads.most);
            }
        }
        let mut watched = self.watched();
        let parsed = answer.ok().and_then(|text| {
            let Contextual { slot, value, .. } = Contextual::split(&text)?;
            elements(&value).filter(|accounts| accounts.len() == parts.len()).map(|accounts| (slot, accounts))
        });
        for (at, part) in parts.iter().enumerate() {
            let of = watched.remove(part).unwrap_or_default();
            let Some((read_at, accounts)) = &parsed else {
                for (of, _) in &of {
                    record(&self.hub, of, &Outcome::Unread(slot));
                }
                continue;
            };
            let account = &accounts[at];
            let Some(reads) = self.reads.get_mut(part) else { continue };
            let text = sha256(account);
            if reads.text != text {
                (reads.text, reads.whole) = (text, meaning(account));
            }
            let whole = reads.whole;
            for (subscription, seen) in of {
                self.hub.feeds.charge_look(&subscription, self.round, account.len());
                if seen.whole == Some(whole) {
                    record(&self.hub, &subscription, &Outcome::Same);
                } else {
                    self.note_change(subscription, whole, account, *read_at);
                }
            }
        }
    }

    fn note_change(&mut self, of: Arc<Subscription>, whole: AccountHash, account: &Bytes, slot: Slot) {
        let Subscription::Account { form, .. } = *of else { return };
        if form.encoding == AccountEncoding::Base64 {
            let shown = shown(form, account);
            return record(&self.hub, &of, &Outcome::Read { slot, whole, shown: &shown });
        }
        if self.forms.insert(Arc::clone(&of)) {
            let hub = Arc::clone(&self.hub);
            let reading = async move {
                let answer = read(&hub, &of, Some(slot), CallerId::default()).await;
                Done::Form { of, whole, slot, answer }
            };
            self.calls.push(reading.boxed());
        }
    }
}

fn is_too_large(attempts: &[FailedAttempt]) -> bool {
    attempts.iter().any(|attempt| attempt.is(AttemptResult::TooLarge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_subscription_shows_is_what_is_read_for_it() {
        let of = |encoding, slice| {
            let form = AccountForm { encoding, slice };
            part_of(&Subscription::Account {
                pubkey: Pubkey([7; 32]),
                form,
                commitment: Commitment::Confirmed,
            })
        };
        let slice = Some(DataSlice { offset: 0, length: 8 });
        assert_eq!(of(AccountEncoding::Base58, slice), Some((Pubkey([7; 32]), slice)));
        assert_eq!(of(AccountEncoding::JsonParsed, slice), Some((Pubkey([7; 32]), None)));
        assert_eq!(part_of(&Subscription::Slot), None);
    }
}
