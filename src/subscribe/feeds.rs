//! The feeds: each question that clients have subscribed to, once, with all its subscribers.
//!
//! One lock orders everything that a subscriber may notice: an answer is queued and its subscription added under the same
//! lock under which notifications are handed out, so the answer always comes first, and nothing comes after an
//! unsubscription. The lock of the feeds is taken before the lock of a client.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::task::AbortOnDropHandle;

use super::client::SocketClient;
use super::queue::{MAX_QUEUED, Notification};
use super::unread::UnreadSince;
use crate::methods::{Slot, Subscription};
use crate::telemetry::{CloseReason, Metrics};
use crate::tip::Watch;

/// The maximum number of subscriptions of all clients together, by the default of a node.
const MAX_SUBSCRIPTIONS: usize = 1_000_000;

/// The SHA-256 of an account as it was last read.
pub(super) type AccountHash = [u8; 32];

/// What is known of an account that is subscribed to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SeenAccount {
    pub(super) slot: Slot,
    pub(super) whole: Option<AccountHash>,
    /// The account in the form of the subscription, as the subscribers know it. `None` if it is not known what they know.
    pub(super) shown: Option<AccountHash>,
    pub(super) unread: UnreadSince,
}

/// A question, with its subscribers.
#[derive(Default)]
pub(super) struct Feed {
    subscribers: HashMap<u64, Arc<SocketClient>>,
    pub(super) seen: SeenAccount,
    /// The task that works for this feed alone, which ends with it.
    pub(super) work: Option<AbortOnDropHandle<()>>,
    /// The number of clients who have asked for the feed and have not joined it yet, and what they will be notified of.
    awaited: usize,
    missed: VecDeque<Bytes>,
    /// True if a look at the feed found it without subscribers. The next such look removes it.
    is_idle: bool,
}

pub(super) struct Feeds {
    table: Mutex<FeedTable>,
    metrics: Arc<Metrics>,
    /// The bytes of all notifications that wait to be sent.
    queued: Arc<AtomicUsize>,
    max_queued: usize,
}

#[derive(Default)]
pub(super) struct FeedTable {
    accounts: HashMap<Arc<Subscription>, Feed>,
    others: HashMap<Arc<Subscription>, Feed>,
    subscriptions: usize,
    last_id: u64,
}

impl Feeds {
    /// Creates feeds whose notifications that wait may have `max_queued` bytes in all.
    pub(super) fn new(max_queued: usize, metrics: Arc<Metrics>) -> Self {
        Self { table: Mutex::default(), metrics, queued: Arc::default(), max_queued }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FeedTable> {
        self.table.lock()
    }

    /// Returns the bytes of all notifications that wait to be sent.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    pub(super) fn has(&self, subscription: &Subscription) -> bool {
        self.lock().feed(subscription).is_some()
    }

    /// Hands `result`, JSON text, to all subscribers. `is_last` ends the feed.
    pub(super) fn publish(&self, subscription: &Subscription, result: &[u8], is_last: bool) {
        self.publish_in(&mut self.lock(), subscription, result, is_last);
    }

    /// Does what [`Self::publish`] does, while the caller holds the lock.
    pub(super) fn publish_in(
        &self,
        table: &mut FeedTable,
        subscription: &Subscription,
        result: &[u8],
        is_last: bool,
    ) {
        let Some(feed) = table.feed(subscription) else { return };
        if feed.awaited > 0 {
            feed.miss(result);
        }
        if feed.subscribers.is_empty() {
            return;
        }
        let before = self.queued_bytes();
        let notification = Arc::new(Notification::new(subscription, result, is_last, &self.queued));
        // The first notification of an idle gateway may be longer than the bound.
        let free = if before == 0 { usize::MAX } else { self.max_queued.saturating_sub(self.queued_bytes()) };
        for (id, client) in &feed.subscribers {
            client.notify(*id, &notification, free, is_last);
        }
        if is_last {
            let ended = feed.subscribers.len();
            table.map(subscription).remove(subscription);
            self.count(table, subscription, ended, 0);
        }
    }

    /// Adds a subscriber, with his `watch` of a signature, and the feed if it is new. Returns the id and, if it is new, the feed. `None` if there are as
    /// many subscriptions as the key, the connection or slotfront may have.
    pub(super) fn join<'a>(
        &self,
        table: &'a mut FeedTable,
        client: &Arc<SocketClient>,
        subscription: &Arc<Subscription>,
        watch: impl FnOnce() -> Option<Watch>,
    ) -> Option<(u64, Option<&'a mut Feed>)> {
        let mut state = client.state();
        if let Some(id) = state.id_of(subscription) {
            return Some((id, None));
        }
        let id = table.last_id + 1;
        if table.subscriptions == MAX_SUBSCRIPTIONS
            || state.is_closed()
            || !state.add(id, subscription, watch)
        {
            return None;
        }
        table.last_id = id;
        self.count(table, subscription, 0, 1);
        let map = table.map(subscription);
        let is_new = !map.contains_key(subscription);
        let feed = map.entry(Arc::clone(subscription)).or_default();
        feed.subscribers.insert(id, Arc::clone(client));
        feed.is_idle = false;
        Some((id, is_new.then_some(feed)))
    }

    /// Lets all subscribers pay for a look at an account of this length.
    pub(super) fn charge_look(&self, subscription: &Subscription, round: u64, bytes: usize) {
        let (mut table, at) = (self.lock(), subscription.commitment().unwrap_or_default());
        let feed = table.feed(subscription);
        let clients = feed.into_iter().flat_map(|feed| feed.subscribers.values());
        clients.for_each(|client| client.state().principal().charge_look(at, round, bytes));
    }

    /// Removes a subscriber. A feed without subscribers ends, unless a node's subscription feeds it.
    pub(super) fn leave(&self, table: &mut FeedTable, subscription: &Subscription, id: u64) {
        let map = table.map(subscription);
        let Some(feed) = map.get_mut(subscription) else { return };
        if feed.subscribers.remove(&id).is_none() {
            return;
        }
        if feed.subscribers.is_empty() && !matches!(subscription, Subscription::Relayed { .. }) {
            map.remove(subscription);
        }
        self.count(table, subscription, 1, 0);
    }

    pub(super) fn leave_all(&self, client: &SocketClient) {
        let mut table = self.lock();
        let all = client.state().remove_all();
        for (id, subscription) in all {
            self.leave(&mut table, &subscription, id);
        }
    }

    /// Closes the connections of all subscribers of feeds that `concerns` names, because notifications may be missing, and
    /// ends these feeds. Returns the number of feeds that had subscribers.
    pub(super) fn interrupt(&self, concerns: impl Fn(&Subscription) -> bool) -> usize {
        let (mut table, mut interrupted) = (self.lock(), 0);
        for is_account in [true, false] {
            let map = if is_account { &mut table.accounts } else { &mut table.others };
            let ended: Vec<_> = map.extract_if(|subscription, _| concerns(subscription)).collect();
            for (subscription, feed) in ended {
                interrupted += usize::from(!feed.subscribers.is_empty());
                feed.subscribers.values().for_each(|client| client.close(CloseReason::Restart));
                self.count(&mut table, &subscription, feed.subscribers.len(), 0);
            }
        }
        interrupted
    }

    /// Notifies a new subscriber of what has happened since the node has taken his subscription.
    pub(super) fn catch_up(&self, table: &mut FeedTable, client: &SocketClient, of: &Subscription, id: u64) {
        let missed = table.feed(of).map(|feed| feed.missed.clone()).unwrap_or_default();
        for result in missed {
            let notification = Arc::new(Notification::new(of, &result, false, &self.queued));
            client.notify(id, &notification, self.max_queued.saturating_sub(self.queued_bytes()), false);
        }
    }

    /// Removes those feeds of `own` that had no subscriber at two calls in a row, and returns them.
    pub(super) fn remove_idle(&self, own: impl Fn(&Subscription) -> bool) -> Vec<Arc<Subscription>> {
        let mut table = self.lock();
        let ended = table
            .others
            .extract_if(|subscription, feed| {
                own(subscription) && {
                    let is_idle = feed.subscribers.is_empty() && feed.awaited == 0;
                    std::mem::replace(&mut feed.is_idle, is_idle) && is_idle
                }
            })
            .map(|(subscription, _)| subscription);
        ended.collect()
    }

    fn count(&self, table: &mut FeedTable, subscription: &Subscription, ended: usize, begun: usize) {
        table.subscriptions = table.subscriptions + begun - ended;
        let change = i64::from(begun > 0) - i64::try_from(ended).unwrap_or(i64::MAX);
        self.metrics.ws_subscriptions.at(subscription.method()).add(change);
    }
}

impl Feed {
    /// Keeps a result for those who have not joined yet. What is too much is older than their answers.
    fn miss(&mut self, result: &[u8]) {
        self.missed.push_back(Bytes::copy_from_slice(result));
        while self.missed.len() > 1 && self.missed.iter().map(Bytes::len).sum::<usize>() > MAX_QUEUED {
            self.missed.pop_front();
        }
    }
}

impl FeedTable {
    fn map(&mut self, subscription: &Subscription) -> &mut HashMap<Arc<Subscription>, Feed> {
        match subscription {
            Subscription::Account { .. } => &mut self.accounts,
            _ => &mut self.others,
        }
    }

    pub(super) fn feed(&mut self, subscription: &Subscription) -> Option<&mut Feed> {
        self.map(subscription).get_mut(subscription)
    }

    /// Returns true if a node's subscription feeds the question. The feed then stays until a subscriber may have joined.
    pub(super) fn keep(&mut self, subscription: &Subscription) -> bool {
        self.feed(subscription).is_some_and(|feed| {
            feed.is_idle = false;
            true
        })
    }

    /// Adds the feed of a node's subscription, for which `awaited` clients wait.
    pub(super) fn open(&mut self, subscription: &Arc<Subscription>, awaited: usize) {
        self.others.entry(Arc::clone(subscription)).or_default().awaited += awaited;
    }

    pub(super) fn end_wait(&mut self, subscription: &Subscription) {
        if let Some(feed) = self.feed(subscription) {
            feed.awaited = feed.awaited.saturating_sub(1);
            if feed.awaited == 0 {
                feed.missed = VecDeque::new();
            }
        }
    }

    pub(super) fn has_accounts(&self) -> bool {
        !self.accounts.is_empty()
    }

    pub(super) fn accounts(&self) -> impl Iterator<Item = (&Arc<Subscription>, &SeenAccount)> {
        self.accounts.iter().map(|(subscription, feed)| (subscription, &feed.seen))
    }
}
