//! What a node's word means for the call: the answer, a reason to ask another node, or a fault.
//!
//! Pure, and by code alone: contract.md, section 3, is the source, and message texts are not read (but for the one code
//! that nodes use for two things). The surprise is that an error may be the answer and a result may not be.

use bytes::Bytes;

use super::Ask;
use super::attempt::Reply;
use crate::frontier::Frontier;
use crate::methods::{Query, Slot};
use crate::node::{Fault, NodeReply};
use crate::telemetry::AttemptResult;

/// What a node's answer means for the call, where it is none of the node's faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the answer.
    Answer,
    /// It may be the answer; one other node is asked first.
    SecondVoice,
    /// An error that no contract names: it may be the answer, and the result of one other node is a better one.
    OwnWord,
    /// It is not the answer as long as another node is left, and no fault either: [`AttemptResult::Behind`] or
    /// [`AttemptResult::Incapable`].
    Elsewhere(AttemptResult),
}

/// What `body` means for `ask`, answered at the slot of its `context` by a node that had reached `slot_before` when it was
/// asked.
///
/// # Errors
/// Where it is a fault of the node.
pub(super) fn judge(
    body: &NodeReply,
    (context, slot_before): (Option<Slot>, Slot),
    ask: &Ask,
    frontier: &Frontier,
) -> Result<Verdict, Fault> {
    // A condition that is the caller's alone is one node's to judge.
    let behind = if ask.alone { Verdict::Answer } else { Verdict::Elsewhere(AttemptResult::Behind) };
    let (code, error) = match body {
        NodeReply::Result(result) if result.as_ref() == b"null" => {
            let block = matches!(ask.query, Query::Block(_));
            return Ok(if block { Verdict::SecondVoice } else { Verdict::Answer });
        }
        NodeReply::Result(_) => {
            return match (ask.query.has_context(), context) {
                (true, None) => Err(Fault::BadJson),
                // The caller's own condition is not met, and the node does not say so: it knows of none.
                (true, Some(slot)) if ask.query.min_context_slot().is_some_and(|own| slot < own) => {
                    Err(Fault::BadJson)
                }
                (true, Some(slot)) if ask.floor.is_some_and(|floor| slot < floor) => Ok(behind),
                _ => Ok(Verdict::Answer),
            };
        }
        NodeReply::Error { code, body } => (*code, body),
    };
    match code {
        -32005 => Err(Fault::Unhealthy),
        // Absent blocks: another node may have what this one lacks.
        -32001 | -32007 | -32009 | -32014 => Ok(Verdict::SecondVoice),
        -32004 => match &ask.query {
            Query::Block(q) if q.slot <= frontier.slot(q.commitment) => Ok(Verdict::SecondVoice),
            _ => Ok(Verdict::Answer),
        },
        -32016 => Ok(behind),
        // Not served, or not by this node's storage or indexes.
        -32601 | -32010 | -32011 | -32012 | -32019 => Ok(Verdict::Elsewhere(AttemptResult::Incapable)),
        -32600 if !error.windows(18).any(|w| w == b"Encoded binary (ba") => Err(Fault::UnknownCode),
        // "No such account", at a slot where it may not have been there yet.
        -32602 | -32600
            if is_about_accounts(&ask.query) && ask.floor.is_some_and(|floor| slot_before < floor) =>
        {
            Ok(behind)
        }
        -32602
        | -32600
        | -32022..=-32020
        | -32018
        | -32017
        | -32015
        | -32013
        | -32008
        | -32006
        | -32003
        | -32002 => Ok(Verdict::Answer),
        _ if is_in_contract(code) => Err(Fault::UnknownCode),
        _ => Ok(Verdict::OwnWord),
    }
}

/// Whether an error may be about the accounts that are asked for as they were at the node's slot.
fn is_about_accounts(query: &Query) -> bool {
    matches!(query, Query::Balance(_) | Query::Account(_) | Query::Accounts(_))
}

/// Whether contract.md, section 3, says what an error with this code means.
pub(super) fn is_in_contract(code: i32) -> bool {
    matches!(code, -32022..=-32001 | -32603..=-32600 | -32700)
}

/// The code of a reply that is an error.
pub(super) fn code(reply: &Reply) -> Option<i32> {
    match &reply.body {
        NodeReply::Error { code, .. } => Some(*code),
        NodeReply::Result(_) => None,
    }
}

/// Whether an error with this code says of a block only that the node does not have it, not or no more; another may.
pub(super) fn lacks(code: i32) -> bool {
    matches!(code, -32001 | -32004)
}

/// Two voices on an answer that was in doubt: a block from any node wins, then an error that names a reason, then
/// null; an absence that both name is confirmed.
pub(super) fn agreed(first: Reply, second: Reply) -> Reply {
    let is_null = |reply: &Reply| reply.body == NodeReply::Result(Bytes::from_static(b"null"));
    match (code(&first), code(&second)) {
        // Who is further on knows that there is none.
        (Some(a), Some(b)) if lacks(a) && !lacks(b) => Reply { confirmed: false, ..second },
        (Some(a), Some(b)) => Reply { confirmed: a == b, ..first },
        (None, Some(_)) if is_null(&first) => Reply { confirmed: false, ..second },
        (None, _) if !is_null(&first) && first.slot >= second.slot => Reply { confirmed: false, ..first },
        _ if is_null(&second) => Reply { confirmed: false, ..first },
        _ => Reply { confirmed: false, ..second },
    }
}

/// What is given where every node has sent the call elsewhere: the highest answer, then "behind", then the first word.
#[derive(Debug)]
pub(super) struct LastResort {
    /// The node's own word.
    pub(super) reply: Reply,
    /// Why it was not good enough.
    pub(super) why: AttemptResult,
}

impl LastResort {
    /// The better of what is held and another.
    pub(super) fn better(held: Option<Self>, other: Self) -> Self {
        let rank = |resort: &Self| {
            let behind = resort.why == AttemptResult::Behind;
            (behind, behind && code(&resort.reply).is_none(), if behind { resort.reply.slot } else { 0 })
        };
        match held {
            Some(held) if rank(&held) >= rank(&other) => held,
            _ => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::jsonrpc::Params;
    use crate::methods::{Commitment, Method, Profile};

    const ANSWER: Result<Verdict, Fault> = Ok(Verdict::Answer);
    const VOICE: Result<Verdict, Fault> = Ok(Verdict::SecondVoice);
    const BEHIND: Result<Verdict, Fault> = Ok(Verdict::Elsewhere(AttemptResult::Behind));
    const INCAPABLE: Result<Verdict, Fault> = Ok(Verdict::Elsewhere(AttemptResult::Incapable));

    fn ask(method: Method, params: &str, alone: bool) -> Ask {
        let params = Params::Array(Bytes::copy_from_slice(params.as_bytes()));
        let query = Query::parse(method, &params, Profile::Node).unwrap();
        Ask {
            query,
            floor: Some(100),
            prefer: None,
            alone,
            deadline: Instant::now(),
            caller: super::super::Caller::default(),
            trace: crate::telemetry::Trace::default(),
        }
    }

    fn error(code: i32, message: &str) -> NodeReply {
        NodeReply::Error { code, body: Bytes::from(format!(r#"{{"code":{code},"message":"{message}"}}"#)) }
    }

    #[tokio::test]
    async fn codes_mean_what_the_contract_says() {
        let frontier = Frontier::new(1);
        frontier.probed(0, Commitment::Finalized, 50, Instant::now());
        let account = r#"["11111111111111111111111111111111"]"#;
        for (code, message, expected) in [
            (-32005, "Node is unhealthy", Err(Fault::Unhealthy)),
            (-32007, "", VOICE),
            (-32016, "", BEHIND),
            (-32601, "Method not found", INCAPABLE),
            (-32010, "", INCAPABLE),
            (-32011, "", INCAPABLE),
            (-32012, "", INCAPABLE),
            (-32019, "", INCAPABLE),
            (-32600, "Invalid request", Err(Fault::UnknownCode)),
            (-32600, "Encoded binary (base 58) data should be less than 128 bytes", ANSWER),
            (-32602, "Invalid param: could not find account", ANSWER),
            (-32603, "Internal error", Err(Fault::UnknownCode)),
            (-32700, "Parse error", Err(Fault::UnknownCode)),
            (-32099, "", Ok(Verdict::OwnWord)),
            (-32000, "", Ok(Verdict::OwnWord)),
            (429, "", Ok(Verdict::OwnWord)),
        ] {
            let ask = ask(Method::GetAccountInfo, account, false);
            assert_eq!(
                judge(&error(code, message), (None, 100), &ask, &frontier),
                expected,
                "{code} {message}"
            );
        }
        let alone = ask(Method::GetAccountInfo, account, true);
        assert_eq!(
            judge(&error(-32016, ""), (None, 100), &alone, &frontier),
            ANSWER,
            "the caller's own number"
        );
        for (slot, expected) in [(50, VOICE), (51, ANSWER)] {
            let ask = ask(Method::GetBlock, &format!("[{slot}]"), false);
            assert_eq!(
                judge(&error(-32004, ""), (None, 100), &ask, &frontier),
                expected,
                "-32004 for {slot}"
            );
        }
    }

    #[tokio::test]
    async fn a_result_below_the_floor_is_behind() {
        let frontier = Frontier::new(1);
        let account = ask(Method::GetAccountInfo, r#"["11111111111111111111111111111111"]"#, false);
        let result = NodeReply::Result(Bytes::from_static(b"{}"));
        for (context, expected) in [(Some(99), BEHIND), (Some(100), ANSWER), (None, Err(Fault::BadJson))] {
            assert_eq!(judge(&result, (context, 99), &account, &frontier), expected, "{context:?}");
        }
    }

    #[tokio::test]
    async fn an_error_about_an_account_below_the_floor_is_behind() {
        let frontier = Frontier::new(1);
        let key = r#"["11111111111111111111111111111111"]"#;
        for (method, params, expected) in [
            (Method::GetAccountInfo, key, BEHIND),
            (Method::GetTokenAccountBalance, key, BEHIND),
            (Method::GetMultipleAccounts, r#"[["11111111111111111111111111111111"]]"#, BEHIND),
            (Method::GetVoteAccounts, "[]", ANSWER),
        ] {
            let absent = error(-32602, "Invalid param: could not find account");
            let at = |slot, alone| judge(&absent, (None, slot), &ask(method, params, alone), &frontier);
            assert_eq!(
                (at(99, false), at(100, false), at(99, true)),
                (expected, ANSWER, ANSWER),
                "{method:?}"
            );
        }
    }

    #[tokio::test]
    async fn the_last_resort_is_the_highest_answer_then_behind_then_the_first_word() {
        let resort = |node, body: NodeReply, slot, why| {
            let reply = Reply { node, body, sent_at: Instant::now(), slot, confirmed: false };
            LastResort { reply, why }
        };
        let result = || NodeReply::Result(Bytes::from_static(b"{}"));
        let best = [
            (resort(0, error(-32601, ""), 9, AttemptResult::Incapable), 0),
            (resort(1, error(-32011, ""), 99, AttemptResult::Incapable), 0),
            (resort(2, error(-32016, ""), 5, AttemptResult::Behind), 2),
            (resort(3, result(), 3, AttemptResult::Behind), 3),
            (resort(4, result(), 4, AttemptResult::Behind), 4),
            (resort(5, result(), 2, AttemptResult::Behind), 4),
        ];
        let mut held = None;
        for (other, expected) in best {
            let better = LastResort::better(held.take(), other);
            assert_eq!(better.reply.node, expected);
            held = Some(better);
        }
    }
}
