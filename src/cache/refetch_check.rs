//! Checks of the followed block chain against answers of nodes.
//!
//! Whenever an account is fetched again, the new answer is compared with the stored one. If the two differ, a
//! block between their slots must have written the account. If none has, the account may change unseen, and
//! answers served at later slots may be wrong. The account is then fetched once more. If that answer differs
//! from the stored one, too, and no block explains it, answers are not carried any more until a restart.

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

/// The maximum number of checks that run at once. Further checks are skipped.
const AT_ONCE: usize = 64;
/// The time limit for the followed chain to reach the slot of an answer. Also the time limit for fetching the
/// account once more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Compares accounts that were fetched again with the stored answers.
pub(super) struct RefetchCheck {
    followed: Arc<FollowedChain>,
    pool: Arc<Pool>,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
}

/// One account in an answer, with the data for the comparison with another answer.
pub(super) struct Sighting<'a> {
    pub(super) body: &'a EntryBody,
    pub(super) stamp: &'a FollowStamp,
    /// The slot of the answer's context.
    pub(super) slot: Slot,
}

/// A stored answer about an account and a newer answer that differs from it.
struct Difference {
    query: AccountQuery,
    bucket: Bucket,
    chain: u64,
    /// The slot in the stored answer's context. The account may have been read at a lower slot.
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

    /// Compares the fetched account with `before`, the stored answer under `key`. A difference that no known
    /// block explains is examined in a task. Returns at once.
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

    /// Waits until the followed chain has reached the slot of the new answer. If no block has written the
    /// account by then, asks a node once more.
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
                "two answers about an account differ although no block between them has written it; \
                 this upstream confirms the older answer, so the newer answer was wrong"
            );
        } else if self.is_unwritten(difference, slot).await == Some(true) {
            self.followed.contradict();
            tracing::error!(
                upstream.name = upstream,
                account = %difference.query.pubkey,
                stored_slot = difference.stored_slot,
                slot,
                "an account has changed although no followed block has written it: \
                 until a restart, cached answers are no longer served at newer slots"
            );
        }
    }

    /// Returns true if no block up to `slot` has written the account since the stored answer. `None` if the
    /// followed chain does not reach `slot` in time.
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

/// Returns the difference between two answers about one account, if it must be explained by a write. `None`
/// if the answers agree, or if they may differ without a write.
fn difference(key: &Key, stored: &Sighting<'_>, fetched: &Sighting<'_>) -> Option<Difference> {
    let Key::Account(pubkey, form, commitment) = key else { return None };
    if form.encoding == AccountEncoding::JsonParsed {
        // Nodes of different versions may parse the data of a program differently.
        return None;
    }
    let (old, new) = (stored.stamp, fetched.stamp);
    // At finalized, old nodes may show data of a slot above that of the answer, or even above the newest block
    // of the followed chain.
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

/// Returns true if two account values agree in lamports, owner, executable and data. Other members do not
/// count, because only some versions of nodes write them. The texts may be long, so they are parsed on a
/// blocking thread.
async fn is_same(one: Bytes, other: Bytes) -> bool {
    let members = |text: &[u8]| {
        let value: Value = serde_json::from_slice(text).ok()?;
        Some(["lamports", "owner", "executable", "data"].map(|member| value[member].clone()))
    };
    let compare = move || one == other || members(&one).is_some_and(|one| members(&other) == Some(one));
    tokio::task::spawn_blocking(compare).await.unwrap_or(false)
}

/// Returns the stored text of a single account. `None` for other answers.
fn text(body: &EntryBody) -> Option<Bytes> {
    match body {
        EntryBody::Account { value, .. } => Some(value.text().clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::derive::list;
    use crate::methods::{AccountForm, Pubkey};

    const ACCOUNT: Pubkey = Pubkey([1; 32]);

    fn account(lamports: u64) -> String {
        let owner = Pubkey([2; 32]);
        format!(
            r#"{{"data":["","base64"],"executable":false,"lamports":{lamports},"owner":"{owner}","rentEpoch":0,"space":0}}"#
        )
    }

    /// One of two answers about [`ACCOUNT`].
    #[derive(Debug, Clone, Copy)]
    struct Answer {
        lamports: u64,
        chain: u64,
        may_be_newer: bool,
        slot: Slot,
    }

    /// Returns true if only a write to the account can explain how the two answers differ.
    fn differ(encoding: AccountEncoding, commitment: Commitment, stored: Answer, fetched: Answer) -> bool {
        let form = AccountForm { encoding, slice: None };
        let of = |answer: Answer| {
            let value = account(answer.lamports);
            let result =
                format!(r#"{{"context":{{"apiVersion":"4.1.0","slot":{}}},"value":{value}}}"#, answer.slot);
            let body = list::read_single(&result.into(), form).unwrap().into_body(None);
            let stamp = FollowStamp {
                chain: answer.chain,
                read: answer.slot,
                may_be_newer: answer.may_be_newer,
                newest_data: answer.slot,
                is_token: false,
                buckets: [FollowedChain::default().bucket(&ACCOUNT)].into(),
            };
            (body, stamp)
        };
        let ((stored_body, stored_stamp), (fetched_body, fetched_stamp)) = (of(stored), of(fetched));
        let stored = Sighting { body: &stored_body, stamp: &stored_stamp, slot: stored.slot };
        let fetched = Sighting { body: &fetched_body, stamp: &fetched_stamp, slot: fetched.slot };
        difference(&Key::Account(ACCOUNT, form, commitment), &stored, &fetched).is_some()
    }

    #[test]
    fn only_comparable_answers_prove_a_difference() {
        use AccountEncoding::{Base64, JsonParsed};
        use Commitment::{Confirmed, Finalized};
        let stored = Answer { lamports: 1, chain: 7, may_be_newer: false, slot: 100 };
        let other = Answer { lamports: 2, ..stored };
        let unsure = |answer| Answer { may_be_newer: true, ..answer };
        for (name, encoding, commitment, stored, fetched, expected) in [
            ("other lamports", Base64, Confirmed, stored, other, true),
            ("at a later slot", Base64, Confirmed, stored, Answer { slot: 101, ..other }, true),
            ("at an earlier slot", Base64, Confirmed, stored, Answer { slot: 99, ..other }, false),
            ("the same account", Base64, Confirmed, stored, stored, false),
            ("along another chain", Base64, Confirmed, stored, Answer { chain: 8, ..other }, false),
            ("parsed by another version", JsonParsed, Confirmed, stored, other, false),
            ("exact at finalized", Base64, Finalized, stored, other, true),
            ("stored from an old node", Base64, Finalized, unsure(stored), other, false),
            ("fetched from an old node", Base64, Finalized, stored, unsure(other), false),
            ("both from old nodes", Base64, Finalized, unsure(stored), unsure(other), false),
            ("old nodes at confirmed", Base64, Confirmed, unsure(stored), unsure(other), true),
        ] {
            assert_eq!(differ(encoding, commitment, stored, fetched), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn members_of_some_versions_do_not_count() {
        let known = account(1);
        for (name, other, expected) in [
            ("the same text", known.clone(), true),
            ("another rent epoch", known.replace(r#""rentEpoch":0"#, r#""rentEpoch":1"#), true),
            ("no space", known.replace(r#","space":0"#, ""), true),
            ("other lamports", account(2), false),
            ("no JSON", "<html>".to_owned(), false),
        ] {
            assert_eq!(is_same(known.clone().into(), other.into()).await, expected, "{name}");
        }
    }
}
