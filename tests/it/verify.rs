//! Verification of hits against a node, seen in the counters.

use serde_json::{Value, json};
use slotfront::methods::{Commitment, Method};
use slotfront::telemetry::VerifyResult;
use slotfront_sim::{Fault, Hold};
use slotfront_testkit::TestGateway;

async fn verifying(nodes: usize) -> TestGateway {
    TestGateway::builder().nodes(nodes).config(|config| config.verify.sample = Some(1.0)).start().await
}

/// Returns the number of comparisons of `method` with each result: equal, moved and mismatch.
fn counted(gateway: &TestGateway, method: Method) -> [u64; 3] {
    VerifyResult::ALL.map(|result| gateway.front().metrics.verify.at((method, result)).get())
}

/// Waits until `n` comparisons of `method` are counted, and returns their numbers by result.
async fn compared(gateway: &TestGateway, method: Method, n: u64) -> [u64; 3] {
    gateway.until("the hits are compared", || counted(gateway, method).iter().sum::<u64>() >= n).await;
    counted(gateway, method)
}

#[tokio::test]
async fn every_kind_of_hit_equals_the_node() {
    let gateway = verifying(3).await;
    let there = gateway.cluster.examples();
    let (a, b) = (there.wallets[0].to_string(), there.token_accounts[0].to_string());
    let skipped = there.skipped_slot.expect("some slot is skipped");
    let young = gateway.cluster.slot(Commitment::Confirmed);
    // Each call of a method is made twice.
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
            hits += u64::from(gateway.call(method.as_str(), params.clone()).send().await.is_hit());
            // Each hit waits for its comparison, because the number of simultaneous comparisons is bounded.
            assert_eq!(compared(&gateway, method, hits).await, [hits, 0, 0], "{params}");
        }
        assert!(hits >= calls.len() as u64, "{hits} hits of {}", method.as_str());
    }
}

#[tokio::test]
async fn only_contradictions_are_mismatches() {
    let gateway = verifying(2).await;
    let there = gateway.cluster.examples();
    let account = there.wallets[0].to_string();
    let (block, skipped) = (there.block_with_v0, there.skipped_slot.expect("some slot is skipped"));
    let all_say = |method: Method, fault: &Fault| {
        for node in gateway.cluster.nodes() {
            node.clear_faults();
            node.fault_on(method.as_str(), fault.clone(), None);
        }
    };
    let at = |commitment: &str| json!([account, {"commitment": commitment}]);
    let (version, any) = (json!({"maxSupportedTransactionVersion": 0}), Method::GetAccountInfo);
    let kept = [at("confirmed"), at("finalized")];
    let mut results = Vec::new();
    for params in &kept {
        results.push(gateway.call(any.as_str(), params.clone()).send().await.result());
    }
    let blocks = [json!([block, version]), json!([skipped, version])];
    let whole = gateway.get_block(block).version_0().send().await.result();
    gateway.get_block(skipped).version_0().send().await;

    let lie = |mut result: Value, slots: u64| {
        result["value"]["lamports"] = json!(1);
        result["context"]["slot"] = json!(result["context"]["slot"].as_u64().expect("a slot") + slots);
        Fault::Result(result)
    };
    let other_block = || {
        let mut other = whole.clone();
        other["blockhash"] = json!(account);
        other["parentSlot"] = json!(block.min(skipped) - 1);
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
        let before = counted(&gateway, method);
        let hit = gateway.call(method.as_str(), params.clone()).send().await;
        assert!(hit.is_hit(), "{params}: {}", hit.cache_status());
        let after = compared(&gateway, method, before.iter().sum::<u64>() + 1).await;
        let counts = |result: VerifyResult| after[result.index()] - before[result.index()];
        assert_eq!(counts(expected), 1, "{params} against {says:?}: {before:?} became {after:?}");
    }
}

#[tokio::test]
async fn comparisons_are_bounded_and_nobody_waits_for_them() {
    let gateway = verifying(1).await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]);
    call.send().await;
    let hold: Hold = gateway.cluster.node(0).hold("getAccountInfo");
    for _ in 0..20 {
        assert!(call.send().await.is_hit());
    }
    hold.arrived(4).await;
    hold.release();
    assert_eq!(compared(&gateway, Method::GetAccountInfo, 4).await, [4, 0, 0]);
    assert_eq!(gateway.upstream_calls(), 5);
    assert_eq!(gateway.metric(r#"slotfront_verify_total{method="getAccountInfo",result="equal"}"#), 4);
}
