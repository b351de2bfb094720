//! Checks of the followed chain against answers of nodes.
//!
//! Whenever an account is fetched again, the new answer is compared with the stored one. If the two differ, a
//! block between their slots must have written the account. Otherwise the account may change unseen, and
//! carried answers may be wrong. The account is then fetched once more. If that answer differs from the
//! stored one, too, nothing is carried any more.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::entry::{Entry, EntryBody};
use super::follow_stamp::FollowStamp;
use super::key::Key;
use crate::follow::{Bucket, Chain, FollowedChain};
use crate::methods::{AccountEncoding, AccountQuery, Commitment, Query, Slot};
use crate::node::{Contextual, NodeReply};
use crate::pool::{CallContext, Pool, PoolReply, UpstreamRequest};

/// The number of checks under way at once. Further checks are skipped.
const AT_ONCE: usize = 64;
/// The longest wait for the tip to reach the slot of an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Compares refetched accounts with the stored ones.
pub(super) struct RefetchCheck {
    followed: Arc<FollowedChain>,
    pool: Arc<Pool>,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// An account as one answer shows it.
pub(super) struct Sighting<'a> {
    pub(super) body: &'a EntryBody,
    pub(super) stamp: &'a FollowStamp,
    /// The slot of the answer.
    pub(super) slot: Slot,
}

/// Two answers about one account that differ.
struct Difference {
    query: AccountQuery,
    bucket: Bucket,
    chain: u64,
    /// The slot of the stored answer, which may have been carried there.
    stored_slot: Slot,
    /// The slot of the new answer.
    slot: Slot,
    stored: Bytes,
    fetched: Bytes,
}

impl RefetchCheck {
    pub(super) fn new(followed: Arc<FollowedChain>, pool: Arc<Pool>, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self { followed, pool, permits: Arc::new(Semaphore::new(AT_ONCE)), tasks })
    }

    /// Checks the account under `key`, of which `before` was stored when `fetched` came. Returns at once.
    pub(super) fn check(self: &Arc<Self>, key: &Key, before: &Entry, fetched: &Sighting<'_>) {
        let Some(stamp) = &before.stamp else { return };
        let stored = Sighting { body: &before.body, stamp, slot: before.meta.slot };
        let Some(difference) = difference(key, &stored, fetched) else { return };
        // Usually the block that wrote the account is known by now.
        let current = self.followed.current();
        let chain = current.as_deref().filter(|chain| chain.number() == difference.chain);
        if chain.is_none_or(|chain| chain.last_write(difference.bucket) > difference.stored_slot) {
            return;
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return };
        let check = Arc::clone(self);
        self.tasks.spawn(async move {
            check.find_write(&difference).await;
            drop(permit);
        });
    }

    /// Waits for the blocks up to the new answer. If no block has written the account, asks a node once more.
    async fn find_write(&self, difference: &Difference) {
        if self.is_unwritten(difference, difference.slot).await != Some(true)
            || is_same(difference.stored.clone(), difference.fetched.clone()).await
        {
            return;
        }
        let Some(again) = self.fetch_again(difference).await else { return };
        let NodeReply::Result(result) = &again.body else { return };
        let Some(Contextual { slot, value, .. }) = Contextual::split(result) else { return };
        let upstream = self.pool.name_of(again.node);
        if is_same(value, difference.stored.clone()).await {
            tracing::warn!(
                upstream.name = upstream,
                account = %difference.query.pubkey,
                slot,
                "two answers of nodes differ although no block has written the account: one of the nodes is wrong"
            );
        } else if self.is_unwritten(difference, slot).await == Some(true) {
            self.followed.contradict();
            tracing::error!(
                upstream.name = upstream,
                account = %difference.query.pubkey,
                kept_slot = difference.stored_slot,
                slot,
                "an account has changed although no block has written it: answers are no longer carried until the next start"
            );
        }
    }

    /// Returns true if no block up to `slot` has written the account since the stored answer. `None` if the
    /// blocks up to there are not known in time.
    async fn is_unwritten(&self, difference: &Difference, slot: Slot) -> Option<bool> {
        let reached = timeout(PATIENCE, self.followed.reached(difference.chain, slot)).await.ok()??;
        Some(is_unwritten(&reached, difference))
    }

    /// Fetches the account once more, at the slot of the new answer or above.
    async fn fetch_again(&self, difference: &Difference) -> Option<PoolReply> {
        let query = Query::Account(difference.query);
        let min_slot = Some(difference.slot);
        let context = CallContext::own(Instant::now() + PATIENCE);
        self.pool
            .call(&UpstreamRequest { query, min_slot, prefer: None, one_node: false, context })
            .await
            .ok()
    }
}

fn is_unwritten(chain: &Chain, difference: &Difference) -> bool {
    chain.last_write(difference.bucket) <= difference.stored_slot
}

/// Returns the difference between two answers about one account. `None` if the answers agree, or if a
/// difference would prove nothing.
fn difference(key: &Key, stored: &Sighting<'_>, fetched: &Sighting<'_>) -> Option<Difference> {
    let Key::Account(pubkey, form, commitment) = key else { return None };
    if form.encoding == AccountEncoding::JsonParsed {
        // Nodes of different versions may parse the data of a program differently.
        return None;
    }
    let (old, new) = (stored.stamp, fetched.stamp);
    // At finalized, old nodes may show data of a slot above that of the answer, or even above the tip.
    let is_exact = *commitment == Commitment::Confirmed || !(old.may_be_newer || new.may_be_newer);
    let is_comparable = old.chain == new.chain && is_exact;
    let (stored_text, fetched_text) = (text(stored.body)?, text(fetched.body)?);
    if !is_comparable || fetched.slot < stored.slot || stored_text == fetched_text {
        return None;
    }
    let query =
        AccountQuery { pubkey: *pubkey, form: *form, commitment: *commitment, min_context_slot: None };
    let (bucket, chain) = (*new.buckets.first()?, new.chain);
    let (stored_slot, slot) = (stored.slot, fetched.slot);
    Some(Difference { query, bucket, chain, stored_slot, slot, stored: stored_text, fetched: fetched_text })
}

/// Returns true if two values state the same account. Members that only some versions of nodes write do not
/// count. The texts may be long, so they are read beside the async workers.
async fn is_same(one: Bytes, other: Bytes) -> bool {
    let members = |text: &[u8]| {
        let value: Value = serde_json::from_slice(text).ok()?;
        Some(["lamports", "owner", "executable", "data"].map(|member| value[member].clone()))
    };
    let compare = move || one == other || members(&one).is_some_and(|one| members(&other) == Some(one));
    tokio::task::spawn_blocking(compare).await.unwrap_or(false)
}

/// Returns the text of a stored account.
fn text(body: &EntryBody) -> Option<Bytes> {
    match body {
        EntryBody::Account { value, .. } => Some(value.text().clone()),
        _ => None,
    }
}
