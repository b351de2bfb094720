//! The wire form of a transaction message, legacy or version 0, as getFeeForMessage gets it.
//!
//! Decoding borrows, and says in a node's words why bytes are no message; [`Message::sanitize`] is a separate step,
//! because a node looks at minContextSlot in between. Bytes after the message are accepted, as on a node.

use thiserror::Error;

use super::Pubkey;

/// The path of a node's type for it, which is compiled into the node's words.
pub const TYPE: &str = "solana_message::non_bpf_modules::versions::VersionedMessage";

/// Most bytes of a legacy or version 0 message: what fits a packet on the way to the leader.
pub const MAX_MESSAGE: usize = 1232;

/// Most account keys that a message can address, static and looked up: instructions hold them as one byte each.
const MAX_ACCOUNTS: usize = 256;

/// The bit that tells a version byte from a legacy message's first header byte.
const VERSION_BIT: u8 = 0x80;

/// A message's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageVersion {
    /// From before versions.
    Legacy,
    /// With address table lookups.
    V0,
}

/// A transaction message, its parts borrowed from the bytes it was decoded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// Legacy or version 0.
    pub version: MessageVersion,
    /// How many signatures the transaction needs; so many of the first account keys sign.
    pub required_signatures: u8,
    /// How many of the signing accounts, the last ones, are read-only.
    pub readonly_signed: u8,
    /// How many of the other static accounts, the last ones, are read-only.
    pub readonly_unsigned: u8,
    /// The static account keys; the first pays.
    pub account_keys: &'a [[u8; 32]],
    /// A blockhash of the last 150 blocks, or a durable nonce.
    pub recent_blockhash: &'a [u8; 32],
    /// The instructions of the transaction, in order.
    pub instructions: Vec<Instruction<'a>>,
    /// Further accounts, by lookup; none in a legacy message.
    pub lookups: Vec<AddressTableLookup<'a>>,
}

/// One call of a program. Indexes count the static keys, then all writable lookups, then all read-only ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// The index of the program's account.
    pub program: u8,
    /// The indices of the accounts that the program gets.
    pub accounts: &'a [u8],
    /// The data that the program gets.
    pub data: &'a [u8],
}

/// Accounts taken from an address lookup table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressTableLookup<'a> {
    /// The table's address.
    pub table: Pubkey,
    /// Places in the table, of accounts that are written.
    pub writable: &'a [u8],
    /// Places in the table, of accounts that are only read.
    pub readonly: &'a [u8],
}

/// Why bytes are no message, in the words that follow a node's "failed to deserialize".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end before the message does.
    #[error("io error: failed to fill whole buffer")]
    Truncated,
    /// The message is cut off, and has as many bytes as a message may have.
    #[error("the size limit has been reached")]
    SizeLimit,
    /// A length of more bytes than it needs.
    #[error("invalid value: alias encoding, expected strict form encoding")]
    LengthAlias,
    /// A length of more than three bytes.
    #[error(
        "invalid value: continue signal on byte-three, expected a terminal signal on or before byte-three"
    )]
    LengthTooLong,
    /// A length beyond 16 bits.
    #[error("invalid value: integer `{0}`, expected a value in the range [0, 65535]")]
    LengthOverflow(u32),
    /// A version, 1 to 126, that 4.0 does not know; later nodes may.
    #[error("invalid value: integer `{0}`, expected a valid transaction message version")]
    Version(u8),
    /// 0xff marks off-chain messages, so that nobody can be made to sign a transaction as one.
    #[error("off-chain messages are not accepted")]
    OffChain,
}

/// Why a message makes no sense, in the words that follow a node's "invalid transaction message".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SanitizeError {
    /// A count or an index that points past what there is.
    #[error("index out of bounds")]
    IndexOutOfBounds,
    /// No account that can pay, or a lookup of nothing.
    #[error("invalid value")]
    InvalidValue,
}

impl<'a> Message<'a> {
    /// Reads a message from the start of `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader { rest: bytes, full: bytes.len() >= MAX_MESSAGE };
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

    /// Checks counts and indexes, which a node does after minContextSlot.
    pub fn sanitize(&self) -> Result<(), SanitizeError> {
        use SanitizeError::{IndexOutOfBounds, InvalidValue};

        let keys = self.account_keys.len();
        if usize::from(self.required_signatures) + usize::from(self.readonly_unsigned) > keys {
            return Err(IndexOutOfBounds);
        }
        // The payer signs and is written to.
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
        // A program is a static key, so that it is known without the bank, and never the payer.
        let in_bounds = |instruction: &Instruction| {
            (1..keys).contains(&instruction.program.into())
                && instruction.accounts.iter().all(|&account| usize::from(account) < accounts)
        };
        if self.instructions.iter().all(in_bounds) { Ok(()) } else { Err(IndexOutOfBounds) }
    }
}

impl AddressTableLookup<'_> {
    /// How many accounts it adds.
    fn loads(&self) -> usize {
        self.writable.len() + self.readonly.len()
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    /// True if there are as many bytes as a message may have. A message that is cut off has another error then.
    full: bool,
}

impl<'a> Reader<'a> {
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

    /// A compact-u16: seven bits a byte, the lowest first, the top bit saying that more follow.
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
        // Grows as items arrive: a claimed length is not believed.
        (0..self.length()?).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests;
