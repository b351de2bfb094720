//! The stamps of answers about accounts: the slot at which the accounts were read, and the run of blocks that the
//! gateway followed then, called the followed chain.
//!
//! A stamp allows an answer to be carried, that is, served at a later slot because no block has written its
//! accounts since. A node's answer gets a stamp only if blocks list each write to its accounts.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::Instant;

use super::derive::account::{AccountFacts, TokenProgram};
use crate::follow::{self, Bucket, FollowedChain, NodeVersion};
use crate::methods::{AccountEncoding, AccountForm, Pubkey, Slot};
use crate::node::shape::member;

/// The followed chain and the slot at which an answer's accounts were read. The answer may be served at a
/// later slot if no later block of that chain has written these accounts.
#[derive(Debug)]
pub struct FollowStamp {
    /// The unique number of the block chain that the gateway followed when the node was asked.
    pub chain: u64,
    pub read: Slot,
    /// The moment at which the node was asked. Unlike the moment in the entry, carrying does not move it.
    pub read_at: Instant,
    /// True if the node may have shown data of a later slot than `read`, as old nodes do at finalized.
    pub may_be_newer: bool,
    /// The highest slot whose data the node may have shown. The answer is not served at other slots before
    /// the followed chain has reached this slot.
    pub newest_data: Slot,
    /// True if the classic token program is known to own the answer's account. False for lists.
    pub is_token: bool,
    /// The buckets of the answer's accounts. A bucket is the index under which the followed chain records the slot
    /// of an account's last write.
    pub buckets: Box<[Bucket]>,
}

/// The data from which the [`FollowStamp`]s of a node's answer are made.
#[derive(Debug, Clone)]
pub(super) struct StampInput {
    pub(super) followed: Arc<FollowedChain>,
    /// The unique number of the block chain that the gateway followed when the node was asked.
    pub(super) chain: u64,
    /// The newest confirmed slot that was known after the answer had arrived.
    pub(super) confirmed: Slot,
    pub(super) read_at: Instant,
}

impl FollowStamp {
    /// Returns this stamp for an account that is now known to belong to the classic token program.
    pub(super) fn of_token(&self) -> Self {
        Self { is_token: true, buckets: self.buckets.clone(), ..*self }
    }
}

/// Makes the [`FollowStamp`]s for the accounts of one answer.
#[derive(Debug)]
pub(super) struct Stamper {
    followed: Arc<FollowedChain>,
    answer: FollowStamp,
}

impl Stamper {
    /// Creates a [`Stamper`] for a node's answer with the JSON object `context`. `None` if `context` is
    /// unreadable, or if answers of the node's version are never served at later slots.
    ///
    /// Before Agave 4.1, a node's answer at finalized may show data of later slots than its own. These slots are final
    /// for the node, so they are far below the newest confirmed slot that is known after the answer.
    pub(super) fn new(input: &StampInput, context: &[u8]) -> Option<Self> {
        let &StampInput { ref followed, chain, confirmed, read_at } = input;
        let read: Slot = member(context, "slot")?;
        let version = NodeVersion::parse_followed(&member::<Cow<'_, str>>(context, "apiVersion")?)?;
        let may_be_newer = version < follow::EXACT_FINALIZED;
        let newest_data = if may_be_newer { read.max(confirmed) } else { read };
        let (is_token, buckets) = (false, Box::default());
        let answer = FollowStamp { chain, read, read_at, may_be_newer, newest_data, is_token, buckets };
        Some(Self { followed: Arc::clone(followed), answer })
    }

    /// Returns true if the answer may show data of a later slot than its own.
    pub(super) fn may_be_newer(&self) -> bool {
        self.answer.may_be_newer
    }

    /// Returns the [`FollowStamp`] of one account, which a node has returned in `form` with these `facts`.
    /// `None` if the account may change although no block lists a write to it.
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
        is_listed.then(|| self.stamp(is_token, address))
    }

    /// Returns the [`FollowStamp`] of a token balance. Its `is_token` is false, because the answer does not say
    /// which program owns the account. `None` if the account may change although no block lists a write to it.
    pub(super) fn balance(&self, address: &Pubkey) -> Option<Arc<FollowStamp>> {
        let is_listed = !follow::is_excluded_address(address);
        is_listed.then(|| self.stamp(false, address))
    }

    /// Combines the [`FollowStamp`]s of a list's accounts into one for the list, which a node has returned as a
    /// whole. `None` if an account has no stamp.
    pub(super) fn list<'a>(
        &self,
        stamps: impl Iterator<Item = Option<&'a Arc<FollowStamp>>>,
    ) -> Option<Arc<FollowStamp>> {
        of_list(self.answer.read, stamps)
    }

    fn stamp(&self, is_token: bool, address: &Pubkey) -> Arc<FollowStamp> {
        let buckets = [self.followed.bucket(address)].into();
        Arc::new(FollowStamp { is_token, buckets, ..self.answer })
    }
}

/// Combines the [`FollowStamp`]s of a list's accounts into one for the list. `slot` is the slot of the list.
/// `None` if an account has no stamp, or if two accounts were read while different chains were followed.
pub(super) fn of_list<'a>(
    slot: Slot,
    mut stamps: impl Iterator<Item = Option<&'a Arc<FollowStamp>>>,
) -> Option<Arc<FollowStamp>> {
    let first = stamps.next()??;
    let mut list = FollowStamp { read: slot, is_token: false, buckets: Box::default(), ..**first };
    let mut buckets = first.buckets.to_vec();
    for stamp in stamps {
        let stamp = stamp.filter(|stamp| stamp.chain == list.chain)?;
        list.may_be_newer |= stamp.may_be_newer;
        list.newest_data = list.newest_data.max(stamp.newest_data);
        list.read_at = list.read_at.min(stamp.read_at);
        buckets.extend_from_slice(&stamp.buckets);
    }
    list.buckets = buckets.into();
    Some(Arc::new(list))
}
