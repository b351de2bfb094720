//! The subscriptions of one connection, and what each new block of its node says to them.

use std::sync::Arc;

use serde_json::{Value, json};
use slotfront_rpc::jsonrpc::{Call, reply};
use slotfront_rpc::methods::{Commitment, Slot};

use super::subscription::Subscription;
use crate::answer::{self, Refusal, View};
use crate::chain::BLOCKHASH_QUEUE;
use crate::chain::block::Block;
use crate::fault::Fault;

/// The maximum number of subscriptions of a connection.
const MAX_SUBSCRIPTIONS: usize = 1_000;
/// The maximum number of blocks that a connection looks at before it sends what they say.
const BLOCKS_AT_ONCE: usize = 8;

/// The state of a connection.
pub(super) struct Session {
    subscriptions: Vec<Subscribed>,
    /// The newest block that the connection has looked at.
    seen: Arc<Block>,
}

struct Subscribed {
    id: u64,
    to: Subscription,
    /// True once the client knows that the node has received the transaction.
    told_receipt: bool,
}

/// What one block of the node brings: the block itself, and the blocks that became confirmed and final with it.
struct News<'a> {
    view: &'a View<'a>,
    block: &'a Block,
    confirmed: Vec<&'a Block>,
    finalized: Vec<&'a Block>,
}

impl Session {
    pub(super) fn new(view: &View<'_>) -> Self {
        Self { subscriptions: vec![], seen: Arc::clone(&view.tip) }
    }

    /// Answers a call, and begins or ends a subscription by it.
    pub(super) fn answer(&mut self, view: &View<'_>, out: &mut Vec<u8>, call: &Call, fault: Option<&Fault>) {
        let answer = match fault {
            Some(Fault::Error { code, message }) => Err(Refusal::new(*code, message)),
            _ => answer::array(&call.params)
                .and_then(|params| self.call(view, &String::from_utf8_lossy(&call.method), &params)),
        };
        match answer {
            Ok(result) => reply::result(out, &call.id, result.to_string().as_bytes()),
            Err(refusal) => reply::node_error(out, &call.id, refusal.to_json().as_bytes()),
        }
    }

    fn call(&mut self, view: &View<'_>, method: &str, params: &[Value]) -> Result<Value, Refusal> {
        if let Some(subscription) = Subscription::parse(method, params) {
            return self.subscribe(view, subscription?).map(Value::from);
        }
        let named = method.strip_suffix("Unsubscribe").map(|name| format!("{name}Subscribe"));
        if named.is_none_or(|named| Subscription::parse(&named, &[]).is_none()) {
            return Err(Refusal::new(-32_601, "Method not found"));
        }
        let [id] = params else {
            let words =
                format!("Invalid params: invalid length {}, expected a tuple of size 1.", params.len());
            return Err(Refusal::new(-32_602, words));
        };
        // As on a node, any unsubscribing method ends any subscription.
        let at = self.subscriptions.iter().position(|subscribed| Some(subscribed.id) == id.as_u64());
        let at = at.ok_or_else(|| Refusal::new(-32_602, "Invalid subscription id."))?;
        self.subscriptions.remove(at);
        Ok(true.into())
    }

    fn subscribe(&mut self, view: &View<'_>, to: Subscription) -> Result<u64, Refusal> {
        if let Some(equal) = self.subscriptions.iter().find(|subscribed| subscribed.to == to) {
            return Ok(equal.id);
        }
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let words = "Internal Error: Subscription refused. Node subscription limit reached";
            return Err(Refusal::new(-32_603, words));
        }
        let id = view.node.next_subscription();
        self.subscriptions.push(Subscribed { id, to, told_receipt: false });
        Ok(id)
    }

    /// Returns the notifications of the next blocks, or nothing if the connection has seen all blocks of its node, or
    /// they say nothing to it.
    pub(super) fn blocks(&mut self, view: &View<'_>) -> Vec<String> {
        let mut texts = Vec::new();
        while texts.is_empty() && self.seen.slot < view.tip.slot {
            let new = view.chain.blocks_back_from(view.tip.slot);
            let mut new: Vec<Arc<Block>> =
                new.take_while(|block| block.slot > self.seen.slot).cloned().collect();
            new.reverse();
            for block in new.into_iter().take(BLOCKS_AT_ONCE) {
                // A node without its full API keeps subscriptions and never notifies.
                if view.node.full_api() && !self.subscriptions.is_empty() {
                    let between = |from, to| {
                        let blocks = view.chain.blocks_back_from(to);
                        let blocks = blocks.take_while(|block| block.slot > from).map(AsRef::as_ref);
                        let mut blocks: Vec<&Block> = blocks.collect();
                        blocks.reverse();
                        blocks
                    };
                    let confirmed = between(self.seen.confirmed, block.confirmed);
                    let finalized = between(self.seen.finalized, block.finalized);
                    let news = News { view, block: &block, confirmed, finalized };
                    self.subscriptions.retain_mut(|subscribed| !subscribed.hear(&news, &mut texts));
                }
                self.seen = block;
            }
        }
        texts
    }
}

impl News<'_> {
    /// Returns the blocks that have reached `commitment` now.
    fn blocks(&self, commitment: Commitment) -> Vec<&Block> {
        match commitment {
            Commitment::Processed => vec![self.block],
            Commitment::Confirmed => self.confirmed.clone(),
            Commitment::Finalized => self.finalized.clone(),
        }
    }

    /// Returns the newest slot at `commitment`.
    fn slot(&self, commitment: Commitment) -> Slot {
        match commitment {
            Commitment::Processed => self.block.slot,
            Commitment::Confirmed => self.block.confirmed,
            Commitment::Finalized => self.block.finalized,
        }
    }
}

impl Subscribed {
    /// Adds the notifications to `texts`. Returns true if the subscription has ended.
    fn hear(&mut self, news: &News<'_>, texts: &mut Vec<String>) -> bool {
        let (id, method) = (self.id, self.to.notification());
        let mut notify = |result: Value| {
            let params = json!({ "result": result, "subscription": id });
            texts.push(json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string());
        };
        let with_context = |slot: Slot, value: Value| json!({ "context": { "slot": slot }, "value": value });
        let (view, block) = (news.view, news.block);
        match &self.to {
            Subscription::Slot => {
                let (slot, parent, root) = (block.slot, block.parent_slot, block.finalized);
                notify(json!({ "slot": slot, "parent": parent, "root": root }));
            }
            Subscription::Root => news.finalized.iter().for_each(|root| notify(root.slot.into())),
            Subscription::SlotsUpdates => updates(news).into_iter().for_each(notify),
            Subscription::Account { key, commitment, form } => {
                for block in news.blocks(*commitment) {
                    if view.chain.last_write(key, block.slot) == Some(block.slot) {
                        notify(with_context(block.slot, answer::notified(view, block.slot, key, *form)));
                    }
                }
            }
            Subscription::Program { key, commitment, form, filters } => {
                for block in news.blocks(*commitment) {
                    for (address, account) in view.chain.written_in(block.slot) {
                        if account.owner == *key && filters.iter().all(|filter| filter.selects(account)) {
                            let account = answer::notified(view, block.slot, address, *form);
                            let value = json!({ "pubkey": address.to_string(), "account": account });
                            notify(with_context(block.slot, value));
                        }
                    }
                }
            }
            Subscription::Logs { filter, commitment } => {
                for block in news.blocks(*commitment) {
                    for transaction in block.transactions.iter().filter(|t| filter.selects(t)) {
                        notify(with_context(block.slot, answer::logged(transaction)));
                    }
                }
            }
            Subscription::Signature { signature, commitment, tells_receipt } => {
                // A signature that landed earlier is reported, too, while the node has it in memory.
                let recent = view.chain.blocks_back_from(block.slot).take(BLOCKHASH_QUEUE).last();
                let recent = recent.map_or(block.slot, |oldest| oldest.slot);
                let landed = view.chain.landed(signature, block.slot);
                let Some((found, transaction)) = landed.filter(|(found, _)| found.slot >= recent) else {
                    return false;
                };
                if *tells_receipt && !self.told_receipt {
                    self.told_receipt = true;
                    notify(with_context(block.slot, "receivedSignature".into()));
                }
                let slot = news.slot(*commitment);
                if found.slot <= slot {
                    let err = transaction.failure.map(answer::transaction_error);
                    notify(with_context(slot, json!({ "err": err })));
                    return true;
                }
            }
        }
        false
    }
}

/// Returns the slotsUpdates of a block. Their times are those of the chain.
fn updates(news: &News<'_>) -> Vec<Value> {
    let block = news.block;
    let failed = block.transactions.iter().filter(|transaction| transaction.failure.is_some()).count();
    let of = |kind: &str, slot: Slot| json!({ "type": kind, "slot": slot, "timestamp": block.time * 1_000 });
    let mut updates = vec![of("firstShredReceived", block.slot), of("createdBank", block.slot)];
    updates[1]["parent"] = block.parent_slot.into();
    updates.push(of("completed", block.slot));
    let mut frozen = of("frozen", block.slot);
    frozen["stats"] = json!({
        "maxTransactionsPerEntry": 1,
        "numFailedTransactions": failed,
        "numSuccessfulTransactions": block.transactions.len() - failed,
        "numTransactionEntries": block.transactions.len(),
    });
    updates.push(frozen);
    updates.extend(news.confirmed.iter().map(|confirmed| of("optimisticConfirmation", confirmed.slot)));
    updates.extend(news.finalized.iter().map(|root| of("root", root.slot)));
    updates
}
