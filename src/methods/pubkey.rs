//! A 32-byte account address, read from base58 the way a node reads it.

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
