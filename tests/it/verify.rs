//! Verification of hits against a node, seen in the counters.

use serde_json::{Value, json};
use slotfront::methods::{Commitment, Method};
use slotfront::telemetry::VerifyResult;
use slotfront_sim::{Fault, Hold};

use crate::harness::Stage;

async fn verifying(nodes: usize) -> Stage {
    Stage::of(nodes, |config| config.verify.sample = 1.0).await
}

/// Returns the number of comparisons of `method` with the results equal, moved and mismatch.
fn counted(stage: &Stage, method: Method) -> [u64; 3] {
    VerifyResult::ALL.map(|result| stage.front().metrics.verify.at((Some(method), result)).get())
}

/// Waits for `n` comparisons of `method`, and returns their results.
async fn compared(stage: &Stage, method: Method, n: u64) -> [u64; 3] {
    stage.until("the hits are compared", || counted(stage, method).iter().sum::<u64>() >= n).await;
    counted(stage, method)
}

#[tokio::test]
async fn every_kind_of_hit_equals_the_node() {
    let stage = verifying(3).await;
    let there = stage.cluster.examples();
    let (a, b) = (there.wallets[0].to_string(), there.token_accounts[0].to_string());
    let skipped = there.skipped_slot.expect("some slot is skipped");
    let young = stage.cluster.slot(Commitment::Confirmed);
    // Each with the number of hits, after the calls before it.
    for (method, calls) in [
        (
            Method::GetAccountInfo,
            vec![json!([a]), json!([b, {"encoding": "base64+zstd", "commitment": "processed"}])],
        ),
        (
            Method::GetMultipleAccounts,
            vec![json!([[a, b], {"commitment": "confirmed"}]), json!([[b, a], {"commitment": "confirmed"}])],
        ),
        (Method::GetTokenAccountBalance, vec![json!([b]), json!([a])]),
        (Method::GetVoteAccounts, vec![json!([])]),
        (Method::GetFeeForMessage, vec![json!([there.fee_message])]),
        (
            Method::GetBlock,
            vec![
                json!([there.block_with_v0, {"maxSupportedTransactionVersion": 0}]),
                json!([there.block_with_v0, {"commitment": "confirmed"}]),
                json!([young, {"commitment": "confirmed", "transactionDetails": "none"}]),
                json!([young, {"transactionDetails": "none"}]),
                json!([skipped]),
            ],
        ),
        (Method::GetRecentPerformanceSamples, vec![json!([]), json!([5])]),
        (Method::GetClusterNodes, vec![json!([])]),
    ] {
        let mut hits = 0;
        for params in calls.iter().chain(&calls) {
            hits += u64::from(stage.call(method.as_str(), params.clone()).await.cache().starts_with("hit"));
            // One after the other, because the number of simultaneous comparisons is bounded.
            assert_eq!(compared(&stage, method, hits).await, [hits, 0, 0], "{params}");
        }
        assert!(hits >= calls.len() as u64, "{hits} hits of {}", method.as_str());
    }
}

#[tokio::test]
async fn only_contradictions_are_mismatches() {
    let stage = verifying(2).await;
    let there = stage.cluster.examples();
    let account = there.wallets[0].to_string();
    let (block, skipped) = (there.block_with_v0, there.skipped_slot.expect("some slot is skipped"));
    let all_say = |method: Method, fault: &Fault| {
        for node in stage.cluster.nodes() {
            node.clear_faults();
            node.fault_on(method.as_str(), fault.clone(), None);
        }
    };
    let at = |commitment: &str| json!([account, {"commitment": commitment}]);
    let (version, any) = (json!({"maxSupportedTransactionVersion": 0}), Method::GetAccountInfo);
    let kept = [at("confirmed"), at("finalized")];
    let mut results = Vec::new();
    for params in &kept {
        results.push(stage.call(any.as_str(), params.clone()).await.result());
    }
    let blocks = [json!([block, version]), json!([skipped, version])];
    let whole = stage.call("getBlock", blocks[0].clone()).await.result();
    stage.call("getBlock", blocks[1].clone()).await;

    let lie = |mut result: Value, slots: u64| {
        result["value"]["lamports"] = json!(1);
        result["context"]["slot"] = json!(result["context"]["slot"].as_u64().expect("a slot") + slots);
        Fault::Result(result)
    };
    let other_block = || {
        let mut other = whole.clone();
        other["blockhash"] = json!(account);
        Fault::Result(other)
    };
    let error = |code| Fault::Error { code, message: "a node's word".to_owned() };
    let block = Method::GetBlock;
    for (method, params, says, expected) in [
        (any, &kept[0], lie(results[0].clone(), 0), VerifyResult::Mismatch),
        (any, &kept[0], lie(results[0].clone(), 1), VerifyResult::Moved),
        (any, &kept[1], lie(results[1].clone(), 0), VerifyResult::Moved),
        (any, &kept[0], error(-32016), VerifyResult::Moved),
        (any, &kept[0], Fault::Status(500), VerifyResult::Moved),
        (block, &blocks[0], other_block(), VerifyResult::Mismatch),
        (block, &blocks[0], error(-32007), VerifyResult::Moved),
        (block, &blocks[0], Fault::NullResult, VerifyResult::Moved),
        (block, &blocks[1], other_block(), VerifyResult::Mismatch),
        (block, &blocks[1], error(-32009), VerifyResult::Equal),
    ] {
        all_say(method, &says);
        let before = counted(&stage, method);
        let hit = stage.call(method.as_str(), params.clone()).await;
        assert!(hit.cache().starts_with("hit"), "{params}: {}", hit.cache());
        let after = compared(&stage, method, before.iter().sum::<u64>() + 1).await;
        let counts = |result: VerifyResult| after[result.index()] - before[result.index()];
        assert_eq!(counts(expected), 1, "{params} against {says:?}: {before:?} became {after:?}");
    }
}

#[tokio::test]
async fn comparisons_are_bounded_and_nobody_waits_for_them() {
    let stage = verifying(1).await;
    let account = json!([stage.cluster.examples().wallets[0].to_string()]);
    stage.call("getAccountInfo", account.clone()).await;
    let hold: Hold = stage.cluster.node(0).hold("getAccountInfo");
    for _ in 0..20 {
        assert!(stage.call("getAccountInfo", account.clone()).await.cache().starts_with("hit"));
    }
    hold.arrived(4).await;
    hold.release();
    assert_eq!(compared(&stage, Method::GetAccountInfo, 4).await, [4, 0, 0]);
    assert_eq!(stage.upstream_calls(), 5);
    let text = stage.admin("/metrics").await.text;
    assert!(
        text.contains("slotfront_verify_total{method=\"getAccountInfo\",result=\"equal\"} 4\n"),
        "{text}"
    );
}
