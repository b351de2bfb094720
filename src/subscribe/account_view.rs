//! An account as the subscribers to it see it: read in their form, compared by its meaning, and told of when it has changed.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Hub;
use super::feeds::{AccountHash, SeenAccount};
use crate::cache::entry::Payload;
use crate::cache::{CallOptions, Charge, NoConditions};
use crate::config::sha256;
use crate::error::Error;
use crate::methods::{
    AccountEncoding, AccountForm, AccountQuery, BASE58_TOO_LONG_CODE, Pubkey, Query, Slot, Subscription,
};
use crate::node::Contextual;
use crate::pool::CallerId;
use crate::telemetry::Trace;

/// The text that a node's notification has instead of data that is too long for base58.
const TOO_LONG: &str = "error: data too large for bs58 encoding";
/// The empty frame of zstd in base64, as a node sends it for an account without data.
const EMPTY_FRAME: &str = "KLUv/SAAAQAA";
/// The maximum time for reading accounts at one slot. After a longer one, a later slot is worth more.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which an account may stay unread before its subscribers are closed.
const MAX_UNREAD_TIME: Duration = Duration::from_mins(1);

/// What has become of a read for one subscription.
pub(super) enum Outcome<'a> {
    Unread(Slot),
    /// It is as it was when it was last read.
    Same,
    /// It is as in this text, in the form of the subscription.
    Read {
        slot: Slot,
        whole: AccountHash,
        shown: &'a [u8],
    },
}

/// Returns the hash of what a JSON text means, whatever the order of its members: nodes write them in different orders, and
/// `serde_json` without the feature `preserve_order` writes them in that of their names.
pub(super) fn meaning(text: &[u8]) -> AccountHash {
    serde_json::from_slice::<Value>(text)
        .map_or_else(|_| sha256(text), |value| sha256(value.to_string().as_bytes()))
}

/// Records what has become of a read, and notifies the subscribers if the account has changed in their form. They are closed
/// if it stays unread, because silence would mean that nothing changes.
pub(super) fn record(hub: &Hub, subscription: &Subscription, outcome: &Outcome<'_>) {
    let mut table = hub.feeds.lock();
    let Some(feed) = table.feed(subscription) else { return };
    match outcome {
        Outcome::Unread(slot) => {
            let is_silent = feed.seen.unread.lasts(*slot, *slot, MAX_UNREAD_TIME);
            drop(table);
            if is_silent {
                hub.feeds.interrupt(|of| of == subscription);
            }
        }
        Outcome::Same => feed.seen.unread.end(),
        Outcome::Read { slot, whole, shown } => {
            feed.seen.unread.end();
            let hash = meaning(shown);
            if feed.seen.shown == Some(hash) {
                feed.seen.whole = Some(*whole);
            } else if *slot > feed.seen.slot {
                feed.seen = SeenAccount { slot: *slot, whole: Some(*whole), shown: Some(hash), ..feed.seen };
                let head = format!(r#"{{"context":{{"slot":{slot}}},"value":"#);
                let result = [head.as_bytes(), shown, b"}"].concat();
                hub.feeds.publish_in(&mut table, subscription, &result, false);
            }
        }
    }
}

/// Returns what a new subscriber may have seen of an account already, so that any later change is notified of. `None` if no
/// node answers; the next read is then notified of.
pub(super) async fn first_look(
    hub: &Hub,
    subscription: &Subscription,
    caller: CallerId,
) -> Option<SeenAccount> {
    let (slot, shown) = read(hub, subscription, None, caller).await?;
    Some(SeenAccount { slot, shown: Some(meaning(&shown)), ..SeenAccount::default() })
}

/// Returns an account in the form of its subscription, and the slot at which it was read, which is at least
/// `min_context_slot`.
pub(super) async fn read(
    hub: &Hub,
    subscription: &Subscription,
    min_context_slot: Option<Slot>,
    caller: CallerId,
) -> Option<(Slot, Bytes)> {
    let Subscription::Account { pubkey, form, commitment } = *subscription else { return None };
    let query =
        |form, min_context_slot| Query::Account(AccountQuery { pubkey, form, commitment, min_context_slot });
    let timeout = min_context_slot.map_or(hub.parts.config.now().server.request_timeout, |_| READ_TIMEOUT);
    let payload = match ask(hub, &query(form, min_context_slot), caller, timeout, false).await.ok()? {
        Payload::Error { code: BASE58_TOO_LONG_CODE, .. } => {
            // The whole account has the other members. A node notifies of such an account, too.
            let other = query(AccountForm { encoding: AccountEncoding::Base64, ..form }, min_context_slot);
            let Payload::Result(text) = ask(hub, &other, caller, timeout, false).await.ok()? else {
                return None;
            };
            let Contextual { slot, value, .. } = Contextual::split(&text.whole())?;
            let mut account: Value = serde_json::from_slice(&value).ok()?;
            account["data"] = data(form, TOO_LONG);
            return Some((slot, account.to_string().into()));
        }
        payload => payload,
    };
    let Payload::Result(text) = payload else { return None };
    let Contextual { slot, value, .. } = Contextual::split(&text.whole())?;
    Some((slot, shown(form, &value)))
}

pub(super) fn shown(form: AccountForm, account: &Bytes) -> Bytes {
    if account.as_ref() != b"null" {
        return account.clone();
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

/// Asks the cache as a caller does. `bypass` asks a node in any case.
pub(super) async fn ask(
    hub: &Hub,
    query: &Query,
    caller: CallerId,
    timeout: Duration,
    bypass: bool,
) -> Result<Payload, Error> {
    let (asked_at, trace) = (Instant::now(), Trace::default());
    let options = CallOptions { bypass, asked_at, timeout, coding: None, caller, trace };
    let answer = hub.parts.cache.answer(query, options, &Charge::free(), &NoConditions).await?;
    Ok(answer.payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_in_other_words_is_the_same() {
        let sorted = serde_json::from_str::<Value>(r#"{"b":1,"a":{"d":2,"c":3}}"#).unwrap().to_string();
        assert_eq!(sorted, r#"{"a":{"c":3,"d":2},"b":1}"#, "serde_json has the feature preserve_order");
        let one = br#"{"data":["AQ==","base64"],"lamports":1,"parsed":{"a":1,"b":{"c":2,"d":[3,4]}}}"#;
        let same = br#"{"parsed": {"b":{"d":[3,4],"c":2},"a":1}, "lamports":1,"data":["AQ==","base64"]}"#;
        let other = br#"{"data":["AQ==","base64"],"lamports":1,"parsed":{"a":1,"b":{"c":2,"d":[4,3]}}}"#;
        assert_eq!(meaning(one), meaning(same));
        assert_ne!(meaning(one), meaning(other));
        assert_ne!(meaning(b"no JSON"), meaning(b"something else"));
    }
}
