//! One slot's state while its block is made: executes transactions one after another, and keeps what they changed.

use std::collections::BTreeMap;

use bytes::Bytes;
use slotfront_rpc::methods::{Pubkey, Slot};

use super::accounts::{Account, Accounts};
use super::address;
use super::fee::{self, Fee};
use super::instruction::{Failure, Instruction};
use super::message::{Loaded, Message, Table};
use super::token::{Mint, TokenAccount};
use crate::draw::Draw;

/// A transaction before it is executed.
pub(crate) struct Draft {
    pub(crate) payer: Pubkey,
    pub(crate) instructions: Vec<Instruction>,
    /// An index into the cluster's lookup tables; its message is of version 0 then.
    pub(crate) table: Option<usize>,
}

/// A transaction as a block holds it.
#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub(crate) signatures: Vec<[u8; 64]>,
    pub(crate) message: Message,
    pub(crate) loaded: Loaded,
    /// What the message's compiled instructions mean.
    pub(crate) instructions: Vec<Instruction>,
    /// The instruction that failed, by position.
    pub(crate) failure: Option<(usize, Failure)>,
    pub(crate) fee: Fee,
    /// Lamports before and after, in the order of the accounts.
    pub(crate) balances: [Vec<u64>; 2],
    /// Token balances before and after, of those accounts that hold tokens.
    pub(crate) tokens: [Vec<TokenBalance>; 2],
}

/// A token balance, of the account at `index`.
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
    /// Every account that it names: the message's, then those that tables added.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Pubkey> {
        self.message.keys.iter().chain(&self.loaded.writable).chain(&self.loaded.readonly)
    }

    /// Whether it is nothing but a vote, which performance samples count apart.
    pub(crate) fn is_vote(&self) -> bool {
        matches!(self.instructions[..], [Instruction::Vote { .. }])
    }

    /// The instructions that ran, the failed one included.
    pub(crate) fn executed(&self) -> &[Instruction] {
        &self.instructions[..self.failure.map_or(self.instructions.len(), |(at, _)| at + 1)]
    }

    /// The compute units that it took.
    pub(crate) fn units(&self) -> u64 {
        self.executed().iter().map(Instruction::units).sum()
    }

    /// The compute units that it might have taken.
    pub(crate) fn unit_limit(&self) -> u64 {
        let keys = &self.message.keys;
        let instructions = self.message.instructions.iter();
        fee::unit_limit(instructions.map(|i| (keys[usize::from(i.program)], &i.data[..])))
    }
}

/// The state of a slot in the making, on top of its parent's.
pub(crate) struct Bank<'a> {
    accounts: &'a Accounts,
    parent: Slot,
    changed: BTreeMap<Pubkey, Account>,
}

impl<'a> Bank<'a> {
    /// The state that `parent` left.
    pub(crate) fn on(accounts: &'a Accounts, parent: Slot) -> Self {
        Self { accounts, parent, changed: BTreeMap::new() }
    }

    /// The account as it is now.
    pub(crate) fn account(&self, key: &Pubkey) -> Option<&Account> {
        match self.changed.get(key) {
            Some(account) => Some(account).filter(|account| account.lamports > 0),
            None => self.accounts.at(key, self.parent).map(AsRef::as_ref),
        }
    }

    /// The balance as it is now.
    pub(crate) fn lamports(&self, key: &Pubkey) -> u64 {
        self.account(key).map_or(0, |account| account.lamports)
    }

    /// Writes an account outside any transaction.
    pub(crate) fn write(&mut self, key: Pubkey, account: Account) {
        self.changed.insert(key, account);
    }

    /// Adds a reward to an account, and tells its new balance.
    pub(crate) fn credit(&mut self, key: Pubkey, lamports: u64) -> u64 {
        let mut account = self.account(&key).cloned().unwrap_or_else(|| Account::wallet(0));
        account.lamports += lamports;
        let balance = account.lamports;
        self.write(key, account);
        balance
    }

    /// What changed, when the block is complete.
    pub(crate) fn freeze(self) -> BTreeMap<Pubkey, Account> {
        self.changed
    }

    /// Executes a transaction. The fee is taken in either case; whatever else it did is undone if it fails.
    pub(crate) fn execute(
        &mut self,
        draft: Draft,
        table: Option<Table<'_>>,
        blockhash: [u8; 32],
        draw: &mut Draw,
    ) -> Transaction {
        let (message, loaded) = Message::compile(draft.payer, &draft.instructions, table, blockhash);
        let instructions = message.instructions.iter();
        let fee = fee::fee(
            u64::from(message.signatures()),
            instructions.map(|i| (message.keys[usize::from(i.program)], &i.data[..])),
        );
        let mut done = Transaction {
            signatures: (0..message.signatures()).map(|_| draw.bytes()).collect(),
            message,
            loaded,
            instructions: draft.instructions,
            failure: None,
            fee,
            balances: [vec![], vec![]],
            tokens: [vec![], vec![]],
        };
        self.record(&mut done, 0);

        let mut payer = self.account(&draft.payer).cloned().unwrap_or_else(|| Account::wallet(0));
        payer.lamports = payer.lamports.saturating_sub(fee.total());
        self.write(draft.payer, payer);

        let mut scratch = Scratch { bank: self, changed: BTreeMap::new() };
        let run = done.instructions.iter().enumerate();
        done.failure =
            run.map(|(at, i)| (at, i.apply(&mut scratch))).find_map(|(at, ran)| Some((at, ran.err()?)));
        let changed = scratch.changed;
        if done.failure.is_none() {
            self.changed.extend(changed);
        }
        self.record(&mut done, 1);
        done
    }

    /// Notes the balances of a transaction's accounts, before (0) or after (1).
    fn record(&self, transaction: &mut Transaction, moment: usize) {
        let balances = transaction.accounts().map(|key| self.lamports(key)).collect();
        let tokens =
            transaction.accounts().enumerate().filter_map(|(at, key)| self.token_balance(at, key)).collect();
        transaction.balances[moment] = balances;
        transaction.tokens[moment] = tokens;
    }

    fn token_balance(&self, index: usize, key: &Pubkey) -> Option<TokenBalance> {
        let account = self.account(key)?;
        if ![address::TOKEN, address::TOKEN_2022].contains(&account.owner) {
            return None;
        }
        let TokenAccount { mint, owner, amount, .. } = TokenAccount::decode(&account.data)?;
        let decimals = Mint::decode(&self.account(&mint)?.data)?.decimals;
        Some(TokenBalance { index, mint, owner, program: account.owner, amount, decimals })
    }
}

/// What one transaction changed so far, on top of its bank.
pub(crate) struct Scratch<'a> {
    bank: &'a Bank<'a>,
    changed: BTreeMap<Pubkey, Account>,
}

impl Scratch<'_> {
    /// The account, to be changed; an empty system account where there is none.
    pub(crate) fn account(&mut self, key: &Pubkey) -> &mut Account {
        self.changed.entry(*key).or_insert_with(|| {
            let empty = || Account { data: Bytes::new(), ..Account::wallet(0) };
            self.bank.account(key).cloned().unwrap_or_else(empty)
        })
    }
}
