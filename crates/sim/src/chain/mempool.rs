//! Transactions that clients send: they wait for the next block, and their slots are kept as long as their blocks.
//!
//! The chain is the only truth. A node that is behind shows a transaction once it reaches the slot.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slotfront_rpc::methods::{Pubkey, Slot};
use thiserror::Error;

use super::Chain;
use super::bank::Bank;
use super::block::Block;
use super::error::TransactionError;
use super::instruction::TypedInstruction;
use super::signed::SignedTransaction;
use super::transaction::{Draft, Transaction, execute};

/// The number of blocks for which a transaction can use a blockhash.
pub(crate) const BLOCKHASH_AGE: usize = 150;
/// The maximum number of transactions that wait for a block.
const MAX_WAITING: usize = 1_000;
/// The maximum number of transactions of clients in a block.
const MAX_IN_BLOCK: usize = 128;
/// The maximum number of transactions in the kept blocks. Above it, a block is dropped before its time.
const MAX_LANDED: usize = 60_000;
/// The maximum number of accounts. Above it, the cluster takes no transactions.
const MAX_ACCOUNTS: usize = 200_000;

/// The transactions that wait, and the slots of those that have landed.
pub(crate) struct Mempool {
    waiting: Mutex<WaitingTransaction>,
    /// The maximum number of elements in `landed`, as far as [`BLOCKHASH_QUEUE`](super::BLOCKHASH_QUEUE) blocks have fewer.
    pub(super) most_landed: usize,
    /// The slot of each transaction in a kept block, by its first signature.
    landed: HashMap<[u8; 64], Slot>,
}

#[derive(Clone, Default)]
struct WaitingTransaction {
    queue: VecDeque<SignedTransaction>,
    /// The number of airdrops, which makes equal airdrops different transactions.
    airdrops: u64,
}

/// The cluster has no room for another transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the simulated cluster is full: {MAX_WAITING} transactions wait, or there are {MAX_ACCOUNTS} accounts"
)]
pub(crate) struct Full;

impl Default for Mempool {
    fn default() -> Self {
        Self { waiting: Mutex::default(), most_landed: MAX_LANDED, landed: HashMap::new() }
    }
}

impl Clone for Mempool {
    fn clone(&self) -> Self {
        let waiting = Mutex::new(self.waiting().clone());
        Self { waiting, most_landed: self.most_landed, landed: self.landed.clone() }
    }
}

impl Mempool {
    fn waiting(&self) -> MutexGuard<'_, WaitingTransaction> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers where the transactions of `block` are.
    pub(super) fn land(&mut self, block: &Block) {
        self.landed.extend(block.transactions.iter().map(|t| (t.signatures[0], block.slot)));
    }

    pub(super) fn forget(&mut self, block: &Block) {
        for transaction in &block.transactions {
            self.landed.remove(&transaction.signatures[0]);
        }
    }

    /// Returns true if the kept blocks have too many transactions.
    pub(super) fn is_full(&self) -> bool {
        self.landed.len() > self.most_landed
    }

    pub(super) fn take(&self) -> Vec<SignedTransaction> {
        let queue = &mut self.waiting().queue;
        let count = queue.len().min(MAX_IN_BLOCK);
        queue.drain(..count).collect()
    }
}

impl Chain {
    /// Lets a transaction with correct signatures wait for the next block. It does not wait twice.
    pub(crate) fn send(&self, signed: SignedTransaction) -> Result<(), Full> {
        let queue = &mut self.mempool.waiting().queue;
        if queue.iter().any(|other| other.signatures[0] == signed.signatures[0]) {
            return Ok(());
        }
        if queue.len() >= MAX_WAITING || self.accounts.addresses().len() >= MAX_ACCOUNTS {
            return Err(Full);
        }
        queue.push_back(signed);
        Ok(())
    }

    /// Sends lamports from the faucet, and returns the signature. The transaction has the blockhash of `block`.
    pub(crate) fn airdrop(&self, to: Pubkey, lamports: u64, block: &Block) -> Result<[u8; 64], Full> {
        let number = {
            let mut waiting = self.mempool.waiting();
            waiting.airdrops += 1;
            waiting.airdrops
        };
        let from = self.addresses.faucet;
        let transfer = TypedInstruction::Transfer { from, to, lamports, claims: None };
        let memo = TypedInstruction::Memo { signers: vec![from], text: format!("airdrop {number}") };
        let draft = Draft { payer: from, instructions: vec![transfer, memo], table: None };
        let signed = SignedTransaction::sign(draft, &self.addresses, block.hash);
        let signature = signed.signatures[0];
        self.send(signed).map(|()| signature)
    }

    /// Returns true if a transaction may use this blockhash in the block after `slot`.
    pub(crate) fn is_recent(&self, hash: &[u8; 32], slot: Slot) -> bool {
        self.blocks_back_from(slot).take(BLOCKHASH_AGE + 1).any(|block| block.hash == *hash)
    }

    /// Returns the transaction with this first signature and its block, if it has landed by `slot`.
    pub(crate) fn landed(&self, signature: &[u8; 64], slot: Slot) -> Option<(&Arc<Block>, &Transaction)> {
        let block = self.block(*self.mempool.landed.get(signature).filter(|landed| **landed <= slot)?)?;
        Some((block, block.transactions.iter().find(|t| t.signatures[0] == *signature)?))
    }

    /// Checks that a transaction may be executed on `bank`, the state after `slot` or that of its next block.
    pub(super) fn admit(
        &self,
        signed: &SignedTransaction,
        bank: &Bank<'_>,
        slot: Slot,
    ) -> Result<(), TransactionError> {
        if !self.is_recent(&signed.message.blockhash, slot) {
            return Err(TransactionError::BlockhashNotFound);
        }
        if self.landed(&signed.signatures[0], slot).is_some() {
            return Err(TransactionError::AlreadyProcessed);
        }
        signed.check(bank)
    }

    /// Executes a transaction on the state after `slot`, without any effect on the chain.
    pub(crate) fn simulate(
        &self,
        signed: SignedTransaction,
        slot: Slot,
    ) -> Result<Transaction, TransactionError> {
        let mut bank = Bank::on(&self.accounts, slot);
        self.admit(&signed, &bank, slot)?;
        Ok(execute(&mut bank, signed))
    }
}
