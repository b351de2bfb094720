//! Decoding of encoded messages, of truncated messages and of invalid messages.

use proptest::prelude::*;

use super::*;

/// Encodes a compact-u16.
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
            MessageVersion::Legacy => vec![],
            MessageVersion::V0 => vec![VERSION_BIT],
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
        if self.version == MessageVersion::V0 {
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

/// Returns a valid message with one signer, two other keys, one instruction and one lookup.
fn valid_message(version: MessageVersion) -> Message<'static> {
    let lookups = match version {
        MessageVersion::Legacy => vec![],
        MessageVersion::V0 => {
            vec![AddressTableLookup { table: Pubkey([5; 32]), writable: &[0], readonly: &[9, 8] }]
        }
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
fn cut_messages_are_truncated_and_trailing_bytes_ignored() {
    for version in [MessageVersion::Legacy, MessageVersion::V0] {
        let message = valid_message(version);
        let bytes = message.encode();
        for end in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..end]), Err(DecodeError::Truncated), "{version:?} {end}");
        }
        assert_eq!(Message::decode(&[bytes, vec![0xff; 50]].concat()), Ok(message));
    }
}

#[test]
fn full_packet_in_short_form_hits_the_limit() {
    let mut bytes = vec![0; MAX_MESSAGE];
    bytes[3] = 100; // the number of keys, of which 1232 bytes hold only 38
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
    use MessageVersion::{Legacy, V0};
    use SanitizeError::{IndexOutOfBounds, InvalidValue};

    type Fault = fn(&mut Message<'_>);
    type Verdict = Result<(), SanitizeError>;
    let cases: [(&str, Fault, Verdict, Verdict); 10] = [
        ("nothing", |_| {}, Ok(()), Ok(())),
        ("no payer", |m| m.readonly_signed = 1, Err(IndexOutOfBounds), Err(InvalidValue)),
        ("no keys", |m| m.account_keys = &[], Err(IndexOutOfBounds), Err(IndexOutOfBounds)),
        ("overlap", |m| m.readonly_unsigned = 3, Err(IndexOutOfBounds), Err(IndexOutOfBounds)),
        ("payer called", |m| m.instructions[0].program = 0, Err(IndexOutOfBounds), Err(IndexOutOfBounds)),
        ("program beyond", |m| m.instructions[0].program = 3, Err(IndexOutOfBounds), Err(IndexOutOfBounds)),
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
            let mut message = valid_message(version);
            fault(&mut message);
            assert_eq!(message.sanitize(), expected, "{name}, {version:?}");
        }
    }
    let mut crowded = valid_message(V0);
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
            version: if v0 { MessageVersion::V0 } else { MessageVersion::Legacy },
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
                .map(|(table, bytes)| AddressTableLookup { table: Pubkey([*table; 32]), writable: bytes, readonly: &[] })
                .collect(),
        };
        let bytes = message.encode();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }
}
