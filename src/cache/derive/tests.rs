//! Recorded answers of real nodes (`tests/fixtures/recorded`), on which derivations are tested, and the tests of the short
//! derivations.

use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;
use crate::jsonrpc::Params;
use crate::methods::{Method, PerCommitment, Profile, Query, SamplesQuery, Slot, VotesQuery};
use crate::node::NodeReply;
use crate::node::shape::fits;

/// One call and the node's answer.
#[derive(Debug, Clone)]
pub(crate) struct RecordedCall {
    /// A description of the call.
    pub(crate) name: String,
    /// The name of a group of answers that are consistent with each other: those of one moment, or of one
    /// block.
    pub(crate) group: Option<String>,
    /// The results of `getSlot` at each commitment, right after the node's answer.
    pub(crate) slots: PerCommitment<Slot>,
    /// The call. `None` if slotfront refuses it without asking a node.
    pub(crate) query: Option<Query>,
    /// The response body, byte for byte.
    pub(crate) response: Bytes,
    /// The parsed body.
    pub(crate) reply: NodeReply,
}

impl RecordedCall {
    /// Returns the `result`. `None` if the node answered with an error.
    pub(crate) fn result(&self) -> Option<&Bytes> {
        match &self.reply {
            NodeReply::Result(result) => Some(result),
            NodeReply::Error { .. } => None,
        }
    }
}

#[derive(Deserialize)]
struct FixtureLine<'a> {
    name: String,
    group: Option<String>,
    slots: PerCommitment<Slot>,
    #[serde(borrow)]
    request: RecordedRequest<'a>,
    response: String,
}

#[derive(Deserialize)]
struct RecordedRequest<'a> {
    id: u64,
    method: &'a str,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Loads all recorded calls of a file. The name has no extension: `load("getBlock")`.
#[track_caller]
pub(crate) fn load(file: &str) -> Vec<RecordedCall> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recorded");
    let packed = std::fs::read(path.join(format!("{file}.jsonl.zst"))).unwrap();
    let lines = String::from_utf8(zstd::decode_all(&packed[..]).unwrap()).unwrap();
    lines.lines().map(exchange).collect()
}

/// Returns every ordered pair of different calls in the same group.
pub(crate) fn pairs(exchanges: &[RecordedCall]) -> impl Iterator<Item = (&RecordedCall, &RecordedCall)> {
    exchanges.iter().enumerate().filter(|(_, one)| one.group.is_some()).flat_map(move |(i, one)| {
        let others = exchanges.iter().enumerate().filter(move |(j, _)| i != *j);
        others.filter(|(_, other)| other.group == one.group).map(move |(_, other)| (one, other))
    })
}

fn exchange(line: &str) -> RecordedCall {
    let FixtureLine { name, group, slots, request, response } = serde_json::from_str(line).unwrap();
    let method = Method::from_name(request.method).unwrap();
    let params = request.params.map_or("null", RawValue::get);
    let params = match params.as_bytes() {
        [b'[', ..] => Params::Array(Bytes::copy_from_slice(params.as_bytes())),
        [b'{', ..] => Params::Object(Bytes::copy_from_slice(params.as_bytes())),
        _ => Params::None,
    };
    let response = Bytes::from(response);
    RecordedCall {
        name,
        group,
        slots,
        query: Query::parse(method, &params, Profile::Node).ok(),
        reply: NodeReply::parse(&response, request.id).unwrap(),
        response,
    }
}

#[test]
fn all_recordings_can_be_read() {
    for (file, expected) in [
        ("epochs", 111),
        ("getAccountInfo", 1112),
        ("getAccountInfo-large", 102),
        ("getBlock", 541),
        ("getBlock-large", 6),
        ("getClusterNodes", 3),
        ("getFeeForMessage", 46),
        ("getMultipleAccounts", 117),
        ("getRecentPerformanceSamples", 12),
        ("getTokenAccountBalance", 48),
        ("getTransaction", 338),
        ("getVoteAccounts", 42),
    ] {
        let exchanges = load(file);
        assert_eq!(exchanges.len(), expected, "{file}");
        for exchange in exchanges {
            let (name, result) = (&exchange.name, exchange.result());
            assert!(exchange.slots.processed >= exchange.slots.finalized, "{file}: {name}");
            assert!(exchange.response.ends_with(b"\n"), "{file}: {name}");
            let fits = exchange.query.iter().zip(result).all(|(query, result)| fits(query, result));
            assert!(fits, "{file}: {name} has another shape");
        }
    }
}

#[test]
fn recorded_single_vote_accounts_derive_from_all() {
    let recorded = load("getVoteAccounts");
    let mut proved = 0;
    for (all, one) in pairs(&recorded) {
        let (Some(Query::Votes(stored)), Some(Query::Votes(asked))) = (&all.query, &one.query) else {
            continue;
        };
        let Some(vote_pubkey) = &asked.vote_pubkey else { continue };
        if *stored == (VotesQuery { vote_pubkey: None, ..*asked }) {
            let made = vote_account(all.result().unwrap(), vote_pubkey);
            assert_eq!(made.as_ref(), one.result(), "{} from {}", one.name, all.name);
            proved += 1;
        }
    }
    assert_eq!(
        proved, 24,
        "at each commitment three from a list and one from that with unstaked ones, each list recorded twice"
    );
}

/// Returns `votes` with a member that nodes of version 4.1 and later add to each vote account.
fn with_commission_bps(votes: &Bytes) -> Bytes {
    let votes = std::str::from_utf8(votes).unwrap();
    votes.replace(r#","lastVote":"#, r#","inflationRewardsCommissionBps":500,"lastVote":"#).into()
}

#[test]
fn unknown_members_of_vote_accounts_stay() {
    let recorded = load("getVoteAccounts");
    let mut proved = 0;
    for (all, one) in pairs(&recorded) {
        let (Some(Query::Votes(stored)), Some(Query::Votes(asked))) = (&all.query, &one.query) else {
            continue;
        };
        let Some(vote_pubkey) = &asked.vote_pubkey else { continue };
        if *stored == (VotesQuery { vote_pubkey: None, ..*asked }) {
            let all = with_commission_bps(all.result().unwrap());
            assert!(all.len() > one.result().unwrap().len());
            assert_eq!(vote_account(&all, vote_pubkey), one.result().map(with_commission_bps));
            proved += 1;
        }
    }
    assert_eq!(proved, 24);
}

#[test]
fn recorded_limits_are_prefixes_of_all_samples() {
    let recorded = load("getRecentPerformanceSamples");
    let limit = |exchange: &RecordedCall| match exchange.query {
        Some(Query::Samples(SamplesQuery { limit })) => Some(usize::from(limit)),
        _ => None,
    };
    let all = recorded.iter().find(|exchange| limit(exchange) == Some(720)).unwrap().result().unwrap();
    let mut proved = 0;
    for exchange in &recorded {
        if let (Some(limit), Some(result)) = (limit(exchange), exchange.result()) {
            assert_eq!(Picked::First(limit).of(all).as_ref(), Some(result), "{}", exchange.name);
            proved += 1;
        }
    }
    assert_eq!(proved, 8);
}

#[test]
fn smaller_limit_is_a_prefix() {
    let all = Bytes::from_static(br#"[{"slot":3},{"slot":2},{"slot":1}]"#);
    for (limit, expected) in [
        (0, "[]"),
        (1, r#"[{"slot":3}]"#),
        (2, r#"[{"slot":3},{"slot":2}]"#),
        (9, r#"[{"slot":3},{"slot":2},{"slot":1}]"#),
    ] {
        assert_eq!(Picked::First(limit).of(&all).as_deref(), Some(expected.as_bytes()));
    }
    assert_eq!(Picked::First(1).of(&Bytes::from_static(b"{}")), None);
}

#[test]
fn filters_one_account_and_keeps_the_rest() {
    let account = |key: &str| format!(r#"{{"activatedStake":1,"votePubkey":"{key}"}}"#);
    let (one, other) = (Pubkey([1; 32]), Pubkey([2; 32]));
    let (a, b) = (account(&one.to_string()), account(&other.to_string()));
    for (stored, asked, expected) in [
        (
            format!(r#"{{"current":[{a},{b}],"delinquent":[]}}"#),
            one,
            Some(format!(r#"{{"current":[{a}],"delinquent":[]}}"#)),
        ),
        (
            format!(r#"{{"delinquent":[{b}],"current":[{a}]}}"#),
            other,
            Some(format!(r#"{{"delinquent":[{b}],"current":[]}}"#)),
        ),
        (format!(r#"{{"current":[{a}]}}"#), one, None),
        (format!(r#"{{"current":[{a}],"delinquent":[],"totalStake":1}}"#), one, None),
        (r#"{"current":[{}],"delinquent":[]}"#.to_owned(), one, None),
        (r#"{"current":[null],"delinquent":[]}"#.to_owned(), one, None),
        (r#"{"current":null,"delinquent":[]}"#.to_owned(), one, None),
        ("null".to_owned(), one, None),
        ("<html>".to_owned(), one, None),
    ] {
        assert_eq!(vote_account(&stored.clone().into(), &asked), expected.map(Bytes::from), "{stored}");
    }
}
