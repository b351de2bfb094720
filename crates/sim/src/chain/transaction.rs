//! Transactions: they are executed in order on a bank, and kept in a block with their effects.

use slotfront_rpc::methods::Pubkey;

use super::accounts::{Account, rent_exempt};
use super::address;
use super::bank::Bank;
use super::error::TransactionError;
use super::fee::{self, Fee};
use super::instruction::TypedInstruction;
use super::message::{Loaded, Message};
use super::signed::SignedTransaction;
use super::token::{Mint, TokenAccount};

/// A transaction of the chain's own accounts before it is signed.
pub(crate) struct Draft {
    pub(crate) payer: Pubkey,
    pub(crate) instructions: Vec<TypedInstruction>,
    /// The lookup table of a version 0 message, as an index into
    /// [`ClusterAddresses::tables`](super::cluster_addresses::ClusterAddresses::tables). `None` for a legacy
    /// message.
    pub(crate) table: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub(crate) signatures: Vec<[u8; 64]>,
    pub(crate) message: Message,
    pub(crate) loaded: Loaded,
    /// The typed form of the message's compiled instructions.
    pub(crate) instructions: Vec<TypedInstruction>,
    /// The reason of the failure. `None` if all instructions succeeded.
    pub(crate) failure: Option<TransactionError>,
    pub(crate) fee: Fee,
    /// The lamports of all accounts of the transaction, in order: before the transaction, then after it.
    pub(crate) balances: [Vec<u64>; 2],
    /// The token balances of the accounts that hold tokens: before the transaction, then after it.
    pub(crate) tokens: [Vec<TokenBalance>; 2],
}

/// The token balance of one account of a transaction. `index` is the position of the account in the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenBalance {
    pub(crate) index: usize,
    pub(crate) mint: Pubkey,
    pub(crate) owner: Pubkey,
    pub(crate) program: Pubkey,
    pub(crate) amount: u64,
    pub(crate) decimals: u8,
}

impl Transaction {
    /// Returns every account of the transaction: the keys in the message, then the keys from lookup tables.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Pubkey> {
        self.message.keys.iter().chain(&self.loaded.writable).chain(&self.loaded.readonly)
    }

    /// Returns true for a transaction with only a vote. Performance samples count votes separately.
    pub(crate) fn is_vote(&self) -> bool {
        matches!(self.instructions[..], [TypedInstruction::Vote { .. }])
    }

    pub(crate) fn executed(&self) -> &[TypedInstruction] {
        let failed = self.failure.and_then(TransactionError::instruction);
        &self.instructions[..failed.map_or(self.instructions.len(), |(at, _)| at + 1)]
    }

    /// Returns the compute units that the executed instructions used.
    pub(crate) fn units(&self) -> u64 {
        self.executed().iter().map(TypedInstruction::units).sum()
    }

    pub(crate) fn unit_limit(&self) -> u64 {
        fee::unit_limit(self.message.calls())
    }
}

/// Executes a transaction. A failed transaction pays its fee, and has no other effect.
pub(crate) fn execute(bank: &mut Bank<'_>, signed: SignedTransaction) -> Transaction {
    let (payer, fee) = (*signed.payer(), signed.fee());
    let SignedTransaction { signatures, message, loaded, instructions } = signed;
    let (balances, tokens) = ([vec![], vec![]], [vec![], vec![]]);
    let mut done =
        Transaction { signatures, message, loaded, instructions, failure: None, fee, balances, tokens };
    record(bank, &mut done, 0);

    let mut paying = bank.account(&payer).cloned().unwrap_or_else(|| Account::wallet(0));
    paying.lamports = paying.lamports.saturating_sub(fee.total());
    bank.write(payer, paying);

    let mut scratch = bank.scratch();
    let run = done.instructions.iter().enumerate();
    let mut results = run.map(|(at, i)| (at, i.apply(&mut scratch)));
    let failed = results.find_map(|(at, ran)| Some(TransactionError::InstructionError(at, ran.err()?)));
    let changed = scratch.into_changed();
    let is_poor = |key| {
        let after = changed.get(key).filter(|after| after.lamports != bank.lamports(key));
        after.is_some_and(|after| (1..rent_minimum(after)).contains(&after.lamports))
    };
    let poor = || done.accounts().position(is_poor).map(TransactionError::InsufficientFundsForRent);
    done.failure = failed.or_else(poor);
    if done.failure.is_none() {
        bank.keep(changed);
    }
    record(bank, &mut done, 1);
    done
}

/// Returns the lamports that an account of this size needs if it has any.
pub(super) fn rent_minimum(account: &Account) -> u64 {
    rent_exempt(account.data.len())
}

/// Stores the current balances of a transaction's accounts. `moment` is 0 before the transaction, and 1 after it.
fn record(bank: &Bank<'_>, transaction: &mut Transaction, moment: usize) {
    let balances = transaction.accounts().map(|key| bank.lamports(key)).collect();
    let tokens =
        transaction.accounts().enumerate().filter_map(|(at, key)| token_balance(bank, at, key)).collect();
    transaction.balances[moment] = balances;
    transaction.tokens[moment] = tokens;
}

fn token_balance(bank: &Bank<'_>, index: usize, key: &Pubkey) -> Option<TokenBalance> {
    let account = bank.account(key)?;
    if ![address::TOKEN, address::TOKEN_2022].contains(&account.owner) {
        return None;
    }
    let TokenAccount { mint, owner, amount, .. } = TokenAccount::decode(&account.data)?;
    let decimals = Mint::decode(&bank.account(&mint)?.data)?.decimals;
    Some(TokenBalance { index, mint, owner, program: account.owner, amount, decimals })
}
