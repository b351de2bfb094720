//! The errors of transactions, with the names and the words of a node.

use thiserror::Error;

/// The reason why a transaction failed, or did not land at all. The Rust names are those in a node's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum TransactionError {
    /// The instruction at this position failed. The transaction lands and pays its fee.
    #[error("Error processing Instruction {0}: {1}")]
    InstructionError(usize, InstructionError),
    /// The account at this position would keep lamports, but too few for its size. The transaction lands and pays its
    /// fee.
    #[error("Transaction results in an account ({0}) with insufficient funds for rent")]
    InsufficientFundsForRent(usize),
    #[error("Account loaded twice")]
    AccountLoadedTwice,
    #[error("Attempt to debit an account but found no record of a prior credit.")]
    AccountNotFound,
    #[error("Insufficient funds for fee")]
    InsufficientFundsForFee,
    #[error("This account may not be used to pay transaction fees")]
    InvalidAccountForFee,
    #[error("This transaction has already been processed")]
    AlreadyProcessed,
    #[error("Blockhash not found")]
    BlockhashNotFound,
    #[error("Transaction did not pass signature verification")]
    SignatureFailure,
}

impl TransactionError {
    /// Returns the position of the failed instruction.
    pub(crate) fn instruction(self) -> Option<(usize, InstructionError)> {
        match self {
            Self::InstructionError(at, error) => Some((at, error)),
            _ => None,
        }
    }
}

/// The reason why an instruction failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum InstructionError {
    /// The transfer exceeds the balance in lamports.
    #[error("custom program error: 0x1")]
    Lamports { have: u64, need: u64 },
    /// The transfer exceeds the token balance.
    #[error("custom program error: 0x1")]
    Tokens,
    #[error("invalid instruction data")]
    InvalidInstructionData,
    #[error("invalid program argument")]
    InvalidArgument,
    #[error("missing required signature for instruction")]
    MissingRequiredSignature,
    #[error("instruction changed the balance of a read-only account")]
    ReadonlyLamportChange,
    /// The simulation does not execute this program.
    #[error("unsupported program id")]
    UnsupportedProgramId,
}
