//! A 32-byte account address, parsed from base58 as a node does it.

use serde::de::{Deserialize, Deserializer, Visitor};

use super::ParamError;

/// An account address: 32 bytes, base58 on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pubkey(pub [u8; 32]);

/// The reason why a string is not an address, displayed as in a node's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PubkeyError {
    /// The text has more than 44 characters, or does not encode exactly 32 bytes.
    #[error("WrongSize")]
    WrongSize,
    /// A character is not in the base58 alphabet.
    #[error("Invalid")]
    Invalid,
}

impl Pubkey {
    /// The maximum number of base58 characters that encode 32 bytes.
    pub const MAX_TEXT: usize = 44;

    /// Parses base58. The checks are made in the same order as in a node: length of the text, alphabet, number of
    /// bytes.
    ///
    /// This parser is faster than a general decoder, because it adds five characters at a time (58^5 fits 30 bits). A
    /// call may have a hundred addresses.
    pub fn parse(text: &str) -> Result<Self, PubkeyError> {
        if text.len() > Self::MAX_TEXT {
            return Err(PubkeyError::WrongSize);
        }
        // Each limb has 32 bits, the least significant limb first. u64 leaves room for the multiplication.
        let mut limbs = [0_u64; 8];
        let mut overflow = 0;
        for group in text.as_bytes().chunks(5) {
            let (mut scale, mut carry) = (1, 0);
            for &character in group {
                let digit = DIGITS[usize::from(character)].ok_or(PubkeyError::Invalid)?;
                scale *= 58;
                carry = carry * 58 + u64::from(digit);
            }
            for limb in &mut limbs {
                let wide = *limb * scale + carry;
                *limb = wide & 0xffff_ffff;
                carry = wide >> 32;
            }
            overflow |= carry;
        }
        let mut bytes = [0; 32];
        for (four, limb) in bytes.rchunks_exact_mut(4).zip(limbs) {
            four.copy_from_slice(&limb.to_be_bytes()[4..]);
        }
        // Each leading `1` is a zero byte. There are no other leading zeros.
        let ones = text.bytes().take_while(|&character| character == b'1').count();
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        if overflow == 0 && ones == zeros { Ok(Self(bytes)) } else { Err(PubkeyError::WrongSize) }
    }
}

/// The value of each base58 character. `None` is for other bytes.
pub(super) const DIGITS: [Option<u8>; 256] = {
    let alphabet = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut digits = [None; 256];
    let mut value = 0_u8;
    while (value as usize) < alphabet.len() {
        digits[alphabet[value as usize] as usize] = Some(value);
        value += 1;
    }
    digits
};

impl std::fmt::Display for Pubkey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = [0; Self::MAX_TEXT];
        let length = five8::encode_32(&self.0, &mut text);
        f.write_str(str::from_utf8(&text[..usize::from(length)]).map_err(|_| std::fmt::Error)?)
    }
}

impl std::fmt::Debug for Pubkey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// A string param that should be an address.
///
/// Deserialization checks only that the param is a string. The address is parsed later, because a node first reports
/// type errors of all params.
pub(super) struct Address(Result<Pubkey, PubkeyError>);

impl Address {
    /// Returns the address, or the error of a node.
    pub(super) fn into_pubkey(self) -> Result<Pubkey, ParamError> {
        self.0.map_err(|error| ParamError::new(format!("Invalid param: {error}")))
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Address;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Address, E> {
                Ok(Address(Pubkey::parse(text)))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn faults_are_found_in_a_nodes_order() {
        for (text, expected) in [
            ("", Err(PubkeyError::WrongSize)),
            ("bogus", Err(PubkeyError::WrongSize)),
            ("0OIl", Err(PubkeyError::Invalid)),
            (&"0".repeat(44), Err(PubkeyError::Invalid)),
            (&"0".repeat(45), Err(PubkeyError::WrongSize)),
            (&"é".repeat(22), Err(PubkeyError::Invalid)),
            (&"é".repeat(23), Err(PubkeyError::WrongSize)),
            (&"1".repeat(31), Err(PubkeyError::WrongSize)),
            (&"1".repeat(32), Ok(Pubkey([0; 32]))),
            (&"1".repeat(44), Err(PubkeyError::WrongSize)),
            (&"z".repeat(44), Err(PubkeyError::WrongSize)),
            ("JEKNVnkbo3jma5nREBBJCDoXFVeKkD56V3xKrvRmWxFG", Ok(Pubkey([255; 32]))),
        ] {
            assert_eq!(Pubkey::parse(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_read_as_it_is_shown(bytes: [u8; 32]) {
            prop_assert_eq!(Pubkey::parse(&Pubkey(bytes).to_string()), Ok(Pubkey(bytes)));
        }

        #[test]
        fn addresses_are_written_like_bs58(zeros in 0..=32_usize, mut bytes: [u8; 32]) {
            // Random bytes rarely have leading zeros, so this test sets some.
            bytes[..zeros].fill(0);
            for bytes in [bytes, [255; 32]] {
                prop_assert_eq!(Pubkey(bytes).to_string(), bs58::encode(bytes).into_string());
            }
        }

        #[test]
        fn addresses_are_parsed_like_bs58(
            text in prop_oneof!["\\PC{0,50}", "1{0,33}[1-9A-HJ-NP-Za-km-z]{0,44}", "[1-9A-HJ-NP-Za-km-z]{42,44}"],
        ) {
            let expected = match bs58::decode(&text).into_vec() {
                _ if text.len() > Pubkey::MAX_TEXT => Err(PubkeyError::WrongSize),
                Err(_) => Err(PubkeyError::Invalid),
                Ok(bytes) => bytes.try_into().map(Pubkey).map_err(|_| PubkeyError::WrongSize),
            };
            prop_assert_eq!(Pubkey::parse(&text), expected);
        }
    }
}
