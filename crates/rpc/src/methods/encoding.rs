//! The encodings in which a node writes account data and transactions, and the slice of account data.
//!
//! The order of [`AccountEncoding`]'s variants is the order in which a node's error text lists them.

use serde::Deserialize;

/// Most bytes that a node writes in base58: more is refused with [`BASE58_TOO_LONG`].
pub const BASE58_MAX: usize = 128;
/// The code of that refusal, which nodes use for nothing else that depends on an account.
pub const BASE58_TOO_LONG_CODE: i32 = -32_600;
/// Its words.
pub const BASE58_TOO_LONG: &str =
    "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding.";

/// How account data is written in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AccountEncoding {
    /// The legacy form: a bare base58 string, at most 128 bytes. getAccountInfo's default.
    Binary,
    /// `[string, "base58"]`, at most 128 bytes.
    Base58,
    /// `[string, "base64"]`. getMultipleAccounts' default.
    Base64,
    /// A parsed object where the node knows the owner program, else the base64 pair.
    JsonParsed,
    /// `[string, "base64+zstd"]`.
    #[serde(rename = "base64+zstd")]
    Base64Zstd,
}

impl AccountEncoding {
    /// Every encoding, in the order of its variants.
    pub const ALL: [Self; 5] = [Self::Binary, Self::Base58, Self::Base64, Self::JsonParsed, Self::Base64Zstd];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::Base58 => "base58",
            Self::Base64 => "base64",
            Self::Base64Zstd => "base64+zstd",
            Self::JsonParsed => "jsonParsed",
        }
    }

    /// Reads the exact wire name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|encoding| encoding.as_str() == name)
    }
}

/// A part of an account's data, in bytes. Both members may be up to 2^64 − 1: a node clips, it never refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataSlice {
    /// First byte of the slice.
    pub offset: u64,
    /// Number of bytes at most.
    pub length: u64,
}

/// The form in which account data is asked for: an encoding, and a slice where the encoding honours one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccountForm {
    /// How the data is written.
    pub encoding: AccountEncoding,
    /// The part of the data; `None` is all of it.
    pub slice: Option<DataSlice>,
}

/// How transactions are written in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BlockEncoding {
    /// JSON with compiled instructions. The default.
    Json,
    /// JSON with instructions parsed where the node knows the program.
    JsonParsed,
    /// `[string, "base58"]`.
    Base58,
    /// `[string, "base64"]`.
    Base64,
    /// The legacy form: a bare base58 string.
    Binary,
}

impl BlockEncoding {
    /// Every encoding, in the order of its variants.
    pub const ALL: [Self; 5] = [Self::Json, Self::JsonParsed, Self::Base58, Self::Base64, Self::Binary];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::JsonParsed => "jsonParsed",
            Self::Base58 => "base58",
            Self::Base64 => "base64",
            Self::Binary => "binary",
        }
    }
}

/// How much of its transactions a block answer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BlockDetails {
    /// Whole transactions with their meta. The default.
    Full,
    /// Signatures, annotated account keys and a short meta.
    Accounts,
    /// The first signature of each transaction.
    Signatures,
    /// No transactions at all.
    None,
}

impl BlockDetails {
    /// Every level of detail, in the order of its variants.
    pub const ALL: [Self; 4] = [Self::Full, Self::Accounts, Self::Signatures, Self::None];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Accounts => "accounts",
            Self::Signatures => "signatures",
            Self::None => "none",
        }
    }
}
