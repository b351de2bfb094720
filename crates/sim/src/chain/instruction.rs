//! The instructions of simulated transactions: their encoding in a message, and their effects.
//!
//! Instructions stay typed in a block, so that parsed answers and logs need no decoder. Answers in raw encodings use
//! the compiled bytes.

use slotfront_rpc::methods::Pubkey;

use super::address;
use super::bank::Scratch;
use super::error::InstructionError;
use super::token::TokenAccount;
use super::vote::{TowerSync, VoteState};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TypedInstruction {
    /// Moves lamports between system accounts. `claims` is a third account that the message lists as writable. The
    /// program ignores that account.
    Transfer {
        from: Pubkey,
        to: Pubkey,
        lamports: u64,
        claims: Option<Pubkey>,
    },
    /// Moves tokens. A checked transfer also names the mint and its decimals.
    TokenTransfer {
        program: Pubkey,
        source: Pubkey,
        destination: Pubkey,
        authority: Pubkey,
        amount: u64,
        checked: Option<(Pubkey, u8)>,
    },
    /// Writes a text into the ledger.
    Memo {
        signers: Vec<Pubkey>,
        text: String,
    },
    Vote {
        account: Pubkey,
        authority: Pubkey,
        sync: TowerSync,
        epoch: u64,
    },
    /// Sets the transaction's compute unit limit.
    UnitLimit(u32),
    /// Sets the price of a compute unit, in millionths of a lamport.
    UnitPrice(u64),
    /// An instruction of a client that changes nothing, or that fails. Only its compiled form has its accounts and its
    /// data.
    Other {
        program: Pubkey,
        error: Option<InstructionError>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccountRef {
    pub(crate) key: Pubkey,
    pub(crate) signer: bool,
    pub(crate) writable: bool,
}

impl TypedInstruction {
    pub(crate) fn program(&self) -> Pubkey {
        match self {
            Self::Transfer { .. } => address::SYSTEM,
            Self::TokenTransfer { program, .. } | Self::Other { program, .. } => *program,
            Self::Memo { .. } => address::MEMO,
            Self::Vote { .. } => address::VOTE,
            Self::UnitLimit(_) | Self::UnitPrice(_) => address::COMPUTE_BUDGET,
        }
    }

    /// Returns the accounts in the order that the program expects.
    pub(crate) fn accounts(&self) -> Vec<AccountRef> {
        let account = |key: &Pubkey, signer, writable| AccountRef { key: *key, signer, writable };
        match self {
            Self::Transfer { from, to, claims, .. } => {
                let mut accounts = vec![account(from, true, true), account(to, false, true)];
                accounts.extend(claims.iter().map(|key| account(key, false, true)));
                accounts
            }
            Self::TokenTransfer { source, destination, authority, checked, .. } => {
                let mut accounts = vec![account(source, false, true)];
                accounts.extend(checked.iter().map(|(mint, _)| account(mint, false, false)));
                accounts.extend([account(destination, false, true), account(authority, true, false)]);
                accounts
            }
            Self::Memo { signers, .. } => signers.iter().map(|key| account(key, true, false)).collect(),
            Self::Vote { account: vote, authority, .. } => {
                vec![account(vote, false, true), account(authority, true, false)]
            }
            Self::UnitLimit(_) | Self::UnitPrice(_) | Self::Other { .. } => vec![],
        }
    }

    /// Returns the instruction data, in the layout of the program.
    pub(crate) fn data(&self) -> Vec<u8> {
        match self {
            Self::Transfer { lamports, .. } => [&2u32.to_le_bytes()[..], &lamports.to_le_bytes()].concat(),
            Self::TokenTransfer { amount, checked: None, .. } => [&[3][..], &amount.to_le_bytes()].concat(),
            Self::TokenTransfer { amount, checked: Some((_, decimals)), .. } => {
                [&[12][..], &amount.to_le_bytes(), &[*decimals]].concat()
            }
            Self::Memo { text, .. } => text.clone().into_bytes(),
            Self::Vote { sync, .. } => sync.encode(),
            Self::UnitLimit(limit) => [&[2][..], &limit.to_le_bytes()].concat(),
            Self::UnitPrice(price) => [&[3][..], &price.to_le_bytes()].concat(),
            Self::Other { .. } => vec![],
        }
    }

    /// Returns the compute units that the instruction uses: exact for builtin programs, typical for other programs.
    pub(crate) fn units(&self) -> u64 {
        match self {
            Self::Transfer { .. } | Self::UnitLimit(_) | Self::UnitPrice(_) | Self::Other { .. } => 150,
            Self::TokenTransfer { program, .. } if *program == address::TOKEN_2022 => 2_258,
            Self::TokenTransfer { checked, .. } => {
                if checked.is_some() {
                    105
                } else {
                    76
                }
            }
            Self::Memo { text, .. } => 14_000 + 340 * text.len() as u64,
            Self::Vote { .. } => 2_100,
        }
    }

    /// Executes the instruction.
    ///
    /// # Errors
    /// The program failed. The caller must then drop `scratch`, which may be changed in part.
    pub(crate) fn apply(&self, scratch: &mut Scratch<'_>) -> Result<(), InstructionError> {
        match self {
            Self::Transfer { from, to, lamports, .. } => {
                let have = scratch.account(from).lamports;
                let left = have
                    .checked_sub(*lamports)
                    .ok_or(InstructionError::Lamports { have, need: *lamports })?;
                scratch.account(from).lamports = left;
                scratch.account(to).lamports += lamports;
            }
            Self::TokenTransfer { source, destination, amount, .. } => {
                let read = |data: &[u8]| TokenAccount::decode(data).ok_or(InstructionError::Tokens);
                let mut from = read(&scratch.account(source).data)?;
                from.amount = from.amount.checked_sub(*amount).ok_or(InstructionError::Tokens)?;
                scratch.account(source).data = from.encode();
                let mut to = read(&scratch.account(destination).data)?;
                to.amount = to.amount.checked_add(*amount).ok_or(InstructionError::Tokens)?;
                scratch.account(destination).data = to.encode();
                if to.native_reserve.is_some() {
                    // For wrapped SOL, the lamports move too.
                    scratch.account(source).lamports -= amount;
                    scratch.account(destination).lamports += amount;
                }
            }
            Self::Vote { account, sync, epoch, .. } => {
                let account = scratch.account(account);
                if let Some(mut state) = VoteState::decode(&account.data) {
                    state.vote(sync.slot(), *epoch, sync.now);
                    account.data = state.encode();
                }
            }
            Self::Other { error: Some(error), .. } => return Err(*error),
            Self::Memo { .. } | Self::UnitLimit(_) | Self::UnitPrice(_) | Self::Other { error: None, .. } => {
            }
        }
        Ok(())
    }
}
