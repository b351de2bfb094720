//! A 32-byte account address, read from base58 the way a node reads it.

use serde::de::{Deserialize, Deserializer, Visitor};

use super::ParamError;

/// An account address: 32 bytes, base58 on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pubkey(pub [u8; 32]);

/// Why a string is no address, in a node's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PubkeyError {
    /// Longer than 44 characters, or not exactly 32 bytes.
    #[error("WrongSize")]
    WrongSize,
    /// A character outside the base58 alphabet.
    #[error("Invalid")]
    Invalid,
}

impl Pubkey {
    /// Longest base58 text of 32 bytes, in characters.
    pub const MAX_TEXT: usize = 44;

    /// Reads base58. Checks in a node's order: length of the text, alphabet, length in bytes.
    pub fn parse(text: &str) -> Result<Self, PubkeyError> {
        if text.len() > Self::MAX_TEXT {
            return Err(PubkeyError::WrongSize);
        }
        let mut bytes = [0; 64];
        let len = bs58::decode(text).onto(&mut bytes[..]).map_err(|_| PubkeyError::Invalid)?;
        let key: [u8; 32] = bytes[..len].try_into().map_err(|_| PubkeyError::WrongSize)?;
        Ok(Self(key))
    }
}

impl std::fmt::Display for Pubkey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&bs58::encode(self.0).into_string())
    }
}

impl std::fmt::Debug for Pubkey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// A string param that should be an address. Its type is judged while params are read, its content only afterwards,
/// since a node finds type errors anywhere before it looks into a string.
pub(super) struct Address(Result<Pubkey, PubkeyError>);

impl Address {
    /// The address, or why it is none in a node's words.
    pub(super) fn judge(self) -> Result<Pubkey, ParamError> {
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
        fn no_text_panics(text in "\\PC{0,50}") {
            let _ = Pubkey::parse(&text);
        }
    }
}
