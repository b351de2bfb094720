//! The changes of accounts, read through the cache once a slot.
//!
//! One list of all accounts tells which of them have changed, in base64. Only a changed account is read in the forms of its
//! subscriptions, which the cache makes from the list's answer where it can. While the chain is followed, an account that
//! no block has written is a hit, so that reading it costs the nodes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Hub;
use super::feeds::{AccountHash, Seen};
use crate::cache::entry::Payload;
use crate::cache::{CallOptions, Charge, NoConditions};
use crate::config::sha256;
use crate::error::{Error, FailedAttempt};
use crate::methods::{
    AccountEncoding, AccountForm, AccountQuery, AccountsQuery, BASE58_TOO_LONG_CODE, Commitment, MAX_KEYS,
    Pubkey, Query, Slot, Subscription,
};
use crate::pool::CallerId;
use crate::telemetry::{AttemptResult, Trace};

/// The form that tells whether an account has changed.
const WHOLE: AccountForm = AccountForm { encoding: AccountEncoding::Base64, slice: None };
/// The text that a node's notification has instead of data that is too long for base58.
const TOO_LONG: &str = "error: data too large for bs58 encoding";
/// The empty frame of zstd in base64, as a node sends it for an account without data.
const EMPTY_FRAME: &str = "KLUv/SAAAQAA";
/// The maximum time for reading accounts at one slot. After a longer one, the next slot is worth more.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of slots for which an account may stay unread before its subscribers are closed: about a minute.
const MAX_UNREAD_SLOTS: Slot = 150;

/// Reads, at each new slot, all accounts that are subscribed to at `commitment`.
pub(super) async fn follow(hub: Arc<Hub>, commitment: Commitment) {
    let mut last = 0;
    loop {
        let slot = hub.next_slot(commitment, last).await;
        if slot < last {
            hub.feeds.interrupt(|subscription| {
                matches!(subscription, Subscription::Account { commitment: at, .. } if *at == commitment)
            });
        }
        last = slot;
        let watched = watched(&hub, commitment);
        let pubkeys: Vec<_> = watched.keys().copied().collect();
        join_all(pubkeys.chunks(MAX_KEYS).map(|pubkeys| look_at(&hub, pubkeys, &watched, commitment, slot)))
            .await;
    }
}

/// The feeds of each account.
type AccountFeeds = BTreeMap<Pubkey, Vec<(Arc<Subscription>, Seen)>>;

fn watched(hub: &Hub, at: Commitment) -> AccountFeeds {
    let mut watched = AccountFeeds::new();
    for (subscription, seen) in hub.feeds.lock().accounts() {
        if let Subscription::Account { pubkey, commitment, .. } = **subscription
            && commitment == at
        {
            watched.entry(pubkey).or_default().push((Arc::clone(subscription), *seen));
        }
    }
    watched
}

/// Reads up to [`MAX_KEYS`] accounts at `slot` or above, and notifies of the changed ones. If no node answers, the next slot
/// brings the change.
async fn look_at(hub: &Hub, pubkeys: &[Pubkey], watched: &AccountFeeds, commitment: Commitment, slot: Slot) {
    let min_context_slot = Some(slot);
    let query =
        Query::Accounts(AccountsQuery { pubkeys: pubkeys.into(), form: WHOLE, commitment, min_context_slot });
    let list = match ask(hub, &query, CallerId::default(), READ_TIMEOUT).await {
        Ok(Payload::Result(list)) => list.whole(),
        // Accounts that are too long together are read in parts.
        Err(Error::NoUpstream(attempts)) if pubkeys.len() > 1 && is_too_large(&attempts) => {
            let (one, other) = pubkeys.split_at(pubkeys.len() / 2);
            Box::pin(look_at(hub, one, watched, commitment, slot)).await;
            return Box::pin(look_at(hub, other, watched, commitment, slot)).await;
        }
        Ok(Payload::Error { .. }) | Err(_) => {
            let feeds = pubkeys.iter().filter_map(|pubkey| watched.get(pubkey)).flatten();
            return note_unread(hub, feeds.map(|(subscription, _)| subscription), slot);
        }
    };
    let Ok(AnswerOf { context, value }) = serde_json::from_slice::<AnswerOf<Vec<&RawValue>>>(&list) else {
        return;
    };
    // Each may have to be read in another form, and none waits for the others.
    let mut changes = Vec::new();
    for (pubkey, account) in pubkeys.iter().zip(value) {
        let account = account.get();
        let whole = sha256(account.as_bytes());
        for (subscription, seen) in watched.get(pubkey).into_iter().flatten() {
            if seen.whole != Some(whole) || seen.unread_since.is_some() {
                changes.push(note_change(hub, subscription, whole, account, context.slot));
            }
        }
    }
    join_all(changes).await;
}

fn is_too_large(attempts: &[FailedAttempt]) -> bool {
    attempts.iter().any(|attempt| attempt.is(AttemptResult::TooLarge))
}

/// Records that accounts could not be read. Subscribers are closed after a while, because silence would mean that nothing
/// changes.
fn note_unread<'a>(hub: &Hub, feeds: impl Iterator<Item = &'a Arc<Subscription>>, slot: Slot) {
    let is_silent = |subscription: &&Arc<Subscription>| {
        let mut table = hub.feeds.lock();
        let Some(feed) = table.feed(subscription) else { return false };
        // The chain may have restarted lower meanwhile.
        slot.saturating_sub(*feed.seen.unread_since.get_or_insert(slot)) > MAX_UNREAD_SLOTS
    };
    let silent: Vec<_> = feeds.filter(is_silent).collect();
    if !silent.is_empty() {
        hub.feeds.interrupt(|subscription| silent.iter().any(|silent| ***silent == *subscription));
    }
}

/// Notifies the subscribers of an account that has changed, if it has changed in their form.
async fn note_change(
    hub: &Hub,
    subscription: &Arc<Subscription>,
    whole: AccountHash,
    account: &str,
    slot: Slot,
) {
    let Some((slot, shown)) = read(hub, subscription, Some((account, slot)), CallerId::default()).await
    else {
        return;
    };
    let hash = sha256(&shown);
    let mut table = hub.feeds.lock();
    let Some(feed) = table.feed(subscription) else { return };
    if feed.seen.shown == Some(hash) {
        feed.seen.whole = Some(whole);
    } else if slot > feed.seen.slot {
        feed.seen = Seen { slot, whole: Some(whole), shown: Some(hash), unread_since: None };
        let head = format!(r#"{{"context":{{"slot":{slot}}},"value":"#);
        let result = [head.as_bytes(), &shown, b"}"].concat();
        hub.feeds.publish_in(&mut table, subscription, &result, false);
    }
}

/// Returns what a new subscriber may have seen of an account already, so that any later change is notified of. `None` if no
/// node answers; the next read is then notified of.
pub(super) async fn first_look(hub: &Hub, subscription: &Subscription, caller: CallerId) -> Option<Seen> {
    let (slot, shown) = read(hub, subscription, None, caller).await?;
    Some(Seen { slot, shown: Some(sha256(&shown)), ..Seen::default() })
}

/// Returns an account in the form of its subscription, and the slot at which it was read. `known` is the account in base64,
/// and the slot that the answer must reach.
async fn read(
    hub: &Hub,
    subscription: &Subscription,
    known: Option<(&str, Slot)>,
    caller: CallerId,
) -> Option<(Slot, Bytes)> {
    let Subscription::Account { pubkey, form, commitment } = *subscription else { return None };
    if let Some((account, slot)) = known.filter(|_| form == WHOLE) {
        return Some((slot, shown(form, account)));
    }
    let query =
        |form, min_context_slot| Query::Account(AccountQuery { pubkey, form, commitment, min_context_slot });
    let min_context_slot = known.map(|(_, slot)| slot);
    let timeout = known.map_or(hub.parts.config.server.request_timeout, |_| READ_TIMEOUT);
    let payload = match ask(hub, &query(form, min_context_slot), caller, timeout).await.ok()? {
        Payload::Error { code: BASE58_TOO_LONG_CODE, .. } => {
            // The whole account has the other members. A node notifies of such an account, too.
            let other = query(AccountForm { encoding: AccountEncoding::Base64, ..form }, min_context_slot);
            let Payload::Result(text) = ask(hub, &other, caller, timeout).await.ok()? else { return None };
            let answer: AnswerOf<Value> = serde_json::from_slice(&text.whole()).ok()?;
            let mut account = answer.value;
            account["data"] = data(form, TOO_LONG);
            return Some((answer.context.slot, account.to_string().into()));
        }
        payload => payload,
    };
    let Payload::Result(text) = payload else { return None };
    let text = text.whole();
    let answer: AnswerOf<&RawValue> = serde_json::from_slice(&text).ok()?;
    Some((answer.context.slot, shown(form, answer.value.get())))
}

/// Returns the account as a node's notification shows it: an account that does not exist is one without lamports.
fn shown(form: AccountForm, account: &str) -> Bytes {
    if account != "null" {
        return Bytes::copy_from_slice(account.as_bytes());
    }
    let owner = Pubkey([0; 32]).to_string();
    let nothing = if form.encoding == AccountEncoding::Base64Zstd { EMPTY_FRAME } else { "" };
    let empty = json!({ "lamports": 0, "data": data(form, nothing), "owner": owner, "executable": false, "rentEpoch": 0, "space": 0 });
    empty.to_string().into()
}

/// Returns `text` as the data of an account in `form`.
fn data(form: AccountForm, text: &str) -> Value {
    match form.encoding {
        AccountEncoding::Binary => json!(text),
        AccountEncoding::JsonParsed => json!([text, AccountEncoding::Base64.as_str()]),
        encoding => json!([text, encoding.as_str()]),
    }
}

/// Asks the cache as a caller does.
async fn ask(hub: &Hub, query: &Query, caller: CallerId, timeout: Duration) -> Result<Payload, Error> {
    let (asked_at, trace) = (Instant::now(), Trace::default());
    let options = CallOptions { bypass: false, asked_at, timeout, coding: None, caller, trace };
    let answer = hub.parts.cache.answer(query, options, &Charge::free(), &NoConditions).await?;
    Ok(answer.payload)
}

/// A node's answer with a context.
#[derive(Deserialize)]
struct AnswerOf<T> {
    context: Context,
    value: T,
}

#[derive(Deserialize)]
struct Context {
    slot: Slot,
}
