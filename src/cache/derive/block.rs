//! The derivation of a block in another shape from one full block in base64, and of a shorter block in jsonParsed from
//! a full one.
//!
//! The source is base64, because it is the shortest form that has everything, and because a cut or changed transaction
//! would go unnoticed in `json`. The bytes are those that Agave 4.0 writes, except where the block shows that its node
//! writes otherwise. No program is known, so jsonParsed is made from no other encoding. A node of a newer version may
//! write members that are unknown here. If one of them is in an object that must be parsed, nothing is derived and a node
//! is asked in the caller's words.

mod height;
mod single;
mod transaction;

use std::borrow::Cow;

use bytes::Bytes;

use super::super::entry::Payload;
use super::object::{JsonObject, JsonPart, ParseDepth};
use crate::methods::{BlockDetails, BlockEncoding, BlockQuery, Signature, TransactionQuery};
use crate::node::code;
use crate::node::shape::member;
pub use height::OwnHeight;
pub use single::{SingleTransaction, TransactionPlace, places, rewritten};
use transaction::{DecodedTransaction, LoadedAddresses};

/// The parameters of getBlock except slot and commitment, in the canonical form of a [`BlockQuery`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockShape {
    pub details: BlockDetails,
    /// The encoding of transactions. Has an effect for details `Full` only.
    pub encoding: BlockEncoding,
    pub rewards: bool,
    /// The highest transaction version that the caller reads. Has an effect for details `Full` and `Accounts` only.
    pub max_version: Option<u8>,
}

impl From<&BlockQuery> for BlockShape {
    fn from(query: &BlockQuery) -> Self {
        let BlockQuery { details, encoding, rewards, max_version, .. } = *query;
        Self { details, encoding, rewards, max_version }
    }
}

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

const TRANSACTION: [&str; 3] = ["meta", "transaction", "version"];

/// The members of `meta` that nodes include in blocks with details `accounts`, besides `rewards`.
const SHORT_META: [&str; 7] =
    ["err", "fee", "postBalances", "postTokenBalances", "preBalances", "preTokenBalances", "status"];

/// The other known members of `meta`. A newer node may include an unknown member for details `accounts`.
const LONG_META: [&str; 7] = [
    "computeUnitsConsumed",
    "costUnits",
    "innerInstructions",
    "loadedAddresses",
    "logMessages",
    "returnData",
    "rewards",
];

const TRIM: ParseDepth = ParseDepth::Members(&[("meta", ParseDepth::Members(&[]))]);
/// The depth to which a transaction in base64 is parsed.
const WIRE: ParseDepth = ParseDepth::Members(&[
    ("meta", ParseDepth::Members(&[])),
    ("transaction", ParseDepth::Each(&ParseDepth::Not)),
]);

impl BlockShape {
    /// The shape from which every shape but jsonParsed is made. Its rewards are few, except at the beginning of an epoch.
    pub const BASE64: Self = Self {
        details: BlockDetails::Full,
        encoding: BlockEncoding::Base64,
        rewards: true,
        max_version: Some(0),
    };

    /// Returns the shape of a block that writes its transactions as `query` asks for one.
    pub fn of_transactions(query: &TransactionQuery) -> Self {
        let TransactionQuery { encoding, max_version, .. } = *query;
        Self { details: BlockDetails::Full, encoding, rewards: true, max_version }
    }

    pub fn source(self) -> Option<Self> {
        let source = match (self.details, self.encoding) {
            (BlockDetails::Full, BlockEncoding::JsonParsed) => {
                Self { encoding: BlockEncoding::JsonParsed, ..Self::BASE64 }
            }
            _ => Self::BASE64,
        };
        (source != self).then_some(source)
    }

    /// Returns the shape in which a node is asked first, if it is not this shape.
    pub fn fetched_source(self) -> Option<Self> {
        let is_nearly_as_long = match self.details {
            BlockDetails::Full | BlockDetails::Accounts => self.encoding != BlockEncoding::JsonParsed,
            BlockDetails::Signatures | BlockDetails::None => false,
        };
        self.source().filter(|_| is_nearly_as_long)
    }

    /// Returns the shapes in which blocks are usually stored.
    pub fn usual() -> impl Iterator<Item = Self> {
        use BlockDetails::{Full, None as Nothing, Signatures};
        let short =
            |details| Self { details, encoding: BlockEncoding::Json, rewards: true, max_version: None };
        let parsed = Self { details: Full, encoding: BlockEncoding::JsonParsed, ..Self::BASE64 };
        let shapes = [short(Nothing), short(Signatures), Self::BASE64, parsed];
        shapes.into_iter().flat_map(|shape| [false, true].map(|rewards| Self { rewards, ..shape }))
    }

    /// Returns the `stackHeight` that is written into this shape when it is made from `source`. `None` if it is unknown, or if
    /// this shape has none that `source` lacks.
    fn height(self, source: &[u8], of_nodes: Option<OwnHeight>) -> Option<OwnHeight> {
        let is_written = (self.details, self.encoding) == (BlockDetails::Full, BlockEncoding::Json);
        if is_written { OwnHeight::of_block(source, of_nodes) } else { None }
    }

    const fn depth(self) -> ParseDepth {
        match (self.details, self.encoding) {
            (BlockDetails::None, _) => ParseDepth::Members(&[]),
            (BlockDetails::Full, BlockEncoding::JsonParsed) => {
                ParseDepth::Members(&[("transactions", ParseDepth::Each(&TRIM))])
            }
            _ => ParseDepth::Members(&[("transactions", ParseDepth::Each(&WIRE))]),
        }
    }
}

/// Returns the answer in the shape `asked`, made from `source`, the result in the shape [`BlockShape::source`]. It is an
/// error if the caller does not accept the version of a transaction.
///
/// `None` if the answer cannot be derived, if `source` is `null`, or if it is not in the format that nodes write.
/// In that case a node is asked. The derivation takes one pass over the text and keeps the order of members. `of_nodes` is
/// what the nodes that may have sent `source` write where it does not tell.
pub fn reshape(source: &Bytes, asked: BlockShape, of_nodes: Option<OwnHeight>) -> Option<Payload> {
    let height = asked.height(source, of_nodes);
    let mut block = JsonPart::read(source, asked.depth())?;
    let members = block.as_object()?;
    members.get("blockhash")?;
    members.only(&[&BLOCK])?;
    if !asked.rewards {
        members.remove("rewards")?;
    }
    match asked.details {
        BlockDetails::None => drop(members.remove("transactions")?),
        BlockDetails::Signatures => {
            let transactions = members.get("transactions")?.as_list()?;
            let text = |signature| JsonPart::Text(Cow::Owned(format!("\"{signature}\"")));
            let first = |transaction| first_signature(transaction).map(text);
            let signatures = transactions.iter_mut().map(first).collect::<Option<_>>()?;
            // "signatures" and "transactions" are neighbours in the alphabet and in the node's own type, so
            // the order of members stays.
            members.replace("transactions", "signatures", JsonPart::List(signatures))?;
        }
        BlockDetails::Accounts | BlockDetails::Full => {
            for transaction in members.get("transactions")?.as_list()? {
                if let Err(version) = rewrite(transaction.as_object()?, asked, height)? {
                    return Some(unsupported(version));
                }
            }
        }
    }
    Some(Payload::Result(block.write().into()))
}

/// Returns a node's error about a transaction of a version that the caller does not accept.
fn unsupported(version: u8) -> Payload {
    let code = code::UNSUPPORTED_TRANSACTION_VERSION;
    let body = format!(
        "{{\"code\":{code},\"message\":\"Transaction version ({version}) is not supported by the requesting client. Please \
         try the request again with the following configuration parameter: \\\"maxSupportedTransactionVersion\\\": \
         {version}\"}}"
    );
    Payload::Error { code, body: body.into() }
}

/// Returns the first signature of a transaction in base64 or, if the transaction is left as text, in jsonParsed.
fn first_signature(transaction: &mut JsonPart) -> Option<Signature> {
    let transaction = transaction.as_object()?;
    transaction.only(&[&TRANSACTION])?;
    let part = transaction.get("transaction")?;
    if let Some(parsed) = part.as_text() {
        let signatures: Vec<&str> = member(parsed.as_bytes(), "signatures")?;
        return Signature::parse(signatures.first()?).ok();
    }
    DecodedTransaction::read(&transaction::wire(part)?)?.first_signature()
}

/// Rewrites a transaction of a full block in the shape `asked`. The error is the transaction's version, which the caller
/// does not accept.
fn rewrite(
    transaction: &mut JsonObject,
    asked: BlockShape,
    height: Option<OwnHeight>,
) -> Option<Result<(), u8>> {
    transaction.only(&[&TRANSACTION])?;
    let has_meta = matches!(transaction.get("meta")?, JsonPart::Object(_));
    let version = match transaction.get("version") {
        Some(version) => match version.as_text()? {
            "\"legacy\"" => None,
            "0" => Some(0),
            _ => return None,
        },
        // A transaction so old that it has no meta is legacy, and nodes write no version for it.
        None if !has_meta => None,
        None => return None,
    };
    if asked.max_version.is_none() {
        if let Some(version) = version {
            return Some(Err(version));
        }
        drop(transaction.remove("version"));
    }
    let is_short = asked.details == BlockDetails::Accounts;
    let mut loaded = LoadedAddresses::default();
    if let JsonPart::Object(meta) = transaction.get("meta")? {
        meta.only(&[&SHORT_META, &LONG_META])?;
        if is_short {
            loaded = LoadedAddresses::read(meta.get("loadedAddresses")?.as_text()?)?;
            if !SHORT_META.iter().all(|name| meta.has(name)) {
                return None;
            }
            meta.retain(|name| SHORT_META.contains(&name) || (name == "rewards" && asked.rewards));
        } else if !asked.rewards {
            *meta.get("rewards")? = JsonPart::NULL;
        }
    }
    if is_short || !matches!(asked.encoding, BlockEncoding::Base64 | BlockEncoding::JsonParsed) {
        let part = transaction.get("transaction")?;
        let wire = transaction::wire(part)?;
        let decoded = DecodedTransaction::read(&wire).filter(|decoded| decoded.version() == version)?;
        let text =
            if is_short { decoded.accounts(&loaded)? } else { decoded.encoded(asked.encoding, height)? };
        *part = JsonPart::Text(Cow::Owned(text));
    }
    Some(Ok(()))
}

#[cfg(test)]
mod tests;
