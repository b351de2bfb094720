//! Transactions: executed one after another on a bank, and kept in a block with what they did.

use slotfront_rpc::methods::Pubkey;

use super::accounts::Account;
use super::address;
use super::bank::Bank;
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
    /// The meaning of the message's compiled instructions.
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

    /// Returns true for a transaction with nothing but a vote. Performance samples count those apart.
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

/// Executes a transaction. The fee is taken in either case; whatever else it did is undone if it fails.
pub(crate) fn execute(
    bank: &mut Bank<'_>,
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
    record(bank, &mut done, 0);

    let mut payer = bank.account(&draft.payer).cloned().unwrap_or_else(|| Account::wallet(0));
    payer.lamports = payer.lamports.saturating_sub(fee.total());
    bank.write(draft.payer, payer);

    let mut scratch = bank.scratch();
    let run = done.instructions.iter().enumerate();
    done.failure =
        run.map(|(at, i)| (at, i.apply(&mut scratch))).find_map(|(at, ran)| Some((at, ran.err()?)));
    let changed = scratch.into_changed();
    if done.failure.is_none() {
        bank.keep(changed);
    }
    record(bank, &mut done, 1);
    done
}

/// Notes the balances of a transaction's accounts, before (0) or after (1).
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
