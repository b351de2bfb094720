//! The name and the bytes of an answer in the shared store.
//!
//! ```text
//! "sfA2" slot(20 digits) sent-at(20 digits)   the rank: texts compare as numbers do
//! mac(32)                                     HMAC-SHA-256 over the name's key, the rank and all that follows
//! flags(1) code(4) generation(8) wall-clock(8) length(4) question-length(4) question text
//! ```
//!
//! Numbers are big-endian. Bytes that are cut short, altered, of another version, signed with another secret, or
//! written for another question are refused. Without a secret the MAC is a checksum: it finds accidents, not malice.

use bytes::Bytes;

use crate::cache::key::ALL_SAMPLES;
use crate::cache::key::{Finality, Key};
use crate::config::Secret;
use crate::methods::{
    AccountQuery, AccountsQuery, BalanceQuery, BlockQuery, Commitment, FeeQuery, Query, SamplesQuery, Slot,
};
use crate::node::NodeReply;
use crate::redis_store::StoreTime;
use crate::redis_store::mac::{MAC_BYTES, StoreMac};

/// The format of answers in the shared store, and its version. Answers of another version have other names, too.
const VERSION: &[u8; 4] = b"sfA2";
/// The total length of the version, the slot and the time of the call, in bytes.
const RANK: usize = 44;
/// The length of the fields between the MAC and the text of the question, in bytes.
const FIXED: usize = 1 + 4 + 8 + 8 + 4 + 4;
/// The length in bytes from which a text is compressed.
const WORTH_PACKING: usize = 1024;
/// The compression level of zstd. This level is fast, and shortens JSON well enough.
const LEVEL: i32 = 1;

const PACKED: u8 = 1;
const ERROR: u8 = 2;

/// An answer in the shared store, with its slot and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SharedValue {
    pub(super) slot: Slot,
    /// The generation of the cluster's answers when the answer was asked for, which every purge raises.
    pub(super) generation: u64,
    /// The moment at which the answer was asked for, by the store's clock.
    pub(super) sent_at: StoreTime,
    /// The writer's wall clock when the answer was asked for, in microseconds since 1970.
    pub(super) wall_us: u64,
    pub(super) body: NodeReply,
}

impl SharedValue {
    pub(super) fn text(&self) -> &Bytes {
        match &self.body {
            NodeReply::Result(text) | NodeReply::Error { body: text, .. } => text,
        }
    }
}

/// The name of an answer in the shared store, which identifies the question that it answers.
#[derive(Debug, Clone)]
pub(super) struct SecondLevelKey {
    key: String,
    question: String,
}

impl SecondLevelKey {
    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

/// Makes the names of answers in the shared store. Signs and verifies answers and the purges that the store lists.
pub(super) struct ValueMac(StoreMac);

impl ValueMac {
    pub(super) fn new(secret: Option<&Secret>) -> Self {
        Self(StoreMac::new(secret))
    }

    /// Returns the name of the answer under `key`, in the cluster of this genesis hash. `None` if such an
    /// answer is never shared. The names for the two keys of a `LookupPlan` have the same text in braces. A
    /// Redis cluster therefore keeps both answers on one server.
    pub(super) fn name(&self, namespace: &str, genesis: &str, key: &Key) -> Option<SecondLevelKey> {
        let (question, together) = question(key)?;
        let (tag, hash) = (self.0.sign(&[together.as_bytes()]), self.0.sign(&[question.as_bytes()]));
        let key = format!("{namespace}:cache2:{genesis}:{{{}}}:{}", hex(&tag[..8]), hex(&hash[..16]));
        Some(SecondLevelKey { key, question })
    }

    /// Returns an answer as the bytes to store under `name`.
    pub(super) fn encode(&self, name: &SecondLevelKey, value: &SharedValue) -> Vec<u8> {
        let (code, text, mut flags) = match &value.body {
            NodeReply::Result(text) => (0, text, 0),
            NodeReply::Error { code, body } => (*code, body, ERROR),
        };
        let packed = (text.len() >= WORTH_PACKING).then(|| zstd::bulk::compress(text, LEVEL).ok()).flatten();
        let packed = packed.filter(|packed| packed.len() < text.len());
        if packed.is_some() {
            flags |= PACKED;
        }
        let question = name.question.as_bytes();
        let mut rest =
            Vec::with_capacity(FIXED + question.len() + packed.as_ref().map_or(text.len(), Vec::len));
        rest.push(flags);
        rest.extend(code.to_be_bytes());
        rest.extend(value.generation.to_be_bytes());
        rest.extend(value.wall_us.to_be_bytes());
        // Texts are far shorter than 4 GiB, because of `cache.max_entry` and the limit on a node's answer.
        rest.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        rest.extend(u32::try_from(question.len()).unwrap_or(u32::MAX).to_be_bytes());
        rest.extend(question);
        rest.extend(packed.as_deref().unwrap_or(text));
        let rank = format!("{}{:020}{:020}", String::from_utf8_lossy(VERSION), value.slot, value.sent_at);
        let mac = self.0.sign(&[name.key.as_bytes(), rank.as_bytes(), &rest]);
        [rank.as_bytes(), &mac, &rest].concat()
    }

    /// Decodes the bytes under this name. `None` if the bytes were not encoded for the name, or if the text
    /// is longer than `max_text` bytes.
    pub(super) fn decode(
        &self,
        name: &SecondLevelKey,
        bytes: &Bytes,
        max_text: usize,
    ) -> Option<SharedValue> {
        let (rank, signed) = bytes.split_at_checked(RANK)?;
        let (mac, rest) = signed.split_at_checked(MAC_BYTES)?;
        if self.0.sign(&[name.key.as_bytes(), rank, rest]) != mac {
            return None;
        }
        let digits = rank.strip_prefix(VERSION)?;
        let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u64>().ok();
        let (slot, sent_at) = (number(&digits[..20])?, number(&digits[20..])?);
        let (flags, rest) = rest.split_first()?;
        let (code, rest) = rest.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let (wall_us, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (question_length, rest) = rest.split_first_chunk()?;
        let question_length = usize::try_from(u32::from_be_bytes(*question_length)).ok()?;
        let (question, packed) = rest.split_at_checked(question_length)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        if question != name.question.as_bytes() || length > max_text {
            return None;
        }
        let text = if flags & PACKED == 0 {
            bytes.slice_ref(packed)
        } else {
            zstd::bulk::decompress(packed, length).ok()?.into()
        };
        if text.len() != length {
            return None;
        }
        let body = if flags & ERROR == 0 {
            NodeReply::Result(text)
        } else {
            NodeReply::Error { code: i32::from_be_bytes(*code), body: text }
        };
        let (generation, wall_us) = (u64::from_be_bytes(*generation), u64::from_be_bytes(*wall_us));
        Some(SharedValue { slot, generation, sent_at, wall_us, body })
    }

    pub(super) fn sign_line(&self, genesis: &str, text: &str) -> String {
        format!("{text} {}", hex(&self.0.sign(&[b"line", genesis.as_bytes(), text.as_bytes()])[..16]))
    }

    /// Returns the text of a line. `None` if the signature is wrong.
    pub(super) fn verify_line<'a>(&self, genesis: &str, line: &'a str) -> Option<&'a str> {
        let (text, _) = line.rsplit_once(' ')?;
        (self.sign_line(genesis, text) == line).then_some(text)
    }
}

/// Returns two texts: that of the question to which `key` belongs, and one that the two keys of a `LookupPlan` have in
/// common. Neither text changes from one build to the next. `None` if answers under `key` are never shared.
fn question(key: &Key) -> Option<(String, String)> {
    let min_context_slot = None;
    if let Key::Plain(method, params, commitment, epoch) = key {
        let at = commitment.map_or("-", Commitment::as_str);
        let text = format!("{} {params} {at} {epoch:?}", method.as_str());
        // The two keys of a plan differ in the commitment.
        return Some((text, format!("{} {params}", method.as_str())));
    }
    let query = match key.clone() {
        Key::Account(pubkey, form, commitment) => {
            Query::Account(AccountQuery { pubkey, form, commitment, min_context_slot })
        }
        Key::Accounts(pubkeys, form, commitment) => {
            Query::Accounts(AccountsQuery { pubkeys, form, commitment, min_context_slot })
        }
        Key::Balance(pubkey, commitment) => Query::Balance(BalanceQuery { pubkey, commitment }),
        Key::Supply(pubkey, commitment) => Query::Supply(BalanceQuery { pubkey, commitment }),
        Key::Fee(message, commitment) => Query::Fee(FeeQuery { message, commitment, min_context_slot }),
        Key::Votes(query) => Query::Votes(query),
        Key::Samples => Query::Samples(SamplesQuery { limit: ALL_SAMPLES }),
        Key::ClusterNodes => Query::ClusterNodes,
        Key::Block(slot, shape, finality) => {
            let commitment = match finality {
                Finality::Final => Commitment::Finalized,
                Finality::Confirmed => Commitment::Confirmed,
            };
            let (details, encoding) = (shape.details, shape.encoding);
            let (rewards, max_version) = (shape.rewards, shape.max_version);
            Query::Block(BlockQuery { slot, details, encoding, rewards, max_version, commitment })
        }
        // Such an answer lives too short, or depends on the blocks that this gateway has stored.
        Key::Plain(..) | Key::NoBlock(_) | Key::NotYet(..) => return None,
    };
    let text = format!("{} {}", query.method().as_str(), query.params_json());
    let together = match key {
        Key::Account(pubkey, ..) => format!("account {pubkey}"),
        Key::Accounts(pubkeys, ..) => {
            format!("accounts {}", pubkeys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        }
        Key::Block(slot, ..) => format!("block {slot}"),
        _ => text.clone(),
    };
    Some((text, together))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
