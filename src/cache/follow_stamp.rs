//! The stamps of answers that may be carried: the chain and the slot at which their accounts were read.
//!
//! A stamp is made for a node's answer if each write to its accounts is listed in a block. An answer without
//! a stamp lives by time and slots alone.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;

use super::derive::account::{AccountFacts, TokenProgram};
use crate::follow::{self, Bucket, FollowedChain, NodeVersion};
use crate::methods::{AccountEncoding, AccountForm, Pubkey, Slot};

/// The chain and slot at which an answer's accounts were read. They tell from where on the accounts must be
/// unchanged.
#[derive(Debug)]
pub struct FollowStamp {
    /// The number of the chain that was followed when the node was asked.
    pub chain: u64,
    /// The slot of the node's answer.
    pub read: Slot,
    /// True if the node may have shown data of a later slot at finalized.
    pub may_be_newer: bool,
    /// The highest slot of which the node may have shown data. The answer is carried once the chain has
    /// reached this slot.
    pub newest_data: Slot,
    /// True if the classic token program is known to own the account.
    pub is_token: bool,
    /// The buckets of all accounts of the answer.
    pub buckets: Box<[Bucket]>,
}

/// The input for the stamps of a node's answer that may be carried.
#[derive(Debug, Clone)]
pub(super) struct StampInput {
    pub(super) followed: Arc<FollowedChain>,
    /// The number of the chain that was followed when the node was asked.
    pub(super) chain: u64,
    /// The newest confirmed slot that is known after the answer.
    pub(super) confirmed: Slot,
}

impl FollowStamp {
    /// Returns this stamp for an account that the classic token program has proved to own.
    pub(super) fn of_token(&self) -> Self {
        Self { is_token: true, buckets: self.buckets.clone(), ..*self }
    }
}

/// Makes the stamps for the accounts of one answer.
#[derive(Debug, Clone)]
pub(super) struct Stamper {
    followed: Arc<FollowedChain>,
    chain: u64,
    read: Slot,
    may_be_newer: bool,
    newest_data: Slot,
}

impl Stamper {
    /// Creates the stamper of a node's answer with this context, which was asked for while `chain` was
    /// followed. `None` if answers of the node's version are never carried.
    ///
    /// Before Agave 4.1, a node's answer at finalized may show data of later slots than its own. These slots
    /// are final for the node, so they are far below the newest confirmed slot that is known after the
    /// answer.
    pub(super) fn new(input: &StampInput, context: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Context<'a> {
            #[serde(borrow)]
            api_version: Cow<'a, str>,
            slot: Slot,
        }
        let &StampInput { ref followed, chain, confirmed } = input;
        let Context { api_version, slot: read } = serde_json::from_slice(context).ok()?;
        let version = NodeVersion::parse(&api_version).filter(|version| version.is_followed())?;
        let may_be_newer = version < follow::EXACT_FINALIZED;
        let newest_data = if may_be_newer { read.max(confirmed) } else { read };
        Some(Self { followed: Arc::clone(followed), chain, read, may_be_newer, newest_data })
    }

    /// Returns the stamp of one account, which a node has shown in `form` with these facts. `None` if the
    /// account may change without being listed in a block.
    pub(super) fn account(
        &self,
        address: &Pubkey,
        form: AccountForm,
        facts: &AccountFacts,
    ) -> Option<Arc<FollowStamp>> {
        let is_listed = match facts {
            AccountFacts::Absent => true,
            AccountFacts::Present { owner: Some(owner), token, space: Some(space) } => {
                let is_shown_by_clock =
                    form.encoding == AccountEncoding::JsonParsed && *token == Some(TokenProgram::Token2022);
                !is_shown_by_clock && !follow::is_excluded_owner(owner, *space)
            }
            AccountFacts::Present { .. } => false,
        };
        let is_token = matches!(facts, AccountFacts::Present { token: Some(TokenProgram::Classic), .. });
        let is_listed = is_listed && !follow::is_excluded_address(address);
        is_listed.then(|| self.stamp(is_token, [self.followed.bucket(address)].into()))
    }

    /// Returns the stamp of a token balance. The answer does not say which program owns the account.
    pub(super) fn balance(&self, address: &Pubkey) -> Option<Arc<FollowStamp>> {
        let is_listed = !follow::is_excluded_address(address);
        is_listed.then(|| self.stamp(false, [self.followed.bucket(address)].into()))
    }

    /// Returns the stamp of a list that a node has shown. `stamps` are those of its accounts.
    pub(super) fn list<'a>(
        &self,
        stamps: impl Iterator<Item = Option<&'a Arc<FollowStamp>>>,
    ) -> Option<Arc<FollowStamp>> {
        of_list(self.read, stamps)
    }

    fn stamp(&self, is_token: bool, buckets: Box<[Bucket]>) -> Arc<FollowStamp> {
        let &Self { chain, read, may_be_newer, newest_data, .. } = self;
        Arc::new(FollowStamp { chain, read, may_be_newer, newest_data, is_token, buckets })
    }
}

/// Returns the stamp of a list whose accounts have these stamps and were all shown at `slot`. `None` if an
/// account has no stamp, or if the stamps are of several chains.
pub(super) fn of_list<'a>(
    slot: Slot,
    mut stamps: impl Iterator<Item = Option<&'a Arc<FollowStamp>>>,
) -> Option<Arc<FollowStamp>> {
    let first = stamps.next()??;
    let (chain, mut may_be_newer, mut newest_data) = (first.chain, first.may_be_newer, first.newest_data);
    let mut buckets = first.buckets.to_vec();
    for stamp in stamps {
        let stamp = stamp.filter(|stamp| stamp.chain == chain)?;
        may_be_newer |= stamp.may_be_newer;
        newest_data = newest_data.max(stamp.newest_data);
        buckets.extend_from_slice(&stamp.buckets);
    }
    let buckets = buckets.into();
    Some(Arc::new(FollowStamp { chain, read: slot, may_be_newer, newest_data, is_token: false, buckets }))
}
