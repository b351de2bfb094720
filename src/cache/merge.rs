//! Merging of calls (`pool.merge`): while nodes are busy with calls for single accounts, later calls are
//! queued and go upstream together as one list.
//!
//! There is no timer. Each call that ends sends the calls that have queued meanwhile, as many as one list may
//! hold. Only accounts of known size are queued, so that no merged answer grows too large.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::derive::list;
use super::sizes::TOGETHER_BYTES;
use crate::error::Error;
use crate::methods::{AccountForm, AccountQuery, AccountsQuery, Commitment, MAX_KEYS, Pubkey, Query, Slot};
use crate::node::NodeReply;
use crate::pool::{CallContext, Pool, PoolReply, UpstreamRequest};

/// The number of calls under way, for one form and commitment, at which further calls are queued to be merged.
const BUSY: usize = 4;

/// The calls for single accounts, grouped by form and commitment.
#[derive(Default)]
pub(super) struct Merger {
    groups: Mutex<HashMap<(AccountForm, Commitment), MergeGroup>>,
}

/// The calls under way and the queued calls of one form and commitment. The group exists while there are any.
#[derive(Default)]
struct MergeGroup {
    under_way: usize,
    waiting: Vec<QueuedCall>,
}

/// A call that waits to be merged with others.
struct QueuedCall {
    pubkey: Pubkey,
    space: u64,
    min_slot: Option<Slot>,
    prefer: Option<Slot>,
    context: CallContext,
    /// The sender of this call's part of the answer to the merged call. `None` is sent if the call must go
    /// upstream by itself.
    reply: oneshot::Sender<Option<Result<PoolReply, Error>>>,
}

/// The way in which a call for a single account goes upstream.
enum MergeTurn {
    /// The call goes upstream by itself. When it ends, calls that were queued meanwhile are sent as one list.
    Alone,
    /// The call is queued until it is merged with others. The receiver gets this call's part of the answer,
    /// or `None` if the call must go upstream by itself.
    Queued(oneshot::Receiver<Option<Result<PoolReply, Error>>>),
}

impl Merger {
    /// Asks `pool` for one account, by itself or merged with others. `space` is the account's size in bytes,
    /// if known.
    ///
    /// # Errors
    /// [`Pool::call`] fails.
    pub(super) async fn call(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        tasks: &TaskTracker,
        request: UpstreamRequest,
        space: Option<u64>,
    ) -> Result<PoolReply, Error> {
        let Query::Account(query) = &request.query else { return pool.call(&request).await };
        let key = (query.form, query.commitment);
        let _under_way = match self.turn(key, query, &request, space) {
            MergeTurn::Alone => self.counted(key, pool, tasks),
            MergeTurn::Queued(reply) => {
                if let Ok(Some(reply)) = reply.await {
                    return reply;
                }
                self.under_way(key, pool, tasks)
            }
        };
        pool.call(&request).await
    }

    fn turn(
        &self,
        key: (AccountForm, Commitment),
        query: &AccountQuery,
        request: &UpstreamRequest,
        space: Option<u64>,
    ) -> MergeTurn {
        let mut groups = self.lock();
        let group = groups.entry(key).or_default();
        let Some(space) = space.filter(|space| group.under_way >= BUSY && *space <= TOGETHER_BYTES) else {
            // The call is counted under the same lock, so that only a few of many simultaneous calls find the
            // pool idle.
            group.under_way += 1;
            return MergeTurn::Alone;
        };
        let (reply, receiver) = oneshot::channel();
        let &UpstreamRequest { min_slot, prefer, .. } = request;
        let (pubkey, context) = (query.pubkey, request.context.clone());
        group.waiting.push(QueuedCall { pubkey, space, min_slot, prefer, context, reply });
        MergeTurn::Queued(receiver)
    }

    /// Counts one more call with this `key` as under way, until the returned guard is dropped. Dropping the
    /// guard sends the queued calls.
    fn under_way(
        self: &Arc<Self>,
        key: (AccountForm, Commitment),
        pool: &Arc<Pool>,
        tasks: &TaskTracker,
    ) -> MergeGuard {
        self.lock().entry(key).or_default().under_way += 1;
        self.counted(key, pool, tasks)
    }

    /// Returns the guard of a call that is counted as under way already. Dropping the guard ends the call and
    /// sends the queued calls.
    fn counted(
        self: &Arc<Self>,
        key: (AccountForm, Commitment),
        pool: &Arc<Pool>,
        tasks: &TaskTracker,
    ) -> MergeGuard {
        MergeGuard { merger: Arc::clone(self), key, pool: Arc::clone(pool), tasks: tasks.clone() }
    }

    /// Notes the end of a call, and returns the queued calls to send next, as many as one list may hold.
    fn ended(&self, key: (AccountForm, Commitment)) -> Vec<QueuedCall> {
        let mut groups = self.lock();
        let Some(group) = groups.get_mut(&key) else { return Vec::new() };
        group.under_way -= 1;
        // Callers who gave up need no answer.
        group.waiting.retain(|waiting| !waiting.reply.is_closed());
        let mut together = 0;
        let fits = group.waiting.iter().take(MAX_KEYS).take_while(|waiting| {
            together += waiting.space;
            together <= TOGETHER_BYTES
        });
        let next = fits.count();
        let next = group.waiting.drain(..next).collect();
        if group.under_way == 0 && group.waiting.is_empty() {
            groups.remove(&key);
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(AccountForm, Commitment), MergeGroup>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guard of a call that is under way. Dropping the guard sends the queued calls.
struct MergeGuard {
    merger: Arc<Merger>,
    key: (AccountForm, Commitment),
    pool: Arc<Pool>,
    tasks: TaskTracker,
}

impl Drop for MergeGuard {
    fn drop(&mut self) {
        let waiting = self.merger.ended(self.key);
        if waiting.is_empty() {
            return;
        }
        let under_way = self.merger.under_way(self.key, &self.pool, &self.tasks);
        let (key, pool) = (self.key, Arc::clone(&self.pool));
        self.tasks.spawn(async move {
            together(&pool, key, waiting).await;
            drop(under_way);
        });
    }
}

/// Fetches all accounts of `waiting` in one call, and sends each queued call its part of the answer.
async fn together(pool: &Pool, (form, commitment): (AccountForm, Commitment), waiting: Vec<QueuedCall>) {
    let pubkeys = waiting.iter().map(|waiting| waiting.pubkey).collect();
    let list = AccountsQuery { pubkeys, form, commitment, min_context_slot: None };
    let Some(first) = waiting.first() else { return };
    let deadline = waiting.iter().map(|waiting| waiting.context.deadline).max();
    let request = UpstreamRequest {
        query: Query::Accounts(list),
        min_slot: waiting.iter().filter_map(|waiting| waiting.min_slot).max(),
        prefer: waiting.iter().filter_map(|waiting| waiting.prefer).max(),
        one_node: false,
        // A merged call has one caller and one trace: those of the call that waited longest.
        context: CallContext {
            deadline: deadline.unwrap_or(first.context.deadline),
            ..first.context.clone()
        },
    };
    let answer = pool.call(&request).await;
    let parts = match &answer {
        Ok(PoolReply { body: NodeReply::Result(result), .. }) => list::parts(result),
        _ => None,
    };
    for (i, waiting) in waiting.into_iter().enumerate() {
        let part = parts.as_ref().and_then(|parts| parts.get(i));
        let reply = match (&answer, part) {
            (Ok(reply), Some(part)) => {
                Some(Ok(PoolReply { body: NodeReply::Result(part.clone()), ..reply.clone() }))
            }
            // A node's refusal of the list does not apply to each account, so each is asked for by itself.
            (Ok(_), _) => None,
            (Err(error), _) => Some(Err(error.clone())),
        };
        // The caller may have given up meanwhile.
        let _ = waiting.reply.send(reply);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::methods::AccountEncoding;

    #[tokio::test]
    async fn merged_accounts_fit_one_answer() {
        let merger = Merger::default();
        let key = (AccountForm { encoding: AccountEncoding::Base64, slice: None }, Commitment::Confirmed);
        let mut receivers = Vec::new();
        {
            let mut groups = merger.lock();
            let group = groups.entry(key).or_default();
            group.under_way = 4;
            for space in [TOGETHER_BYTES - 1, 1, 1, TOGETHER_BYTES] {
                let (reply, receiver) = oneshot::channel();
                receivers.push(receiver);
                let (pubkey, context) = (Pubkey([1; 32]), CallContext::own(Instant::now()));
                group.waiting.push(QueuedCall {
                    pubkey,
                    space,
                    min_slot: None,
                    prefer: None,
                    context,
                    reply,
                });
            }
        }
        let sent = [(); 4].map(|()| merger.ended(key).len());
        assert_eq!(sent, [2, 1, 1, 0]);
        assert!(merger.lock().is_empty());
    }
}
