//! Derivations: answers made from a stored entry of another form, byte for byte as a node would write them.
//!
//! Cheap forms are written again for each caller: account forms and shorter lists of samples. Some forms take a pass
//! over a long text: a block in another shape, and one vote account. Those forms are made once, in a fetch that callers
//! share, and stored. An assembled list is stored, too, so that the next answer is not at a lower slot.

pub mod account;
mod base58;
pub mod block;
pub mod list;
mod object;
#[cfg(test)]
pub(crate) mod tests;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::entry::Payload;
use crate::methods::Pubkey;
use crate::node::Contextual;
use crate::node::shape::{elements, member};
use object::{JsonPart, ParseDepth};

pub(super) enum Derivation {
    VoteAccount(Pubkey),
    Leader(Pubkey),
    Value,
    SupplyAlone,
    Block(block::BlockShape),
    BlockTime,
    Transaction(block::SingleTransaction),
    Rewritten(block::BlockShape),
}

impl Derivation {
    /// Makes the answer from `text`. `of_nodes` is as for [`block::reshape`].
    pub(super) fn make(&self, text: &Bytes, of_nodes: Option<block::OwnHeight>) -> Option<Payload> {
        match self {
            Self::VoteAccount(pubkey) => {
                vote_account(text, pubkey).map(|votes| Payload::Result(votes.into()))
            }
            Self::Leader(leader) => text.starts_with(b"{").then(|| {
                let slots = member::<&RawValue>(text, &leader.to_string());
                let text = slots.map(|slots| format!(r#"{{"{leader}":{}}}"#, slots.get()));
                Payload::Result(Bytes::from(text.unwrap_or_else(|| "{}".to_owned())).into())
            }),
            Self::Value => Contextual::split(text).map(|of| Payload::Result(of.value.into())),
            Self::SupplyAlone => supply_alone(text).map(|supply| Payload::Result(supply.into())),
            Self::Block(asked) => block::reshape(text, *asked, of_nodes),
            Self::Transaction(wanted) => wanted.make(text, of_nodes),
            Self::Rewritten(asked) => block::rewritten(text, *asked, of_nodes),
            Self::BlockTime => {
                let time: i64 = member(text, "blockTime")?;
                Some(Payload::Result(Bytes::from(time.to_string()).into()))
            }
        }
    }
}

/// The depth to which a list is parsed: `{"current":[{…}],"delinquent":[{…}]}`.
const VOTE_LISTS: ParseDepth = {
    const LIST: ParseDepth = ParseDepth::Each(&ParseDepth::Members(&[]));
    ParseDepth::Members(&[("current", LIST), ("delinquent", LIST)])
};

/// Returns `result`, the list of all vote accounts, reduced to the vote account `vote_pubkey`. The members
/// `current` and `delinquent` may both be empty, as in a node's answer.
/// The call for one vote account has the same parameters as the call for all, and `votePubkey` besides.
///
/// `None` if `result` is not in the format that nodes write. In that case a node is asked.
pub fn vote_account(result: &Bytes, vote_pubkey: &Pubkey) -> Option<Bytes> {
    let vote_pubkey = format!("\"{vote_pubkey}\"");
    let mut lists = JsonPart::read(result, VOTE_LISTS)?;
    // Unknown members of an account are kept. An unknown member beside the lists may concern all accounts.
    lists.as_object()?.only(&[&["current", "delinquent"]])?;
    for list in ["current", "delinquent"] {
        let list = lists.as_object()?.get(list)?.as_list()?;
        let mut found = Vec::new();
        for mut account in std::mem::take(list) {
            if account.as_object()?.get("votePubkey")?.as_text()? == vote_pubkey {
                found.push(account);
            }
        }
        *list = found;
    }
    Some(lists.write())
}

/// Returns `result`, a supply with its list of accounts, with an empty list. `None` if it has none.
fn supply_alone(result: &Bytes) -> Option<Bytes> {
    const LIST: &str = "nonCirculatingAccounts";
    let mut supply = JsonPart::read(result, ParseDepth::Members(&[("value", ParseDepth::Members(&[]))]))?;
    let value = supply.as_object()?.get("value")?.as_object()?;
    value.replace(LIST, LIST, JsonPart::List(Vec::new()))?;
    Some(supply.write())
}

/// Returns the answer to getBalance for an account with this text, which may be `null`. `context` is that of the
/// account. `None` if the text is not an account.
pub fn lamports(context: &[u8], account: &[u8]) -> Option<Bytes> {
    let lamports = if account == b"null" { 0 } else { member::<u64>(account, "lamports")? };
    Some([br#"{"context":"#, context, br#","value":"#, lamports.to_string().as_bytes(), b"}"].concat().into())
}

/// The part of a stored list that answers a call.
pub enum Picked {
    /// This number of its first elements.
    First(usize),
    /// The elements at these places.
    At(Vec<usize>),
}

impl Picked {
    /// Returns the part of the list `all`. `None` if it is no list, or lacks one of the places.
    pub fn of(&self, all: &Bytes) -> Option<Bytes> {
        let elements = elements(all)?;
        let picked = match self {
            Self::First(limit) => elements.iter().take(*limit).collect(),
            Self::At(places) => places.iter().map(|at| elements.get(*at)).collect::<Option<Vec<_>>>()?,
        };
        let mut list = BytesMut::from(&b"["[..]);
        for (i, element) in picked.into_iter().enumerate() {
            if i > 0 {
                list.extend_from_slice(b",");
            }
            list.extend_from_slice(element);
        }
        list.extend_from_slice(b"]");
        Some(list.freeze())
    }
}
