//! The derivation of a block in one shape from a stored block in another.
//!
//! No instruction is read and no program is known. A node of a newer version may write members that are unknown
//! here. If one of them is in an object that must be parsed, nothing is derived and a node is asked. A block with
//! details `accounts` is derived only from one in jsonParsed, or with details `accounts`. The forms json and
//! base64 do not tell which accounts of a message are writable, because that depends on the keys that a node
//! reserves.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::object::{JsonObject, JsonPart, ParseDepth};
use crate::methods::{BlockDetails, BlockEncoding, BlockQuery};

/// The parameters of getBlock except slot and commitment, in the canonical form of a [`BlockQuery`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockShape {
    /// The level of detail of transactions.
    pub details: BlockDetails,
    /// The encoding of transactions. Has an effect for details `Full` only.
    pub encoding: BlockEncoding,
    /// True if rewards are included.
    pub rewards: bool,
    /// The highest transaction version that the caller reads. Has an effect for details `Full` and `Accounts`
    /// only.
    pub max_version: Option<u8>,
}

impl From<&BlockQuery> for BlockShape {
    fn from(query: &BlockQuery) -> Self {
        let BlockQuery { details, encoding, rewards, max_version, .. } = *query;
        Self { details, encoding, rewards, max_version }
    }
}

/// The pairs of details and encoding, ordered by the length of the block, shortest first.
const FORMS: [(BlockDetails, BlockEncoding); 8] = [
    (BlockDetails::None, BlockEncoding::Json),
    (BlockDetails::Signatures, BlockEncoding::Json),
    (BlockDetails::Accounts, BlockEncoding::Json),
    (BlockDetails::Full, BlockEncoding::Base64),
    (BlockDetails::Full, BlockEncoding::Base58),
    (BlockDetails::Full, BlockEncoding::Binary),
    (BlockDetails::Full, BlockEncoding::Json),
    (BlockDetails::Full, BlockEncoding::JsonParsed),
];

/// The values of `max_version` that callers usually send. A stored block with the caller's own value is tried
/// first.
const VERSIONS: [Option<u8>; 3] = [Some(0), None, Some(1)];

/// The known members of a block.
const BLOCK: [&str; 9] = [
    "blockHeight",
    "blockTime",
    "blockhash",
    "numRewardPartitions",
    "parentSlot",
    "previousBlockhash",
    "rewards",
    "signatures",
    "transactions",
];

/// The known members of a transaction.
const TRANSACTION: [&str; 3] = ["meta", "transaction", "version"];

/// The known members of the field `transaction` of a block's transaction, in encoding `json` or `jsonParsed`.
const INNER: [&str; 3] = ["accountKeys", "message", "signatures"];

/// The known members of a message in jsonParsed. The last member came with transaction version 1.
const MESSAGE: [&str; 5] =
    ["accountKeys", "addressTableLookups", "instructions", "recentBlockhash", "transactionConfig"];

/// The members of `meta` that nodes include in blocks with details `accounts`, besides `rewards`.
const SHORT_META: [&str; 7] =
    ["err", "fee", "postBalances", "postTokenBalances", "preBalances", "preTokenBalances", "status"];

/// The members of `meta` that nodes omit from blocks with details `accounts`. A member that is neither here
/// nor in [`SHORT_META`] is unknown: a newer node may include it for details `accounts`.
const LONG_META: [&str; 5] =
    ["computeUnitsConsumed", "costUnits", "innerInstructions", "logMessages", "returnData"];

/// Further known members of `meta`: `rewards`, and one that all encodings except jsonParsed include.
const OTHER_META: [&str; 2] = ["loadedAddresses", "rewards"];

const SIGNATURE_BYTES: usize = 64;

/// The change to a stored block's transactions that turns the block into the shape that a caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransactionChange {
    /// Removes the transactions.
    Drop,
    /// Keeps the list of signatures, which the stored block holds in place of transactions.
    Keep,
    /// Replaces each transaction in JSON by its first signature.
    Signatures,
    /// Replaces each transaction in base64 by its first signature, in base58.
    WireSignatures,
    /// Reduces each transaction to its accounts and the members of `meta` in [`SHORT_META`], and then does
    /// the same as [`Self::Trim`].
    Accounts,
    /// Removes rewards and version from each transaction, if they were not asked for.
    Trim,
}

impl TransactionChange {
    /// Returns the change that turns a block in the shape `stored` into the shape `asked`. `None` if `stored`
    /// lacks a part of `asked`, or if the change would take too long.
    fn between(stored: BlockShape, asked: BlockShape) -> Option<Self> {
        use BlockDetails::{Accounts, Full, None as Nothing, Signatures};

        if asked.rewards && !stored.rewards {
            return None;
        }
        let change = match (stored.details, asked.details) {
            (_, Nothing) => Self::Drop,
            (Signatures, Signatures) => Self::Keep,
            (Accounts, Signatures) => Self::Signatures,
            (Full, Signatures) => match stored.encoding {
                BlockEncoding::Json | BlockEncoding::JsonParsed => Self::Signatures,
                BlockEncoding::Base64 => Self::WireSignatures,
                // Decoding base58 takes time that grows with the square of a transaction's length.
                BlockEncoding::Base58 | BlockEncoding::Binary => return None,
            },
            (Full, Accounts) if stored.encoding == BlockEncoding::JsonParsed => Self::Accounts,
            (Accounts, Accounts) => Self::Trim,
            (Full, Full) if stored.encoding == asked.encoding => Self::Trim,
            _ => return None,
        };
        // The result depends on `max_version` only if it contains more of a transaction than the signature.
        let versioned = matches!(change, Self::Accounts | Self::Trim);
        let fits = asked.max_version == stored.max_version || asked.max_version.is_none();
        (fits || !versioned).then_some(change)
    }

    /// Returns the depth to which the stored answer must be parsed for this change.
    const fn open(self) -> ParseDepth {
        const TRIM: ParseDepth =
            ParseDepth::Each(&ParseDepth::Members(&[("meta", ParseDepth::Members(&[]))]));
        const SIGNATURES: ParseDepth = ParseDepth::Each(&ParseDepth::Members(&[(
            "transaction",
            ParseDepth::Members(&[("signatures", ParseDepth::Each(&ParseDepth::Not))]),
        )]));
        const WIRE: ParseDepth =
            ParseDepth::Each(&ParseDepth::Members(&[("transaction", ParseDepth::Each(&ParseDepth::Not))]));
        const ACCOUNTS: ParseDepth = ParseDepth::Each(&ParseDepth::Members(&[
            ("meta", ParseDepth::Members(&[])),
            ("transaction", ParseDepth::Members(&[("message", ParseDepth::Members(&[]))])),
        ]));
        match self {
            Self::Drop | Self::Keep => ParseDepth::Members(&[]),
            Self::Signatures => ParseDepth::Members(&[("transactions", SIGNATURES)]),
            Self::WireSignatures => ParseDepth::Members(&[("transactions", WIRE)]),
            Self::Accounts => ParseDepth::Members(&[("transactions", ACCOUNTS)]),
            Self::Trim => ParseDepth::Members(&[("transactions", TRIM)]),
        }
    }
}

/// Returns true if an answer in the shape `asked` can be made from one in the shape `stored`.
///
/// If `asked` has no `max_version`, [`reshape`] also checks that the block has legacy transactions only.
pub fn derivable(stored: BlockShape, asked: BlockShape) -> bool {
    TransactionChange::between(stored, asked).is_some()
}

/// Returns the other shapes from which `asked` can be derived, the cheapest first.
pub fn sources(asked: BlockShape) -> impl Iterator<Item = BlockShape> {
    FORMS
        .into_iter()
        .flat_map(move |(details, encoding)| {
            let versions: Vec<_> = match details {
                BlockDetails::None | BlockDetails::Signatures => vec![None],
                BlockDetails::Accounts | BlockDetails::Full => {
                    let others = VERSIONS.into_iter().filter(|version| *version != asked.max_version);
                    std::iter::once(asked.max_version).chain(others).collect()
                }
            };
            versions.into_iter().map(move |max_version| (details, encoding, max_version))
        })
        .flat_map(|(details, encoding, max_version)| {
            [false, true].map(|rewards| BlockShape { details, encoding, rewards, max_version })
        })
        .filter(move |stored| *stored != asked && derivable(*stored, asked))
}

/// Returns the answer in the shape `asked`, made from `result`, the answer in the shape `stored`. The bytes are
/// those that the same node would write.
///
/// `None` if the answer cannot be derived, if `result` is `null`, or if it is not in the format that nodes write.
/// In that case a node is asked. The derivation takes one pass over the text and keeps the order of members.
pub fn reshape(result: &Bytes, stored: BlockShape, asked: BlockShape) -> Option<Bytes> {
    let change = TransactionChange::between(stored, asked)?;
    let mut block = JsonPart::read(result, change.open())?;
    let members = block.as_object()?;
    members.get("blockhash")?;
    members.only(&[&BLOCK])?;
    if stored.rewards && !asked.rewards {
        members.remove("rewards")?;
    }
    match change {
        TransactionChange::Keep => {
            members.get("signatures")?;
        }
        TransactionChange::Drop => match stored.details {
            BlockDetails::None => {}
            BlockDetails::Signatures => drop(members.remove("signatures")?),
            BlockDetails::Accounts | BlockDetails::Full => drop(members.remove("transactions")?),
        },
        TransactionChange::Signatures | TransactionChange::WireSignatures => {
            let first =
                if change == TransactionChange::Signatures { first_signature } else { first_wire_signature };
            let transactions = members.get("transactions")?.as_list()?;
            let signatures = transactions.iter_mut().map(first).collect::<Option<_>>()?;
            // "signatures" and "transactions" are neighbours in the alphabet and in the node's own type, so
            // the order of members stays.
            members.replace("transactions", "signatures", JsonPart::List(signatures))?;
        }
        TransactionChange::Accounts | TransactionChange::Trim => {
            for transaction in members.get("transactions")?.as_list()? {
                let transaction = transaction.as_object()?;
                transaction.only(&[&TRANSACTION])?;
                if change == TransactionChange::Accounts {
                    shorten(transaction)?;
                }
                trim(transaction, stored, asked)?;
            }
        }
    }
    Some(block.write())
}

/// Returns the first signature of a transaction in encoding json or jsonParsed, or in details accounts.
fn first_signature<'a>(transaction: &mut JsonPart<'a>) -> Option<JsonPart<'a>> {
    let transaction = transaction.as_object()?;
    transaction.only(&[&TRANSACTION])?;
    let inner = transaction.get("transaction")?.as_object()?;
    inner.only(&[&INNER])?;
    let signatures = inner.get("signatures")?.as_list()?;
    let first = signatures.first_mut()?;
    first.as_text()?.starts_with('"').then(|| std::mem::replace(first, JsonPart::NULL))
}

/// Returns the first signature of a transaction in base64. The signature follows the number of signatures,
/// which is one byte. `None` for a transaction of version 1, whose first byte is above 127.
fn first_wire_signature<'a>(transaction: &mut JsonPart<'a>) -> Option<JsonPart<'a>> {
    /// The number of base64 characters, in whole groups of four, that encode the number of signatures and the
    /// first signature.
    const CHARACTERS: usize = (1 + SIGNATURE_BYTES).div_ceil(3) * 4;

    let transaction = transaction.as_object()?;
    transaction.only(&[&TRANSACTION])?;
    let pair = transaction.get("transaction")?.as_list()?;
    let [wire, encoding] = pair.as_slice() else { return None };
    if encoding.as_text()? != "\"base64\"" {
        return None;
    }
    let head = wire.as_text()?.strip_prefix('"')?.get(..CHARACTERS)?;
    let mut bytes = [0; CHARACTERS / 4 * 3];
    STANDARD.decode_slice(head, &mut bytes).ok()?;
    let (count, rest) = bytes.split_first()?;
    let signature = rest.first_chunk()?;
    if !(1..=127).contains(count) {
        return None;
    }
    Some(JsonPart::Text(Cow::Owned(quoted_base58(signature)?)))
}

/// Returns a signature in base58, with quotes.
fn quoted_base58(signature: &[u8; SIGNATURE_BYTES]) -> Option<String> {
    let mut text = [0; five8::BASE58_ENCODED_64_MAX_LEN];
    let length = five8::encode_64(signature, &mut text);
    let text = str::from_utf8(&text[..usize::from(length)]).ok()?;
    Some(format!("\"{text}\""))
}

/// Reduces a transaction in encoding jsonParsed to one in details accounts. A transaction without meta has none in
/// either form.
fn shorten(transaction: &mut JsonObject) -> Option<()> {
    let inner = transaction.get("transaction")?.as_object()?;
    let message = inner.get("message")?.as_object()?;
    message.only(&[&MESSAGE])?;
    let account_keys = message.remove("accountKeys")?;
    inner.replace("message", "accountKeys", account_keys)?;
    if inner.names().count() != 2 || !inner.has("signatures") {
        return None;
    }
    if let JsonPart::Object(meta) = transaction.get("meta")? {
        meta.only(&[&SHORT_META, &["rewards"], &LONG_META])?;
        if !SHORT_META.iter().all(|name| meta.has(name)) {
            return None;
        }
        meta.retain(|name| name == "rewards" || SHORT_META.contains(&name));
    }
    Some(())
}

/// Removes rewards and version from a transaction, if they were not asked for.
fn trim(transaction: &mut JsonObject, stored: BlockShape, asked: BlockShape) -> Option<()> {
    let meta = transaction.get("meta")?;
    let has_meta = matches!(meta, JsonPart::Object(_));
    if let JsonPart::Object(meta) = meta {
        meta.only(&[&SHORT_META, &LONG_META, &OTHER_META])?;
        match asked.details {
            _ if asked.rewards => {}
            BlockDetails::Full => *meta.get("rewards")? = JsonPart::NULL,
            // If the stored block has no rewards, the member is absent or `null`.
            _ => drop(meta.remove("rewards")),
        }
    }
    if stored.max_version.is_some() && asked.max_version.is_none() {
        match transaction.remove("version") {
            Some(version) if version.as_text() == Some("\"legacy\"") => {}
            // A transaction so old that it has no meta is legacy, and nodes write no version for it.
            None if !has_meta => {}
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
