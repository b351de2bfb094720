//! What a fetch must reach, and what it brings: a node's answer in its stored form, or a stored entry.

use std::sync::Arc;

use bytes::Bytes;

use super::derive::list;
use super::entry::{Entry, EntryBody, EntryMeta, Payload};
use super::follow_stamp::{StampInput, Stamper};
use super::forms;
use super::key::{Key, LookupPlan};
use crate::error::Error;
use crate::methods::{Pubkey, Query, Slot};
use crate::node::{Contextual, NodeReply, OFF_WORKER_BYTES};
use crate::pool::PoolReply;
use crate::telemetry::AttemptResult;

/// The result of a fetch that several callers may share. All of them get this result.
pub(super) type FlightResult = Result<Fetched, Error>;

/// The end of a flight: its result, and the length of the longest answer that nodes have sent for it, in bytes.
#[derive(Debug, Clone)]
pub(super) struct FlightEnd {
    pub(super) result: FlightResult,
    pub(super) read: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Fetched {
    /// A node's answer, and true if it is stored.
    New(Arc<Entry>, bool),
    /// A block made from a node's answer, for which a caller who wants another shape has asked.
    Joined(Arc<Entry>),
    /// A stored entry, which is given because the node's answer is older. The key is set if the entry is stored
    /// under the [`LookupPlan::alternate_key`] of the caller who started the fetch.
    KeptNewer(Arc<Entry>, Option<Key>),
    /// A fresh entry for which no node was asked. The entry was stored, was derived from a stored one, or came
    /// from the shared store. The key is set if the entry is stored under the [`LookupPlan::alternate_key`] of
    /// the caller who started the fetch.
    AlreadyFresh(Arc<Entry>, Option<Key>),
}

impl Fetched {
    pub(super) fn entry(&self) -> &Arc<Entry> {
        match self {
            Self::New(entry, _)
            | Self::Joined(entry)
            | Self::KeptNewer(entry, _)
            | Self::AlreadyFresh(entry, _) => entry,
        }
    }

    /// Returns true if the result is in a form that fits the caller of `plan`. Callers who want different parts of an account
    /// share one call for the whole account. An entry that holds one part serves only the callers who asked
    /// for that part.
    pub(super) fn fits(&self, plan: &LookupPlan) -> bool {
        match self {
            Self::KeptNewer(_, Some(key)) | Self::AlreadyFresh(_, Some(key)) => {
                plan.alternate_key.as_ref() == Some(key)
            }
            _ => true,
        }
    }
}

/// The slot that a fetched answer must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SlotRequirement {
    None,
    AtLeast(Slot),
    /// The caller's own minContextSlot, which is sent to the node. If the node refuses the call, the caller
    /// gets the refusal.
    CallerMinimum(Slot),
}

impl SlotRequirement {
    /// Returns the requirement of at least `slot`. Without a slot, any answer will do.
    pub(super) fn at_least(slot: Option<Slot>) -> Self {
        slot.map_or(Self::None, Self::AtLeast)
    }
}

/// Returns true if a fetch failed because a node's answer was too large.
pub(super) fn is_too_large(error: &Error) -> bool {
    let Error::NoUpstream(attempts) = error else { return false };
    attempts.iter().any(|attempt| attempt.is(AttemptResult::TooLarge))
}

pub(super) struct ParsedAnswer {
    pub(super) entry: Arc<Entry>,
    /// The key under which the answer about accounts is stored. Its form may differ from the fetched one,
    /// because a slice may prove to be the whole account. `None` for other answers.
    pub(super) form_key: Option<Key>,
    /// The accounts of a list, each as an entry of its own. Empty for other answers.
    pub(super) singles: Vec<(Key, Entry)>,
    /// The sizes of accounts in bytes, as the answer states them.
    pub(super) spaces: Vec<(Pubkey, u64)>,
}

impl ParsedAnswer {
    /// Parses `reply`, whose result or error is `payload`. Accounts are parsed, so that other forms can be made from them.
    /// All other answers are stored exactly as the node sent them. `None` if accounts are not in the format that nodes
    /// write.
    pub(super) async fn of(
        plan: &LookupPlan,
        reply: &PoolReply,
        payload: Payload,
        meta: EntryMeta,
        stamp_input: Option<StampInput>,
    ) -> Option<Self> {
        let result = match (&reply.body, &plan.upstream) {
            (NodeReply::Result(result), Query::Account(_) | Query::Accounts(_)) => result.clone(),
            (NodeReply::Result(result), Query::Balance(query) | Query::Supply(query)) => {
                let stamp = stamp_input.and_then(|input| {
                    Stamper::new(&input, &Contextual::split(result)?.context)?.balance(&query.pubkey)
                });
                return Some(Self::alone(Entry::new(EntryBody::Verbatim(payload), meta, stamp)));
            }
            _ => return Some(Self::alone(Entry::new(EntryBody::Verbatim(payload), meta, None))),
        };
        if result.len() > OFF_WORKER_BYTES {
            let plan = plan.clone();
            let parse = move || Self::accounts(&plan, &result, meta, stamp_input.as_ref());
            tokio::task::spawn_blocking(parse).await.ok()?
        } else {
            Self::accounts(plan, &result, meta, stamp_input.as_ref())
        }
    }

    fn alone(entry: Entry) -> Self {
        Self { entry: Arc::new(entry), form_key: None, singles: Vec::new(), spaces: Vec::new() }
    }

    /// Parses the answer to an account method. `None` if the answer is not in the format that nodes write.
    fn accounts(
        plan: &LookupPlan,
        result: &Bytes,
        meta: EntryMeta,
        stamp_input: Option<&StampInput>,
    ) -> Option<Self> {
        let stamper = |context: &[u8]| stamp_input.and_then(|input| Stamper::new(input, context));
        match &plan.upstream {
            Query::Account(q) => {
                let single = list::read_single(result, q.form)?;
                let spaces = single.facts.space().map(|space| (q.pubkey, space)).into_iter().collect();
                let (from, to) = single.context;
                let stamper = stamper(&single.result[from as usize..to as usize]);
                let stamp = stamper.and_then(|stamper| stamper.account(&q.pubkey, q.form, &single.facts));
                let form = forms::stored_form(q.form, single.value.kind());
                let form_key = Some(Key::Account(q.pubkey, form, q.commitment));
                let entry = Entry::new(single.into_body(plan.asked), meta, stamp);
                Some(Self { form_key, spaces, ..Self::alone(entry) })
            }
            Query::Accounts(q) => {
                let (context, singles) = list::read_list(result, q.form, q.pubkeys.len())?;
                let stamper = stamper(&context);
                let stamper = stamper.as_ref();
                let values: Arc<[_]> = singles.iter().map(|single| single.value.clone()).collect();
                let form = forms::stored_list_form(q.form, &values);
                let form_key = Some(Key::Accounts(Arc::clone(&q.pubkeys), form, q.commitment));
                let mut spaces = Vec::new();
                let singles = q.pubkeys.iter().zip(singles).map(|(pubkey, single)| {
                    spaces.extend(single.facts.space().map(|space| (*pubkey, space)));
                    let stamp = stamper.and_then(|stamper| stamper.account(pubkey, q.form, &single.facts));
                    let form = forms::stored_form(q.form, single.value.kind());
                    let entry = Entry::new(single.into_body(plan.asked), meta, stamp);
                    (Key::Account(*pubkey, form, q.commitment), entry)
                });
                let singles: Vec<_> = singles.collect();
                let stamps = singles.iter().map(|(_, single)| single.stamp.as_ref());
                let stamp = stamper.and_then(|stamper| stamper.list(stamps));
                let body = EntryBody::Accounts { context, values, asked: plan.asked };
                Some(Self { form_key, singles, spaces, ..Self::alone(Entry::new(body, meta, stamp)) })
            }
            _ => None,
        }
    }
}
