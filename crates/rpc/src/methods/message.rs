//! The wire form of a transaction and its message, legacy or version 0, as callers send it and as blocks hold it.
//!
//! Decoding borrows from the bytes, and its errors have the texts of a node. [`Message::sanitize`] is a separate step,
//! because a node checks `minContextSlot` in between. As on a node, bytes after the message are ignored.

use thiserror::Error;

use super::Pubkey;
use super::reserved_keys::{UPGRADEABLE_LOADER, is_reserved};

/// The Rust path of a node's message type, as the node's errors spell it.
pub const TYPE: &str = "solana_message::non_bpf_modules::versions::VersionedMessage";

/// The maximum size of a legacy or version 0 message in bytes: the size of a network packet.
pub const MAX_MESSAGE: usize = 1232;

/// The maximum number of accounts of a message, static and looked up. Instructions refer to an account by one byte.
const MAX_ACCOUNTS: usize = 256;

/// The bit that distinguishes a version byte from the first header byte of a legacy message.
const VERSION_BIT: u8 = 0x80;

/// The version of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageVersion {
    /// A message without a version.
    Legacy,
    /// A message with address table lookups.
    V0,
}

/// A transaction message. Its parts borrow from the decoded bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// The version.
    pub version: MessageVersion,
    /// The number of required signatures. The signers are the first account keys.
    pub required_signatures: u8,
    /// The number of read-only accounts at the end of the signing accounts.
    pub readonly_signed: u8,
    /// The number of read-only accounts at the end of the other static accounts.
    pub readonly_unsigned: u8,
    /// The static account keys. The first account pays the fee.
    pub account_keys: &'a [[u8; 32]],
    /// A blockhash of the last 150 blocks, or a durable nonce.
    pub recent_blockhash: &'a [u8; 32],
    /// The instructions of the transaction, in order.
    pub instructions: Vec<Instruction<'a>>,
    /// The lookups of accounts that are not among the static keys. A legacy message has no lookups.
    pub lookups: Vec<AddressTableLookup<'a>>,
}

/// A call of a program. Its indexes count the static accounts first, then the writable looked-up accounts of all
/// tables, then the read-only looked-up accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// The index of the program's account.
    pub program: u8,
    /// The indexes of the program's input accounts.
    pub accounts: &'a [u8],
    /// The input data of the program.
    pub data: &'a [u8],
}

/// Accounts taken from an address lookup table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressTableLookup<'a> {
    /// The address of the table.
    pub table: Pubkey,
    /// The positions of writable accounts in the table.
    pub writable: &'a [u8],
    /// The positions of read-only accounts in the table.
    pub readonly: &'a [u8],
}

/// A transaction in its wire form.
#[derive(Debug)]
pub struct WireTransaction<'a> {
    /// The signatures, of which the first identifies the transaction.
    pub signatures: &'a [[u8; 64]],
    /// The message. `None` if only newer nodes can read its version.
    pub message: Option<Message<'a>>,
    /// The bytes after the message.
    pub rest: &'a [u8],
}

/// The reason why bytes are not a message. In a node's error, the text of the reason follows "failed to deserialize".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the message is complete.
    #[error("io error: failed to fill whole buffer")]
    Truncated,
    /// The bytes end before the message is complete, and have the maximum length of a message.
    #[error("the size limit has been reached")]
    SizeLimit,
    /// A length is encoded with more bytes than necessary.
    #[error("invalid value: alias encoding, expected strict form encoding")]
    LengthAlias,
    /// A length has more than three bytes.
    #[error(
        "invalid value: continue signal on byte-three, expected a terminal signal on or before byte-three"
    )]
    LengthTooLong,
    /// A length exceeds 16 bits.
    #[error("invalid value: integer `{0}`, expected a value in the range [0, 65535]")]
    LengthOverflow(u32),
    /// The version is from 1 to 126. Nodes of 4.0 do not know such a version, but later nodes may know it.
    #[error("invalid value: integer `{0}`, expected a valid transaction message version")]
    Version(u8),
    /// The first byte is 0xff, the mark of off-chain messages.
    #[error("off-chain messages are not accepted")]
    OffChain,
}

/// The reason why a message is invalid. In a node's error, the text of the reason follows "invalid transaction
/// message".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SanitizeError {
    /// A count or an index is out of range.
    #[error("index out of bounds")]
    IndexOutOfBounds,
    /// No account can pay, or a lookup is empty.
    #[error("invalid value")]
    InvalidValue,
}

impl<'a> Message<'a> {
    /// Reads a message from the start of `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::read(&mut Reader::new(bytes))
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let first = reader.byte()?;
        let (version, required_signatures) = match first.checked_sub(VERSION_BIT) {
            None => (MessageVersion::Legacy, first),
            Some(0) => (MessageVersion::V0, reader.byte()?),
            Some(127) => return Err(DecodeError::OffChain),
            Some(version) => return Err(DecodeError::Version(version)),
        };
        Ok(Self {
            version,
            required_signatures,
            readonly_signed: reader.byte()?,
            readonly_unsigned: reader.byte()?,
            account_keys: reader.keys()?,
            recent_blockhash: reader.array()?,
            instructions: reader.list(|reader| {
                Ok(Instruction { program: reader.byte()?, accounts: reader.bytes()?, data: reader.bytes()? })
            })?,
            lookups: match version {
                MessageVersion::Legacy => Vec::new(),
                MessageVersion::V0 => reader.list(|reader| {
                    let table = Pubkey(*reader.array()?);
                    Ok(AddressTableLookup { table, writable: reader.bytes()?, readonly: reader.bytes()? })
                })?,
            },
        })
    }

    /// Returns true if account `at` of the message signs.
    pub fn is_signer(&self, at: usize) -> bool {
        at < self.required_signatures.into()
    }

    /// Returns true if the transaction may write account `at`, as a node shows it in blocks. `accounts` are the static keys
    /// and then the looked-up accounts, of which the first `loaded_writable` are writable.
    pub fn is_writable(&self, at: usize, accounts: &[Pubkey], loaded_writable: usize) -> bool {
        let (keys, signers) = (self.account_keys.len(), usize::from(self.required_signatures));
        let is_claimed = if at >= keys {
            at - keys < loaded_writable
        } else if self.is_signer(at) {
            at + usize::from(self.readonly_signed) < signers
        } else {
            at + usize::from(self.readonly_unsigned) < keys
        };
        let is_called = || self.instructions.iter().any(|instruction| usize::from(instruction.program) == at);
        is_claimed
            && accounts.get(at).is_some_and(|key| !is_reserved(key))
            && (!is_called() || accounts.contains(&UPGRADEABLE_LOADER))
    }

    /// Checks counts and indexes. A node does so after the check of `minContextSlot`.
    pub fn sanitize(&self) -> Result<(), SanitizeError> {
        use SanitizeError::{IndexOutOfBounds, InvalidValue};

        let keys = self.account_keys.len();
        if usize::from(self.required_signatures) + usize::from(self.readonly_unsigned) > keys {
            return Err(IndexOutOfBounds);
        }
        // The payer signs and is writable.
        if self.readonly_signed >= self.required_signatures {
            return Err(match self.version {
                MessageVersion::Legacy => IndexOutOfBounds,
                MessageVersion::V0 => InvalidValue,
            });
        }
        if self.lookups.iter().any(|lookup| lookup.loads() == 0) {
            return Err(InvalidValue);
        }
        let accounts = keys + self.lookups.iter().map(AddressTableLookup::loads).sum::<usize>();
        if self.version == MessageVersion::V0 && accounts > MAX_ACCOUNTS {
            return Err(IndexOutOfBounds);
        }
        // A program must be a static key, and must not be the payer.
        let in_bounds = |instruction: &Instruction| {
            (1..keys).contains(&instruction.program.into())
                && instruction.accounts.iter().all(|&account| usize::from(account) < accounts)
        };
        if self.instructions.iter().all(in_bounds) { Ok(()) } else { Err(IndexOutOfBounds) }
    }
}

impl AddressTableLookup<'_> {
    /// Returns the number of accounts that the lookup adds.
    fn loads(&self) -> usize {
        self.writable.len() + self.readonly.len()
    }
}

impl<'a> WireTransaction<'a> {
    /// Reads a transaction from the start of `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let count = reader.length()?;
        let signatures = reader.take(count * 64)?.as_chunks().0;
        let message = match Message::read(&mut reader) {
            Ok(message) => Some(message),
            Err(DecodeError::Version(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { signatures, message, rest: reader.rest })
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    /// True if the bytes have the maximum length of a message. A truncated message is then [`DecodeError::SizeLimit`].
    full: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, full: bytes.len() >= MAX_MESSAGE }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(if self.full { DecodeError::SizeLimit } else { DecodeError::Truncated });
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        self.take(N).map(|bytes| bytes.first_chunk().expect("take gave N bytes"))
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| *byte)
    }

    /// Reads a compact-u16: seven bits per byte, the lowest first. The top bit means that another byte follows.
    fn length(&mut self) -> Result<usize, DecodeError> {
        let mut length = 0;
        for place in 0..3 {
            let byte = self.byte()?;
            if byte == 0 && place > 0 {
                return Err(DecodeError::LengthAlias);
            }
            if byte >= 0x80 && place == 2 {
                return Err(DecodeError::LengthTooLong);
            }
            length |= u32::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                break;
            }
        }
        u16::try_from(length).map(usize::from).map_err(|_| DecodeError::LengthOverflow(length))
    }

    fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.length()?;
        self.take(length)
    }

    fn keys(&mut self) -> Result<&'a [[u8; 32]], DecodeError> {
        let length = self.length()?;
        self.take(length * 32).map(|bytes| bytes.as_chunks().0)
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, DecodeError>) -> Result<Vec<T>, DecodeError> {
        // No memory is reserved for all items in advance, because the encoded length may be false.
        (0..self.length()?).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests;
