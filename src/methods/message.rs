//! The wire form of a transaction message, legacy or version 0, as getFeeForMessage gets it.
//!
//! Decoding borrows, and says in a node's words why bytes are no message; [`Message::sanitize`] is a separate step,
//! because a node looks at minContextSlot in between. Bytes after the message are accepted, as on a node.

use thiserror::Error;

use super::Pubkey;

/// Most bytes of a legacy or version 0 message: what fits a packet on the way to the leader.
pub const MAX_MESSAGE: usize = 1232;

/// Most account keys that a message can address, static and looked up: instructions hold them as one byte each.
const MAX_ACCOUNTS: usize = 256;

/// The bit that tells a version byte from a legacy message's first header byte.
const VERSION_BIT: u8 = 0x80;

/// A message's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// From before versions.
    Legacy,
    /// With address table lookups.
    V0,
}

/// A transaction message, its parts borrowed from the bytes it was decoded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// Legacy or version 0.
    pub version: Version,
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
    /// What the transaction does, in order.
    pub instructions: Vec<Instruction<'a>>,
    /// Further accounts, by lookup; none in a legacy message.
    pub lookups: Vec<Lookup<'a>>,
}

/// One call of a program. Indexes count the static keys, then all writable lookups, then all read-only ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// Which account is the program.
    pub program: u8,
    /// Which accounts it gets.
    pub accounts: &'a [u8],
    /// What it gets told.
    pub data: &'a [u8],
}

/// Accounts taken from an address lookup table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lookup<'a> {
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
    /// The same, where the bytes are as many as a message may have.
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
            None => (Version::Legacy, first),
            Some(0) => (Version::V0, reader.byte()?),
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
                Version::Legacy => Vec::new(),
                Version::V0 => reader.list(|reader| {
                    let table = Pubkey(*reader.array()?);
                    Ok(Lookup { table, writable: reader.bytes()?, readonly: reader.bytes()? })
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
                Version::Legacy => IndexOutOfBounds,
                Version::V0 => InvalidValue,
            });
        }
        if self.lookups.iter().any(|lookup| lookup.loads() == 0) {
            return Err(InvalidValue);
        }
        let accounts = keys + self.lookups.iter().map(Lookup::loads).sum::<usize>();
        if self.version == Version::V0 && accounts > MAX_ACCOUNTS {
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

impl Lookup<'_> {
    /// How many accounts it adds.
    fn loads(&self) -> usize {
        self.writable.len() + self.readonly.len()
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    /// Whether there are as many bytes as a message may have: the same shortage has another name then.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A compact-u16, written.
    fn length(value: usize) -> Vec<u8> {
        let mut rest = u16::try_from(value).unwrap();
        let mut bytes = Vec::new();
        while rest >= 0x80 {
            bytes.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        bytes.push(u8::try_from(rest).unwrap());
        bytes
    }

    fn counted(bytes: &[u8]) -> Vec<u8> {
        [length(bytes.len()), bytes.to_vec()].concat()
    }

    impl Message<'_> {
        fn encode(&self) -> Vec<u8> {
            let mut out = match self.version {
                Version::Legacy => vec![],
                Version::V0 => vec![VERSION_BIT],
            };
            out.extend([self.required_signatures, self.readonly_signed, self.readonly_unsigned]);
            out.extend(length(self.account_keys.len()));
            out.extend(self.account_keys.as_flattened());
            out.extend(self.recent_blockhash);
            out.extend(length(self.instructions.len()));
            for instruction in &self.instructions {
                out.push(instruction.program);
                out.extend([counted(instruction.accounts), counted(instruction.data)].concat());
            }
            if self.version == Version::V0 {
                out.extend(length(self.lookups.len()));
                for lookup in &self.lookups {
                    out.extend(lookup.table.0);
                    out.extend([counted(lookup.writable), counted(lookup.readonly)].concat());
                }
            }
            out
        }
    }

    const KEYS: [[u8; 32]; 3] = [[1; 32], [2; 32], [3; 32]];

    /// A message that is in order: one signer, two more keys, one instruction, one lookup.
    fn sound(version: Version) -> Message<'static> {
        let lookups = match version {
            Version::Legacy => vec![],
            Version::V0 => vec![Lookup { table: Pubkey([5; 32]), writable: &[0], readonly: &[9, 8] }],
        };
        Message {
            version,
            required_signatures: 1,
            readonly_signed: 0,
            readonly_unsigned: 1,
            account_keys: &KEYS,
            recent_blockhash: &[4; 32],
            instructions: vec![Instruction { program: 2, accounts: &[0, 1], data: &[7; 200] }],
            lookups,
        }
    }

    #[test]
    fn every_cut_is_truncated_and_trailing_bytes_are_none_of_ours() {
        for version in [Version::Legacy, Version::V0] {
            let message = sound(version);
            let bytes = message.encode();
            for end in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..end]), Err(DecodeError::Truncated), "{version:?} {end}");
            }
            assert_eq!(Message::decode(&[bytes, vec![0xff; 50]].concat()), Ok(message));
        }
    }

    #[test]
    fn a_full_packet_that_is_short_hits_the_size_limit() {
        let mut bytes = vec![0; MAX_MESSAGE];
        bytes[3] = 100; // keys, of which 1232 bytes hold 38
        assert_eq!(Message::decode(&bytes), Err(DecodeError::SizeLimit));
        assert_eq!(Message::decode(&bytes[..MAX_MESSAGE - 1]), Err(DecodeError::Truncated));
    }

    #[test]
    fn lengths_are_read_as_compact_u16() {
        for (bytes, expected) in [
            (&[0x00][..], Ok(0)),
            (&[0x7f], Ok(127)),
            (&[0x80, 0x01], Ok(128)),
            (&[0xff, 0xff, 0x03], Ok(65_535)),
            (&[0x80, 0x00], Err(DecodeError::LengthAlias)),
            (&[0x80, 0x80, 0x00], Err(DecodeError::LengthAlias)),
            (&[0xff, 0xff, 0x04], Err(DecodeError::LengthOverflow(81_919))),
            (&[0xff, 0xff, 0x80], Err(DecodeError::LengthTooLong)),
            (&[0x80], Err(DecodeError::Truncated)),
        ] {
            assert_eq!(Reader { rest: bytes, full: false }.length(), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn the_first_byte_tells_the_version() {
        assert_eq!(Message::decode(&[0x81]), Err(DecodeError::Version(1)));
        assert_eq!(Message::decode(&[0xfe]), Err(DecodeError::Version(126)));
        assert_eq!(Message::decode(&[0xff]), Err(DecodeError::OffChain));
        assert_eq!(
            DecodeError::Version(1).to_string(),
            "invalid value: integer `1`, expected a valid transaction message version"
        );
    }

    #[test]
    fn sanitize_finds_what_points_nowhere() {
        use SanitizeError::{IndexOutOfBounds, InvalidValue};
        use Version::{Legacy, V0};

        type Fault = fn(&mut Message<'_>);
        let cases: [(&str, Fault, Result<(), SanitizeError>, Result<(), SanitizeError>); 10] = [
            ("nothing", |_| {}, Ok(()), Ok(())),
            ("no payer", |m| m.readonly_signed = 1, Err(IndexOutOfBounds), Err(InvalidValue)),
            ("no keys", |m| m.account_keys = &[], Err(IndexOutOfBounds), Err(IndexOutOfBounds)),
            ("overlap", |m| m.readonly_unsigned = 3, Err(IndexOutOfBounds), Err(IndexOutOfBounds)),
            ("payer called", |m| m.instructions[0].program = 0, Err(IndexOutOfBounds), Err(IndexOutOfBounds)),
            (
                "program beyond",
                |m| m.instructions[0].program = 3,
                Err(IndexOutOfBounds),
                Err(IndexOutOfBounds),
            ),
            ("looked up", |m| m.instructions[0].accounts = &[5], Err(IndexOutOfBounds), Ok(())),
            (
                "account beyond",
                |m| m.instructions[0].accounts = &[6],
                Err(IndexOutOfBounds),
                Err(IndexOutOfBounds),
            ),
            ("lookup of all", |m| m.lookups.iter_mut().for_each(|l| l.writable = &[0; 251]), Ok(()), Ok(())),
            (
                "lookup of nothing",
                |m| m.lookups.iter_mut().for_each(|l| (l.writable, l.readonly) = (&[], &[])),
                Ok(()),
                Err(InvalidValue),
            ),
        ];
        for (name, fault, legacy, v0) in cases {
            for (version, expected) in [(Legacy, legacy), (V0, v0)] {
                let mut message = sound(version);
                fault(&mut message);
                assert_eq!(message.sanitize(), expected, "{name}, {version:?}");
            }
        }
        let mut crowded = sound(V0);
        crowded.lookups[0].writable = &[0; 252];
        assert_eq!(crowded.sanitize(), Err(IndexOutOfBounds), "257 accounts");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            header: [u8; 3],
            v0: bool,
            keys in prop::collection::vec(any::<[u8; 32]>(), 0..200),
            blockhash: [u8; 32],
            parts in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..300)), 0..5),
        ) {
            let [required_signatures, readonly_signed, readonly_unsigned] = header;
            let message = Message {
                version: if v0 { Version::V0 } else { Version::Legacy },
                required_signatures: if v0 { required_signatures } else { required_signatures & 0x7f },
                readonly_signed,
                readonly_unsigned,
                account_keys: &keys,
                recent_blockhash: &blockhash,
                instructions: parts
                    .iter()
                    .map(|(program, bytes)| Instruction { program: *program, accounts: bytes, data: bytes })
                    .collect(),
                lookups: parts
                    .iter()
                    .filter(|_| v0)
                    .map(|(table, bytes)| Lookup { table: Pubkey([*table; 32]), writable: bytes, readonly: &[] })
                    .collect(),
            };
            let bytes = message.encode();
            prop_assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }
}
