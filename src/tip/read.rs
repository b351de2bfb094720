//! The reads of one state: slot, height, epoch, newest blockhash, and whether a blockhash is still valid.
//!
//! Slot, height and epoch are answered from one bank, so they cannot disagree. At confirmed and finalized this is a block
//! of the followed chain, if there is one: `getBlock` then has the block of every slot that `getSlot` shows. Otherwise a
//! node is asked once a slot, whoever asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use super::Tip;
use super::kept::{Keeper, Kept};
use crate::cache::CacheStatus;
use crate::cache::ForwardReason::Miss;
use crate::error::Error;
use crate::follow::Head;
use crate::methods::{EpochInfo, LatestBlockhash, Pubkey, ReadAt, Slot, TipQuery};
use crate::node::{Contextual, NodeReply};
use crate::pool::{CallContext, PoolReply};

/// An answer from the followed chain, or from what a node said within the last slot.
const HIT: CacheStatus = CacheStatus::Hit { ttl_s: 0, derived: false, stale: false };
/// An answer that a node gave for this call alone.
const ASKED: CacheStatus = CacheStatus::forwarded(Miss, false);
/// The slots for which a followed chain counts as current after a poll has named its newest block.
const POLLED_SLOTS: u64 = 2;

/// The answer to a read of the tip.
#[derive(Debug, Clone)]
pub struct TipAnswer {
    /// The result, or a node's error.
    pub reply: NodeReply,
    /// Where it comes from.
    pub status: CacheStatus,
}

/// What nodes have said last.
#[derive(Debug, Default)]
pub(super) struct Reads {
    infos: [Keeper<EpochInfo>; 3],
    hashes: [Keeper<NodesHash>; 3],
    /// The number of blocks for which a blockhash is valid, as a node has shown it. 0 until then.
    window: AtomicU64,
}

/// A node's answer to getLatestBlockhash.
#[derive(Debug)]
struct NodesHash {
    result: Bytes,
    latest: LatestBlockhash,
}

/// The bank that a call is answered from.
struct Bank {
    slot: Slot,
    height: u64,
    status: CacheStatus,
}

/// The reason why there is nothing to answer from.
#[derive(Debug, Clone)]
pub(super) enum Unread {
    /// The error of a node is the answer.
    Refused(NodeReply),
    Failed(Error),
}

impl From<Error> for Unread {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Reads {
    /// Forgets how long a blockhash is valid, until a node shows it again.
    pub(super) fn forget_window(&self) {
        self.window.store(0, Ordering::Relaxed);
    }
}

impl Tip {
    /// Answers a call.
    ///
    /// # Errors
    /// No node answers at or above the tip in time.
    pub async fn answer(
        self: &Arc<Self>,
        query: &TipQuery,
        context: &CallContext,
    ) -> Result<TipAnswer, Error> {
        let read = match query {
            TipQuery::Slot(at) => {
                self.bank(*at, context).await.map(|bank| answer(bank.slot.to_string(), bank.status))
            }
            TipQuery::BlockHeight(at) => {
                self.bank(*at, context).await.map(|bank| answer(bank.height.to_string(), bank.status))
            }
            TipQuery::EpochInfo(at) => self.epoch_info(*at, context).await,
            TipQuery::LatestBlockhash(at) => self.latest_blockhash(*at, context).await,
            TipQuery::BlockhashValid(hash, at) => self.blockhash_valid(*hash, *at, context).await,
            TipQuery::Statuses { signatures, search_history } => {
                let result = self.statuses(Arc::clone(signatures), *search_history, context).await;
                result.map(|reply| TipAnswer { reply, status: ASKED }).map_err(Unread::Failed)
            }
        };
        match read {
            Ok(answer) => Ok(answer),
            Err(Unread::Refused(reply)) => Ok(TipAnswer { reply, status: ASKED }),
            Err(Unread::Failed(error)) => Err(error),
        }
    }

    /// Returns the bank to answer from. Its slot counts as shown.
    async fn bank(self: &Arc<Self>, at: ReadAt, context: &CallContext) -> Result<Bank, Unread> {
        loop {
            let bank = if let Some(head) = self.head(at).await {
                Bank { slot: head.slot, height: head.height, status: HIT }
            } else {
                let (info, status) = self.info(at, context).await?;
                Bank { slot: info.slot, height: info.value.block_height, status }
            };
            if self.show(at.commitment, bank.slot, context.deadline).await? {
                return Ok(bank);
            }
        }
    }

    async fn epoch_info(self: &Arc<Self>, at: ReadAt, context: &CallContext) -> Result<TipAnswer, Unread> {
        loop {
            let head = self.head(at).await;
            let (kept, status) = self.info(at, context).await?;
            // A node may be in another epoch than the chain.
            let of_head = head.and_then(|head| kept.value.clone().moved_to(head.slot, head.height));
            let info = of_head.unwrap_or_else(|| kept.value.clone());
            if self.show(at.commitment, info.absolute_slot, context.deadline).await? {
                return Ok(answer(serde_json::to_string(&info).unwrap_or_default(), status));
            }
        }
    }

    async fn latest_blockhash(
        self: &Arc<Self>,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<TipAnswer, Unread> {
        loop {
            let window = self.window();
            let (slot, made) = if let Some((head, window)) = self.head(at).await.zip(window) {
                let latest = LatestBlockhash {
                    blockhash: head.blockhash.as_ref().to_owned(),
                    last_valid_block_height: head.height + window,
                };
                let value = serde_json::to_string(&latest).unwrap_or_default();
                (head.slot, answer(in_context(head.slot, &value), HIT))
            } else {
                let (kept, status) = self.nodes_hash(at, context).await?;
                (kept.slot, TipAnswer { reply: NodeReply::Result(kept.value.result.clone()), status })
            };
            if self.show(at.commitment, slot, context.deadline).await? {
                return Ok(made);
            }
        }
    }

    /// Answers isBlockhashValid from the chain well inside the hash's life. Near its end, and for a hash that the chain
    /// does not have, a node decides.
    async fn blockhash_valid(
        self: &Arc<Self>,
        hash: Pubkey,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<TipAnswer, Unread> {
        let known = self.known_block(&hash);
        if let Some((block, window)) = known.zip(self.window()) {
            let bank = self.bank(at, context).await?;
            let age = bank.height.checked_sub(block.height);
            if bank.slot >= block.slot && age.is_some_and(|age| age < window - window / 4) {
                return Ok(answer(in_context(bank.slot, "true"), bank.status));
            }
        }
        loop {
            let (slot, result) = self.ask_alone(TipQuery::BlockhashValid(hash, at), context).await?;
            if self.show(at.commitment, slot, context.deadline).await? {
                return Ok(TipAnswer { reply: NodeReply::Result(result), status: ASKED });
            }
        }
    }

    /// Returns the block of the followed chain that has this hash. `None` if it is not one of the newest.
    pub fn known_block(&self, hash: &Pubkey) -> Option<Head> {
        let heads = self.followed.heads();
        let heads = heads.borrow();
        heads.as_ref()?.named(&hash.to_string()).cloned()
    }

    fn window(&self) -> Option<u64> {
        Some(self.reads.window.load(Ordering::Relaxed)).filter(|window| *window > 0)
    }

    /// Returns the newest block of the followed chain at a commitment. Waits for it for a slot, because the tip may have
    /// risen by the answer of a node. `None` if the chain is not followed, or does not reach the tip soon.
    async fn head(&self, at: ReadAt) -> Option<Head> {
        let ReadAt { commitment, min_context_slot } = at;
        let lowest = self.slot(commitment).max(min_context_slot.unwrap_or(0));
        if lowest > self.frontier.slot(commitment) {
            return None;
        }
        let mut heads = self.followed.heads();
        let reaches = heads.wait_for(|heads| {
            let head = heads.as_ref().and_then(|heads| heads.at(commitment));
            head.is_none_or(|head| head.slot >= lowest)
        });
        let slot_time = self.frontier.slot_time();
        let head = timeout(slot_time, reaches).await.ok()?.ok()?.as_ref()?.at(commitment)?.clone();
        let polled_at = self.followed.current().as_ref()?.tip().polled_at;
        (polled_at.elapsed() <= self.frontier.time_of(POLLED_SLOTS)).then_some(head)
    }

    /// Returns a node's answer to getEpochInfo that is a slot old at most.
    async fn info(
        self: &Arc<Self>,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<(Arc<Kept<EpochInfo>>, CacheStatus), Unread> {
        let read = |result: &Bytes| serde_json::from_slice(result).ok();
        self.keep(&self.reads.infos, at, TipQuery::EpochInfo, read, context).await
    }

    /// Returns a node's answer to getLatestBlockhash that is a slot old at most. Learns from it how long a hash is valid.
    async fn nodes_hash(
        self: &Arc<Self>,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<(Arc<Kept<NodesHash>>, CacheStatus), Unread> {
        let read = |result: &Bytes| {
            let latest = serde_json::from_slice(&Contextual::split(result)?.value).ok()?;
            Some(NodesHash { result: result.clone(), latest })
        };
        let (kept, status) =
            self.keep(&self.reads.hashes, at, TipQuery::LatestBlockhash, read, context).await?;
        let heads = self.followed.heads();
        let block =
            heads.borrow().as_ref().and_then(|heads| heads.named(&kept.value.latest.blockhash).cloned());
        if let Some(window) =
            block.and_then(|block| kept.value.latest.last_valid_block_height.checked_sub(block.height))
        {
            self.reads.window.store(window, Ordering::Relaxed);
        }
        Ok((kept, status))
    }

    async fn keep<T>(
        self: &Arc<Self>,
        keepers: &[Keeper<T>; 3],
        at: ReadAt,
        query: impl Fn(ReadAt) -> TipQuery,
        read: impl Fn(&Bytes) -> Option<T>,
        context: &CallContext,
    ) -> Result<(Arc<Kept<T>>, CacheStatus), Unread> {
        let commitment = at.commitment;
        let fetch = async |at: ReadAt| {
            let (era, sent_at) = (self.frontier.era(), Instant::now());
            let (slot, result) = self.ask_alone(query(at), context).await?;
            // The pool has checked the form.
            let value = read(&result).ok_or(Error::NoUpstream(Vec::new()))?;
            Ok(Kept { value, slot, era, sent_at, came_at: Instant::now() })
        };
        let lowest = self.slot(commitment).max(at.min_context_slot.unwrap_or(0));
        let serves = |kept: &Kept<T>, sent_at: Option<Instant>| {
            kept.era == self.frontier.era()
                && kept.slot >= lowest
                && sent_at.is_none_or(|sent_at| sent_at.elapsed() < self.frontier.slot_time())
        };
        // A refusal of one caller's minimum is not everybody's answer.
        if at.min_context_slot.is_some_and(|minimum| minimum > self.slot(commitment))
            && !keepers[commitment.index()].last().is_some_and(|kept| serves(&kept, Some(kept.sent_at)))
        {
            return Ok((Arc::new(fetch(at).await?), ASKED));
        }
        let shared = fetch(ReadAt { commitment, min_context_slot: None });
        keepers[commitment.index()].get(serves, shared).await
    }

    /// Asks a node, and returns its result with the slot.
    async fn ask_alone(&self, query: TipQuery, context: &CallContext) -> Result<(Slot, Bytes), Unread> {
        let PoolReply { body, slot, .. } = self.ask(&query, context).await?;
        match body {
            NodeReply::Result(result) => Ok((slot, result)),
            refusal @ NodeReply::Error { .. } => Err(Unread::Refused(refusal)),
        }
    }
}

fn answer(result: String, status: CacheStatus) -> TipAnswer {
    TipAnswer { reply: NodeReply::Result(result.into()), status }
}

fn in_context(slot: Slot, value: &str) -> String {
    format!(r#"{{"context":{{"slot":{slot}}},"value":{value}}}"#)
}
