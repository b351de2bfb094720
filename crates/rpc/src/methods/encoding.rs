//! The encodings of account data and transactions, and the slice of account data.
//!
//! The variants of [`AccountEncoding`] have the order in which a node's error text lists them.

use serde::Deserialize;

/// The maximum number of bytes that a node writes in base58. A node refuses longer data with [`BASE58_TOO_LONG`].
pub const BASE58_MAX: usize = 128;
/// The error code for data that is too long for base58. Nodes use this code for no other error of an account.
pub const BASE58_TOO_LONG_CODE: i32 = -32_600;
/// The error message for data that is too long for base58.
pub const BASE58_TOO_LONG: &str =
    "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding.";

named! {
    /// The encoding of account data.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub enum AccountEncoding {
        /// The legacy form: a bare base58 string, for data of at most 128 bytes. The default of getAccountInfo.
        Binary = "binary",
        /// The form `[string, "base58"]`, for data of at most 128 bytes.
        Base58 = "base58",
        /// The form `[string, "base64"]`. The default of getMultipleAccounts.
        Base64 = "base64",
        /// A parsed object if the node knows the owner program, otherwise the form `[string, "base64"]`.
        JsonParsed = "jsonParsed",
        /// The form `[string, "base64+zstd"]`.
        #[serde(rename = "base64+zstd")]
        Base64Zstd = "base64+zstd",
    }
}

/// A part of an account's data, in bytes. All values are valid, because a node clips the slice to the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataSlice {
    /// The first byte of the slice.
    pub offset: u64,
    /// The maximum number of bytes.
    pub length: u64,
}

/// The requested form of account data: an encoding, and optionally a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccountForm {
    /// The encoding of the data.
    pub encoding: AccountEncoding,
    /// The part of the data. `None` means all of it.
    pub slice: Option<DataSlice>,
}

named! {
    /// The encoding of transactions in a block.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub enum BlockEncoding {
        /// JSON with compiled instructions. The default of getBlock.
        Json = "json",
        /// JSON with parsed instructions of the programs that the node knows.
        JsonParsed = "jsonParsed",
        /// The form `[string, "base58"]`.
        Base58 = "base58",
        /// The form `[string, "base64"]`.
        Base64 = "base64",
        /// The legacy form: a bare base58 string.
        Binary = "binary",
    }
}

named! {
    /// The level of detail of the transactions in a block.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub enum BlockDetails {
        /// Whole transactions with their meta. The default of getBlock.
        Full = "full",
        /// Signatures, annotated account keys and a short meta.
        Accounts = "accounts",
        /// The first signature of each transaction.
        Signatures = "signatures",
        /// No transactions at all.
        None = "none",
    }
}
