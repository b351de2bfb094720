//! The 64-byte signature of a transaction, parsed from base58 as a node does it.

use super::ParamError;
use super::pubkey::{DIGITS, PubkeyError};

/// The first signature of a transaction, which names it: 64 bytes, base58 on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature(pub [u8; 64]);

impl Signature {
    /// The maximum number of base58 characters that encode 64 bytes.
    pub const MAX_TEXT: usize = 88;

    /// Parses base58. The checks are made in the same order as in a node, whose words for the two faults are those for
    /// an address: length of the text, alphabet, number of bytes.
    pub fn parse(text: &str) -> Result<Self, PubkeyError> {
        if text.len() > Self::MAX_TEXT {
            return Err(PubkeyError::WrongSize);
        }
        if text.bytes().any(|character| DIGITS[usize::from(character)].is_none()) {
            return Err(PubkeyError::Invalid);
        }
        let mut bytes = [0; 64];
        five8::decode_64(text, &mut bytes).map_err(|_| PubkeyError::WrongSize)?;
        Ok(Self(bytes))
    }

    /// Parses the signature of a call's params, with a node's error.
    pub(super) fn param(text: &str) -> Result<Self, ParamError> {
        Self::parse(text).map_err(|error| ParamError::new(format!("Invalid param: {error}")))
    }
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = [0; Self::MAX_TEXT];
        let length = five8::encode_64(&self.0, &mut text);
        f.write_str(str::from_utf8(&text[..usize::from(length)]).map_err(|_| std::fmt::Error)?)
    }
}

impl std::fmt::Debug for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn signatures_are_read_like_bs58(
            text in prop_oneof!["\\PC{0,100}", "1{0,65}[1-9A-HJ-NP-Za-km-z]{0,88}", "[1-9A-HJ-NP-Za-km-z]{86,88}"],
        ) {
            let expected = match bs58::decode(&text).into_vec() {
                _ if text.len() > Signature::MAX_TEXT => Err(PubkeyError::WrongSize),
                Err(_) => Err(PubkeyError::Invalid),
                Ok(bytes) => bytes.try_into().map(Signature).map_err(|_| PubkeyError::WrongSize),
            };
            prop_assert_eq!(Signature::parse(&text), expected);
        }

        #[test]
        fn a_signature_is_read_as_it_is_shown(zeros in 0..=64_usize, mut bytes: [u8; 64]) {
            bytes[..zeros].fill(0);
            let text = Signature(bytes).to_string();
            prop_assert_eq!(&text, &bs58::encode(bytes).into_string());
            prop_assert_eq!(Signature::parse(&text), Ok(Signature(bytes)));
        }
    }
}
