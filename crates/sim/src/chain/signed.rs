//! Signed transactions before they are executed: those that the chain makes, and those that clients send.

use slotfront_rpc::methods::message::{self as wire, DecodeError};
use slotfront_rpc::methods::{Pubkey, is_reserved};
use thiserror::Error;

use super::address;
use super::bank::Bank;
use super::cluster_addresses::ClusterAddresses;
use super::error::{InstructionError, TransactionError};
use super::fee::{self, Fee};
use super::instruction::TypedInstruction;
use super::keyring;
use super::layout::FieldReader;
use super::message::{AddressTableLookup, Compiled, Loaded, Message};
use super::transaction::{Draft, rent_minimum};

/// The Rust path of the transaction type, as the errors of a node spell it.
const TYPE: &str = "solana_transaction::versioned::VersionedTransaction";

/// A transaction with signatures, which may be wrong.
#[derive(Debug, Clone)]
pub(crate) struct SignedTransaction {
    /// The signatures in the order of the signers. Never empty.
    pub(crate) signatures: Vec<[u8; 64]>,
    pub(crate) message: Message,
    pub(crate) loaded: Loaded,
    /// The typed form of the message's compiled instructions.
    pub(crate) instructions: Vec<TypedInstruction>,
}

/// The reason why bytes are not a transaction, in the words of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Malformed {
    #[error("failed to deserialize {TYPE}: {0}")]
    Wire(#[from] DecodeError),
    #[error("invalid transaction: Transaction failed to sanitize accounts offsets correctly")]
    Offsets,
    #[error("invalid transaction: the simulated cluster takes no transactions with lookup tables")]
    Lookups,
}

impl SignedTransaction {
    /// Compiles a transaction of the chain's own accounts, and signs it.
    pub(crate) fn sign(draft: Draft, addresses: &ClusterAddresses, blockhash: [u8; 32]) -> Self {
        let table = draft.table.map(|n| &addresses.tables[n]).map(|(key, listed)| (key, &listed[..]));
        let (message, loaded) = Message::compile(draft.payer, &draft.instructions, table, blockhash);
        let bytes = message.encode();
        let signatures = message.signers().iter().map(|key| addresses.keyring.sign(key, &bytes)).collect();
        Self { signatures, message, loaded, instructions: draft.instructions }
    }

    /// Reads the wire form. As on a node, bytes after the transaction are ignored.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        // A packet holds fewer than 128 signatures, so their number is one byte.
        let (count, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
        let signed = 64 * usize::from(*count);
        let (signatures, rest) = rest.split_at_checked(signed).ok_or(DecodeError::Truncated)?;
        let message = wire::Message::decode(rest)?;
        message.sanitize().map_err(|_| Malformed::Offsets)?;
        if message.required_signatures != *count {
            return Err(Malformed::Offsets);
        }
        if !message.lookups.is_empty() {
            return Err(Malformed::Lookups);
        }
        let message = owned(&message);
        let instructions = message.instructions.iter().map(|i| typed(&message, i)).collect();
        let signatures = signatures.as_chunks().0.to_vec();
        Ok(Self { signatures, message, loaded: Loaded::default(), instructions })
    }

    /// Returns the account that pays the fee.
    pub(crate) fn payer(&self) -> &Pubkey {
        &self.message.keys[0]
    }

    pub(crate) fn fee(&self) -> Fee {
        fee::fee(u64::from(self.message.signatures()), self.message.calls())
    }

    /// Returns true if each signer has signed the message.
    pub(crate) fn verifies(&self) -> bool {
        let bytes = self.message.encode();
        let mut signers = self.message.signers().iter().zip(&self.signatures);
        signers.all(|(key, signature)| keyring::verifies(key, &bytes, signature))
    }

    /// Checks that the accounts differ, and that the payer can pay the fee.
    ///
    /// # Errors
    /// The transaction may not be executed on `bank`.
    pub(crate) fn check(&self, bank: &Bank<'_>) -> Result<(), TransactionError> {
        let keys = &self.message.keys;
        if keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key)) {
            return Err(TransactionError::AccountLoadedTwice);
        }
        let payer = bank.account(self.payer()).ok_or(TransactionError::AccountNotFound)?;
        if payer.owner != address::SYSTEM {
            return Err(TransactionError::InvalidAccountForFee);
        }
        match payer.lamports.checked_sub(self.fee().total()) {
            None => Err(TransactionError::InsufficientFundsForFee),
            Some(left) if (1..rent_minimum(payer)).contains(&left) => {
                Err(TransactionError::InsufficientFundsForRent(0))
            }
            Some(_) => Ok(()),
        }
    }
}

fn owned(message: &wire::Message<'_>) -> Message {
    let compiled = |i: &wire::Instruction<'_>| Compiled {
        program: i.program,
        accounts: i.accounts.to_vec(),
        data: i.data.to_vec(),
    };
    let lookup = |lookup: &wire::AddressTableLookup<'_>| AddressTableLookup {
        table: lookup.table,
        writable: lookup.writable.to_vec(),
        readonly: lookup.readonly.to_vec(),
    };
    Message {
        v0: message.version == wire::MessageVersion::V0,
        header: [message.required_signatures, message.readonly_signed, message.readonly_unsigned],
        keys: message.account_keys.iter().copied().map(Pubkey).collect(),
        blockhash: *message.recent_blockhash,
        instructions: message.instructions.iter().map(compiled).collect(),
        lookups: message.lookups.iter().map(lookup).collect(),
    }
}

/// Returns the typed form of an instruction. What the simulation cannot execute becomes an instruction that fails.
fn typed(message: &Message, instruction: &Compiled) -> TypedInstruction {
    let program = message.keys[usize::from(instruction.program)];
    let read = match program {
        address::SYSTEM => transfer(message, instruction),
        address::MEMO => memo(message, instruction),
        address::COMPUTE_BUDGET => budget(&instruction.data),
        _ => Err(InstructionError::UnsupportedProgramId),
    };
    read.unwrap_or_else(|error| TypedInstruction::Other { program, error: Some(error) })
}

fn transfer(message: &Message, instruction: &Compiled) -> Result<TypedInstruction, InstructionError> {
    let mut fields = FieldReader(&instruction.data);
    let (Some(2), Some(lamports)) = (fields.u32(), fields.u64()) else {
        return Err(InstructionError::InvalidInstructionData);
    };
    let [from, to, ..] = instruction.accounts[..] else { return Err(InstructionError::InvalidArgument) };
    let [from, to] = [from, to].map(usize::from);
    if !message.is_signer(from) {
        return Err(InstructionError::MissingRequiredSignature);
    }
    let may_change = |at| message.is_writable(at) && !is_reserved(&message.keys[at]);
    if !(may_change(from) && may_change(to)) {
        return Err(InstructionError::ReadonlyLamportChange);
    }
    let [from, to] = [from, to].map(|at| message.keys[at]);
    Ok(TypedInstruction::Transfer { from, to, lamports, claims: None })
}

fn memo(message: &Message, instruction: &Compiled) -> Result<TypedInstruction, InstructionError> {
    let signers = instruction.accounts.iter().map(|at| usize::from(*at));
    if !signers.clone().all(|at| message.is_signer(at)) {
        return Err(InstructionError::MissingRequiredSignature);
    }
    let text = String::from_utf8(instruction.data.clone());
    let text = text.map_err(|_| InstructionError::InvalidInstructionData)?;
    Ok(TypedInstruction::Memo { signers: signers.map(|at| message.keys[at]).collect(), text })
}

fn budget(data: &[u8]) -> Result<TypedInstruction, InstructionError> {
    let mut fields = FieldReader(data);
    let read = match fields.u8() {
        // The size of the heap, and that of the loaded accounts, change nothing here.
        Some(1 | 4) => {
            fields.u32().map(|_| TypedInstruction::Other { program: address::COMPUTE_BUDGET, error: None })
        }
        Some(2) => fields.u32().map(TypedInstruction::UnitLimit),
        Some(3) => fields.u64().map(TypedInstruction::UnitPrice),
        _ => None,
    };
    read.ok_or(InstructionError::InvalidInstructionData)
}
