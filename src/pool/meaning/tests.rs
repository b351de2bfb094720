//! Tests of what answers of nodes mean.

use bytes::Bytes;
use tokio::time::Instant;

use super::*;
use crate::jsonrpc::Params;
use crate::methods::{Method, Profile, Query};
use crate::pool::UpstreamRequest;
use crate::pool::call_context::CallContext;
use crate::pool::upstream_call::UpstreamCall as _;

const ANSWER: Result<Meaning, Fault> = Ok(Meaning::Decides);
const ABSENT: Result<Meaning, Fault> = Ok(absent(Holders::Any));
const UNLIKELY: Result<Meaning, Fault> = Ok(Meaning::AskOn(WhyAskOn::Unlikely));
const BEHIND: Result<Meaning, Fault> = Ok(Meaning::AskOn(WhyAskOn::Behind));
const PRIVATE: Result<Meaning, Fault> = Ok(Meaning::AskOn(WhyAskOn::Private));
const NOT_HERE: Result<Meaning, Fault> = Ok(Meaning::NotHere);
const ACCOUNT: &str = r#"["11111111111111111111111111111111"]"#;

fn request(method: Method, params: &str, one_node: bool) -> UpstreamRequest {
    let params = Params::Array(Bytes::copy_from_slice(params.as_bytes()));
    UpstreamRequest {
        query: Query::parse(method, &params, Profile::Node).unwrap(),
        min_slot: Some(100),
        prefer: None,
        one_node,
        context: CallContext::own(Instant::now()),
    }
}

fn error(code: i32, message: &str) -> NodeReply {
    NodeReply::Error { code, body: Bytes::from(format!(r#"{{"code":{code},"message":"{message}"}}"#)) }
}

fn sent(slot_before: Slot) -> SentRequest {
    SentRequest {
        id: 0,
        at: Instant::now(),
        era: Frontier::new(0).era(),
        min_context_slot: None,
        slot_before,
        finalized_before: slot_before,
        newest_before: slot_before,
        max_slot_lag: 20,
    }
}

/// Codes, the methods for which they come, and what they mean then.
type Row<'a> = (&'a [i32], &'a [Method], Result<Meaning, Fault>);

#[tokio::test]
async fn an_error_means_what_it_means_for_its_method() {
    use Method::{GetAccountInfo, GetBlock, GetBlocks, GetInflationReward, GetProgramAccounts};
    use Method::{GetSignaturesForAddress, GetSlotLeaders, GetTokenAccountBalance, GetTransaction};
    let unlisted = [-32000, -32023, -32099, -32097, -32029, -32413, 15, -1, 0];
    let of_senders = [-32002, -32003, -32006, -32008, -32013, -32017, -32021, -32022];
    let rows: &[Row<'_>] = &[
        (&[-32005], &[GetAccountInfo, GetBlock], Err(Fault::Unhealthy)),
        (&[-32603, -32700, -32600], &[GetAccountInfo, GetBlock, GetProgramAccounts], Err(Fault::UnknownCode)),
        (&[-32601, -32011, -32019], &[GetAccountInfo, GetBlock, GetProgramAccounts], NOT_HERE),
        (&[-32010, -32012], &[GetProgramAccounts], NOT_HERE),
        (&[-32010, -32012], &[GetAccountInfo, GetBlock], PRIVATE),
        (&[-32016], &[GetAccountInfo, GetTokenAccountBalance], PRIVATE),
        (&[-32602], &[GetTokenAccountBalance, GetProgramAccounts], ANSWER),
        (&[-32602], &[GetAccountInfo, GetBlocks, GetSlotLeaders, GetBlock], PRIVATE),
        (&[-32015], &[GetBlock, GetTransaction], ANSWER),
        (&[-32015, -32007, -32004], &[GetAccountInfo], PRIVATE),
        (&[-32001, -32007, -32009, -32014], &[GetBlock, GetInflationReward], ABSENT),
        (&[-32004, -32018], &[GetInflationReward], ABSENT),
        (&[-32017], &[GetInflationReward], ANSWER),
        (&[-32020], &[GetSignaturesForAddress], ABSENT),
        (&[-32020, -32017, -32018], &[GetBlock], PRIVATE),
        (&unlisted, &[GetAccountInfo, GetBlock, GetTransaction, GetProgramAccounts], PRIVATE),
        (&of_senders, &[GetAccountInfo, GetBlock], PRIVATE),
    ];
    let frontier = Frontier::new(1);
    for (codes, methods, expected) in rows {
        for (code, method) in codes.iter().flat_map(|code| methods.iter().map(move |method| (*code, *method)))
        {
            let request = request(method, params_of(method), false);
            let read = ParsedReply::new(error(code, ""), None);
            assert_eq!(request.judge(&read, &sent(100), &frontier), *expected, "{code} {method:?}");
        }
    }
    let account = |code, message, alone| {
        let read = ParsedReply::new(error(code, message), None);
        request(GetAccountInfo, ACCOUNT, alone).judge(&read, &sent(100), &frontier)
    };
    assert_eq!(account(-32600, "Encoded binary (base 58) data should be less than 128 bytes", false), ANSWER);
    let behind = r#"{"code":-32016,"message":"","data":{"contextSlot":99}}"#;
    let behind = ParsedReply::new(NodeReply::Error { code: -32016, body: behind.into() }, None);
    let at_slot = |alone| request(GetAccountInfo, ACCOUNT, alone).judge(&behind, &sent(100), &frontier);
    assert_eq!((at_slot(false), at_slot(true)), (BEHIND, ANSWER), "the caller's own number");
}

/// Returns params with which a call of `method` is valid.
fn params_of(method: Method) -> &'static str {
    match method {
        Method::GetBlock => "[5]",
        Method::GetBlocks => "[5,6]",
        Method::GetSlotLeaders => "[5,1]",
        Method::GetInflationReward => r#"[["11111111111111111111111111111111"]]"#,
        Method::GetTransaction => {
            r#"["5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW"]"#
        }
        _ => ACCOUNT,
    }
}

#[tokio::test]
async fn a_block_that_is_not_there_yet_may_be_elsewhere() {
    let frontier = Frontier::new(1);
    frontier.probed(frontier.era(), 0, Commitment::Finalized, 50, Instant::now());
    let ahead = Ok(absent(Holders::Ahead));
    for (method, slot, expected) in [
        (Method::GetBlock, 50, ABSENT),
        (Method::GetBlock, 51, ahead),
        (Method::GetBlock, 58, ahead),
        (Method::GetBlock, 59, ANSWER),
        (Method::GetBlockTime, 50, ABSENT),
        (Method::GetBlockTime, 51, ahead),
    ] {
        let request = request(method, &format!("[{slot}]"), false);
        let read = ParsedReply::new(error(-32004, ""), None);
        assert_eq!(request.judge(&read, &sent(100), &frontier), expected, "{method:?} {slot}");
    }
}

#[tokio::test]
async fn what_a_result_lacks_another_node_may_hold() {
    let address = "SysvarC1ock11111111111111111111111111111111";
    let two = format!(r#"["{address}",{{"limit":2}}]"#);
    let past: &str = "[5,9]";
    let rewards = params_of(Method::GetInflationReward);
    let transaction = params_of(Method::GetTransaction);
    for (method, params, result, expected) in [
        (Method::GetSignaturesForAddress, &*two, "[{},{}]", ANSWER),
        (Method::GetSignaturesForAddress, &two, "[{}]", Ok(absent(Holders::Older))),
        (Method::GetSignaturesForAddress, &two, "[]", Ok(absent(Holders::Older))),
        (Method::GetBlocks, past, "[5,6,7,8,9]", ANSWER),
        (Method::GetBlocks, past, "[]", Ok(absent(Holders::Older))),
        (Method::GetBlocks, "[95,99]", "[]", ANSWER),
        (Method::GetInflationReward, rewards, "[{}]", ANSWER),
        (Method::GetInflationReward, rewards, "[null]", ABSENT),
        (Method::GetTransaction, transaction, "{}", ANSWER),
        (Method::GetTransaction, transaction, "null", ABSENT),
        (Method::GetBlock, "[5]", "null", ABSENT),
        (Method::GetBlockTime, "[5]", "null", ABSENT),
    ] {
        let request = request(method, params, false);
        let read = request.reader(100)(NodeReply::Result(Bytes::from_static(result.as_bytes()))).unwrap();
        assert_eq!(request.judge(&read, &sent(100), &Frontier::new(1)), expected, "{method:?} {result}");
    }
}

#[tokio::test]
async fn result_below_the_minimum_slot_is_behind() {
    let frontier = Frontier::new(1);
    let account = request(Method::GetAccountInfo, ACCOUNT, false);
    for (context, expected) in [(Some(99), BEHIND), (Some(100), ANSWER), (None, Err(Fault::BadJson))] {
        let read = ParsedReply::new(NodeReply::Result(Bytes::from_static(b"{}")), context);
        assert_eq!(account.judge(&read, &sent(99), &frontier), expected, "{context:?}");
    }
}

#[tokio::test]
async fn results_far_from_known_slots_are_doubted() {
    let frontier = Frontier::new(2);
    let account = UpstreamRequest { min_slot: None, ..request(Method::GetAccountInfo, ACCOUNT, false) };
    let result = |slot| ParsedReply::new(NodeReply::Result(Bytes::from_static(b"{}")), Some(slot));
    let classify = |slot| account.judge(&result(slot), &sent(1000), &frontier);
    assert_eq!(classify(100_000), ANSWER, "no node has told a slot");
    frontier.probed(frontier.era(), 0, Commitment::Finalized, 1000, Instant::now());
    for (slot, expected) in [(979, BEHIND), (980, ANSWER), (1000, ANSWER), (1064, ANSWER), (1065, UNLIKELY)] {
        assert_eq!(classify(slot), expected, "{slot}");
    }
}

#[tokio::test]
async fn answer_of_a_fallen_node_is_behind() {
    let frontier = Frontier::new(2);
    let account = UpstreamRequest { min_slot: None, ..request(Method::GetAccountInfo, ACCOUNT, false) };
    // The fall to slot 800 was seen between the choice of the node and the request.
    let sent = SentRequest { newest_before: 1000, ..sent(800) };
    for (slot, expected) in [(800, BEHIND), (979, BEHIND), (980, ANSWER), (1000, ANSWER)] {
        let read = ParsedReply::new(NodeReply::Result(Bytes::from_static(b"{}")), Some(slot));
        assert_eq!(account.judge(&read, &sent, &frontier), expected, "{slot}");
    }
}

#[tokio::test]
async fn slow_answer_is_not_behind() {
    let frontier = Frontier::new(2);
    let account = UpstreamRequest { min_slot: None, ..request(Method::GetAccountInfo, ACCOUNT, false) };
    // The newest known slot has moved on by 30 slots while the answer was under way.
    frontier.probed(frontier.era(), 0, Commitment::Finalized, 1030, Instant::now());
    let read = ParsedReply::new(NodeReply::Result(Bytes::from_static(b"{}")), Some(1000));
    assert_eq!(account.judge(&read, &sent(1000), &frontier), ANSWER);
}

#[tokio::test]
async fn account_error_below_the_minimum_is_behind() {
    let frontier = Frontier::new(1);
    for (method, code, message) in [
        (Method::GetAccountInfo, -32600, "Encoded binary (base 58) data"),
        (Method::GetTokenAccountBalance, -32602, "Invalid param: could not find account"),
    ] {
        let absent = ParsedReply::new(error(code, message), None);
        let at = |slot, alone| request(method, ACCOUNT, alone).judge(&absent, &sent(slot), &frontier);
        assert_eq!((at(99, false), at(100, false), at(99, true)), (BEHIND, ANSWER, ANSWER), "{method:?}");
    }
}

#[tokio::test]
async fn context_is_read_in_any_order() {
    let balance = request(Method::GetTokenAccountBalance, ACCOUNT, false);
    let nodes = request(Method::GetClusterNodes, "[]", false);
    for (result, request, expected) in [
        (r#"{"context":{"slot":5},"value":{"amount":"1"}}"#, &balance, Ok(Some(5))),
        (r#"{ "context" : { "slot" : 5 }, "value" : { "amount" : "1" } }"#, &balance, Ok(Some(5))),
        (r#"{"value":{"amount":"1"},"context":{"apiVersion":"4.0.0","slot":5}}"#, &balance, Ok(Some(5))),
        (r#"{"value":{"amount":"1"}}"#, &balance, Err(Fault::BadJson)),
        ("[]", &nodes, Ok(None)),
    ] {
        let read = request.reader(0)(NodeReply::Result(Bytes::from_static(result.as_bytes())));
        assert_eq!(read.map(|read| read.slot), expected, "{result}");
    }
}
