//! The reads of one state: slot, height, epoch, newest blockhash, and whether a blockhash is still valid.
//!
//! Slot, height and epoch are answered from one bank, so they cannot disagree. At confirmed and finalized this is a block
//! of the followed chain, if there is one: `getBlock` then has the block of every slot that `getSlot` shows. Otherwise a
//! node is asked once a slot, whoever asks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{Tip, own_context};
use crate::cache::{CacheStatus, ForwardReason};
use crate::error::Error;
use crate::fair::Watcher;
use crate::follow::BlockHead;
use crate::frontier::Era;
use crate::methods::{EpochInfo, LatestBlockhash, Pubkey, ReadAt, Slot, TipMethod, TipQuery};
use crate::node::{Contextual, NodeReply};
use crate::pool::{CallContext, PoolReply};

/// An answer from the followed chain, or from what a node said within the last slot.
const HIT: CacheStatus = CacheStatus::Hit { ttl_s: 0, derived: false, stale: false };
/// An answer that a node gave for this call alone.
pub(super) const ASKED: CacheStatus = CacheStatus::forwarded(ForwardReason::Miss, false);
/// The number of blocks that nodes remember. No blockhash is valid for longer.
const LONGEST_WINDOW: u64 = 300;
/// The number of blockhashes that are remembered, as many as nodes remember.
const MAX_GIVEN: usize = 300;
/// The slots for which a followed chain counts as current after a poll has named its newest block.
const POLLED_SLOTS: u64 = 2;

#[derive(Debug, Clone)]
pub struct TipAnswer {
    pub reply: NodeReply,
    /// Where it comes from.
    pub status: CacheStatus,
    /// The highest slot, at each commitment, at which a transaction has landed by this answer. 0 if none has.
    pub landed: [Slot; 3],
    /// The id of the node whose answer this is. `None` if the followed chain has it, or several have a part in it.
    pub node: Option<usize>,
}

impl TipAnswer {
    pub(super) const fn new(reply: NodeReply, status: CacheStatus, node: Option<usize>) -> Self {
        Self { reply, status, landed: [0; 3], node }
    }
}

/// What nodes have said last, at each commitment.
#[derive(Debug, Default)]
pub(super) struct LastReads {
    infos: [LastAnswer; 3],
    hashes: [LastAnswer; 3],
    /// The number of blocks for which a blockhash is valid, as a node has shown it. 0 until then.
    pub(super) window: AtomicU64,
    given: parking_lot::Mutex<VecDeque<(Box<str>, Slot)>>,
}

/// What a node said last, and when. Callers who find it too old wait for one fetch, which holds the lock.
type LastAnswer = Mutex<Option<(Result<Kept, Unread>, Instant)>>;

/// A node's result.
#[derive(Debug, Clone)]
struct Kept {
    result: Bytes,
    slot: Slot,
    node: usize,
    era: Era,
    sent_at: Instant,
}

struct Bank {
    slot: Slot,
    height: u64,
    status: CacheStatus,
    node: Option<usize>,
}

/// The reason why there is nothing to answer from.
#[derive(Debug, Clone)]
pub(super) enum Unread {
    /// The error of a node is the answer.
    Refused(PoolReply),
    Failed(Error),
}

impl From<Error> for Unread {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Tip {
    /// Answers a call.
    ///
    /// # Errors
    /// No node answers at or above the tip in time.
    pub async fn answer(
        &self,
        query: &TipQuery,
        context: &CallContext,
        watcher: Watcher,
    ) -> Result<TipAnswer, Error> {
        let answer = match query.read_at() {
            Some(at) => self.read_and_show(query, at, context, watcher).await,
            None => self.statuses(query, context).await,
        };
        match answer {
            Err(Unread::Refused(PoolReply { body, node, .. })) => Ok(TipAnswer::new(body, ASKED, Some(node))),
            Err(Unread::Failed(error)) => Err(error),
            Ok(answer) => Ok(answer),
        }
    }

    async fn read_and_show(
        &self,
        query: &TipQuery,
        at: ReadAt,
        context: &CallContext,
        watcher: Watcher,
    ) -> Result<TipAnswer, Unread> {
        loop {
            let (slot, answer) = self.read(query, at, context).await?;
            if proves_expiry(query.known(), &answer.reply) {
                self.settle(watcher, at.commitment, slot, context.deadline).await?;
            }
            if self.raise(at.commitment, slot) <= slot {
                return Ok(answer);
            }
            // A higher slot was shown meanwhile.
        }
    }

    async fn read(
        &self,
        query: &TipQuery,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<(Slot, TipAnswer), Unread> {
        match query {
            TipQuery::State(TipMethod::GetEpochInfo, _) => self.epoch_info(at, context).await,
            TipQuery::State(TipMethod::GetLatestBlockhash, _) => self.latest_blockhash(at, context).await,
            TipQuery::BlockhashValid(hash, _) => self.blockhash_valid(query, hash, at, context).await,
            // What the unknown members mean, only the node knows.
            TipQuery::Extended(known, _) => {
                let (slot, reply) = match **known {
                    TipQuery::State(TipMethod::GetBlockHeight, _) => {
                        self.height_alone(query, at, context).await?
                    }
                    _ => self.ask_alone(query, context).await.map(|reply| (reply.slot, reply))?,
                };
                if let (TipQuery::State(TipMethod::GetLatestBlockhash, _), Some(result)) =
                    (&**known, reply.result())
                {
                    self.learn(result, slot);
                }
                Ok((slot, TipAnswer::new(reply.body, ASKED, Some(reply.node))))
            }
            _ => {
                let Bank { slot, height, status, node } = self.bank(at, context).await?;
                let number = if query.method() == TipMethod::GetSlot { slot } else { height };
                Ok((slot, answer(number.to_string(), status, node)))
            }
        }
    }

    async fn bank(&self, at: ReadAt, context: &CallContext) -> Result<Bank, Unread> {
        if let Some(BlockHead { slot, height, .. }) = self.head(at).await {
            return Ok(Bank { slot, height, status: HIT, node: None });
        }
        let (info, status, node) = self.info(at, context).await?;
        Ok(Bank { slot: info.absolute_slot, height: info.block_height, status, node: Some(node) })
    }

    async fn epoch_info(&self, at: ReadAt, context: &CallContext) -> Result<(Slot, TipAnswer), Unread> {
        let head = self.head(at).await;
        let (info, status, node) = self.info(at, context).await?;
        // A node may be in another epoch than the chain.
        let of_head = head.and_then(|head| info.clone().moved_to(head.slot, head.height));
        let info = of_head.unwrap_or(info);
        let text = serde_json::to_string(&info).unwrap_or_default();
        Ok((info.absolute_slot, answer(text, status, Some(node))))
    }

    async fn latest_blockhash(&self, at: ReadAt, context: &CallContext) -> Result<(Slot, TipAnswer), Unread> {
        if let Some((head, window)) = self.head(at).await.zip(self.window()) {
            let latest = LatestBlockhash {
                blockhash: head.blockhash.as_ref().to_owned(),
                last_valid_block_height: head.height.saturating_add(window),
            };
            let value = serde_json::to_string(&latest).unwrap_or_default();
            return Ok((head.slot, answer(in_context(head.slot, &value), HIT, None)));
        }
        let (kept, status) =
            self.keep(&self.reads.hashes, TipMethod::GetLatestBlockhash, at, context).await?;
        self.learn(&kept.result, kept.slot);
        Ok((kept.slot, TipAnswer::new(NodeReply::Result(kept.result), status, Some(kept.node))))
    }

    /// Answers isBlockhashValid from the chain well inside the hash's life. Near its end, and for a hash that the chain
    /// does not have, a node decides.
    async fn blockhash_valid(
        &self,
        query: &TipQuery,
        hash: &Pubkey,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<(Slot, TipAnswer), Unread> {
        if let Some((block, window)) = self.known_block(&hash.to_string()).zip(self.window()) {
            let bank = self.bank(at, context).await?;
            let age = bank.height.checked_sub(block.height);
            if bank.slot >= block.slot && age.is_some_and(|age| age < window - window / 4) {
                return Ok((bank.slot, answer(in_context(bank.slot, "true"), bank.status, bank.node)));
            }
        }
        let PoolReply { body, slot, node, .. } = self.ask_alone(query, context).await?;
        Ok((slot, TipAnswer::new(body, ASKED, Some(node))))
    }

    /// Returns the block of the followed chain that has this hash. `None` if it is not one of the newest.
    pub fn known_block(&self, blockhash: &str) -> Option<BlockHead> {
        self.followed.heads().borrow().as_ref()?.named(blockhash).cloned()
    }

    /// Returns the slot from which on nodes have this blockhash. `None` if the chain does not have it and it was not given
    /// out lately.
    pub fn slot_of(&self, blockhash: &str) -> Option<Slot> {
        let given = || {
            let given = self.reads.given.lock();
            given.iter().rev().find(|(hash, _)| **hash == *blockhash).map(|(_, slot)| *slot)
        };
        self.known_block(blockhash).map(|block| block.slot).or_else(given)
    }

    fn window(&self) -> Option<u64> {
        Some(self.reads.window.load(Ordering::Relaxed)).filter(|window| *window > 0)
    }

    /// Remembers the blockhash of a node's answer to getLatestBlockhash, and learns how long it is valid if the chain has its
    /// block.
    fn learn(&self, result: &Bytes, slot: Slot) {
        let latest = Contextual::split(result).and_then(|of| serde_json::from_slice(&of.value).ok());
        let Some(LatestBlockhash { blockhash, last_valid_block_height }) = latest else { return };
        let mut given = self.reads.given.lock();
        if given.back().is_none_or(|(last, _)| **last != *blockhash) {
            given.push_back((blockhash.as_str().into(), slot));
            if given.len() > MAX_GIVEN {
                given.pop_front();
            }
        }
        drop(given);
        let learned = || last_valid_block_height.checked_sub(self.known_block(&blockhash)?.height);
        // One node's answer decides for all callers, so a wrong number is not believed.
        if let Some(window) = learned().filter(|window| *window <= LONGEST_WINDOW) {
            self.reads.window.store(window, Ordering::Relaxed);
        }
    }

    /// Returns the newest block of the followed chain at a commitment. Waits for it for a slot, because the tip may have
    /// risen by the answer of a node. `None` if the chain is not followed, or does not reach the tip soon.
    async fn head(&self, ReadAt { commitment, min_context_slot }: ReadAt) -> Option<BlockHead> {
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

    /// Returns a node's answer to getEpochInfo that is a slot old at most, and the id of the node.
    async fn info(
        &self,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<(EpochInfo, CacheStatus, usize), Unread> {
        let (kept, status) = self.keep(&self.reads.infos, TipMethod::GetEpochInfo, at, context).await?;
        // The pool has checked the form.
        let info = serde_json::from_slice(&kept.result).map_err(|_| Error::NoUpstream(Vec::new()))?;
        Ok((info, status, kept.node))
    }

    async fn keep(
        &self,
        last: &[LastAnswer; 3],
        method: TipMethod,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<(Kept, CacheStatus), Unread> {
        let fetch = async |at, context: &CallContext| {
            let (era, sent_at) = (self.frontier.era(), Instant::now());
            let reply = self.ask_alone(&TipQuery::State(method, at), context).await?;
            let PoolReply { slot, node, .. } = reply;
            let NodeReply::Result(result) = reply.body else { return Err(Unread::Refused(reply)) };
            Ok(Kept { result, slot, node, era, sent_at })
        };
        let ReadAt { commitment, min_context_slot } = at;
        // A refusal of one caller's minimum is not everybody's answer.
        if min_context_slot > Some(self.slot(commitment)) {
            return Ok((fetch(at, context).await?, ASKED));
        }
        let arrived = Instant::now();
        let mut last = last[commitment.index()].lock().await;
        if let Some((answer, came_at)) = &*last {
            let is_shared = *came_at >= arrived;
            match answer {
                Err(why) if is_shared => return Err(why.clone()),
                Ok(kept) if kept.era == self.frontier.era() && kept.slot >= self.slot(commitment) => {
                    if is_shared {
                        return Ok((kept.clone(), CacheStatus::Collapsed));
                    }
                    if kept.sent_at.elapsed() < self.frontier.slot_time() {
                        return Ok((kept.clone(), HIT));
                    }
                }
                // It is too old, its fetch began before the tip rose, or it failed before this caller came.
                Ok(_) | Err(_) => {}
            }
        }
        let own = own_context(context.trace.clone());
        let answer = fetch(ReadAt { commitment, min_context_slot: None }, &own).await;
        *last = Some((answer.clone(), Instant::now()));
        answer.map(|kept| (kept, CacheStatus::forwarded(ForwardReason::Miss, true)))
    }

    /// Asks a node for a height, which names no slot, and returns it with the slot of a bank of this height. A lower height
    /// than that of a bank may be behind one that was shown, so a node is asked again.
    async fn height_alone(
        &self,
        query: &TipQuery,
        at: ReadAt,
        context: &CallContext,
    ) -> Result<(Slot, PoolReply), Unread> {
        let mut asked = None;
        while Instant::now() < context.deadline {
            let reply = match asked.take() {
                Some(reply) => reply,
                None => self.ask_alone(query, context).await?,
            };
            // The pool has checked the form.
            let height = reply.result().and_then(|result| serde_json::from_slice::<u64>(result).ok());
            let height = height.ok_or(Error::NoUpstream(Vec::new()))?;
            let bank = self.bank(at, context).await?;
            if bank.height == height {
                return Ok((bank.slot, reply));
            }
            asked = (bank.height < height).then_some(reply);
            sleep(self.pause()).await;
        }
        Err(Error::NoUpstream(Vec::new()).into())
    }

    async fn ask_alone(&self, query: &TipQuery, context: &CallContext) -> Result<PoolReply, Unread> {
        let reply = self.ask(query, context).await?;
        match reply.body {
            NodeReply::Result(_) => Ok(reply),
            NodeReply::Error { .. } => Err(Unread::Refused(reply)),
        }
    }
}

/// Returns true if a client may conclude from the answer that a transaction can land no more.
fn proves_expiry(query: &TipQuery, reply: &NodeReply) -> bool {
    match (query, reply) {
        (TipQuery::State(method, _), _) => {
            matches!(method, TipMethod::GetBlockHeight | TipMethod::GetEpochInfo)
        }
        (_, NodeReply::Result(result)) => Contextual::split(result).is_some_and(|of| of.value == "false"),
        (_, NodeReply::Error { .. }) => false,
    }
}

fn answer(result: String, status: CacheStatus, node: Option<usize>) -> TipAnswer {
    TipAnswer::new(NodeReply::Result(result.into()), status, node)
}

fn in_context(slot: Slot, value: &str) -> String {
    format!(r#"{{"context":{{"slot":{slot}}},"value":{value}}}"#)
}
