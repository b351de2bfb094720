//! getTransaction: what one node says, and what a kept block says.

use serde_json::{Value, json};
use slotfront::cache::purge::Filter;
use slotfront::methods::{Commitment, Method};
use slotfront::telemetry::VerifyResult;
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;

#[tokio::test]
async fn null_transaction_of_one_node_decides_nothing() {
    let gateway = TestGateway::builder().nodes(3).start().await;
    let (block, nodes) = (gateway.cluster.examples().block_with_v0, gateway.cluster.nodes());
    let details = gateway.get_block(block).details("signatures").send().await;
    let signatures = details.result()["signatures"].clone();
    let transaction = |n: usize| gateway.call("getTransaction", json!([signatures[n]])).version_0();
    for node in &nodes[..2] {
        node.fault_on("getTransaction", Fault::Result(Value::Null), None);
    }
    // Whichever node is asked first, the one that has the transaction is asked as well.
    for n in 0..3 {
        let found = transaction(n).send().await;
        assert_eq!(found.result()["slot"], json!(block), "{}", found.text);
        // A caller at confirmed gets the same final answer.
        let again = transaction(n).confirmed().send().await;
        assert_eq!((again.is_hit(), again.result()), (true, found.result()), "{}", again.cache_status());
    }
    nodes[2].fault_on("getTransaction", Fault::Result(Value::Null), None);
    for _ in 0..2 {
        let before: Vec<_> = nodes.iter().map(|node| node.calls("getTransaction")).collect();
        let missing = transaction(3).send().await;
        assert_eq!((missing.result(), missing.is_hit()), (Value::Null, false));
        assert!(transaction(3).send().await.is_hit());
        let asked: Vec<_> =
            nodes.iter().zip(before).map(|(node, before)| node.calls("getTransaction") - before).collect();
        assert_eq!(asked, [1, 1, 1], "every node is asked once a slot");
        gateway.step_by(1).await;
    }
}

/// Returns the first signatures of the block at `slot`, as a node lists them.
fn signatures(gateway: &TestGateway, slot: u64) -> Vec<Value> {
    let block = gateway.get_block(slot).confirmed().details("signatures").result_of(gateway.cluster.node(0));
    block["signatures"].as_array().unwrap().clone()
}

#[tokio::test]
async fn kept_block_answers_for_its_transactions() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.verify.sample = Some(1.0)).start().await;
    let (slot, node) = (gateway.cluster.examples().block_with_v0, gateway.cluster.node(0));
    let transaction = |signature: &Value, encoding: &str| {
        gateway.call("getTransaction", json!([signature])).encoding(encoding)
    };
    let mut served = 0;
    // A block that is asked for as json is fetched in base64. One in jsonParsed serves only its own kind.
    for (block, encodings) in
        [("json", &["json", "base64", "base58", "binary"][..]), ("jsonParsed", &["jsonParsed"])]
    {
        let kept = gateway.get_block(slot).encoding(block).version_0().send().await;
        assert_eq!(kept.cache_status(), "fwd=miss; stored");
        for signature in signatures(&gateway, slot) {
            for encoding in encodings {
                let any = transaction(&signature, encoding);
                for call in [any.clone(), any.clone().version_0(), any.version_0().confirmed()] {
                    let reply = call.send().await;
                    assert_eq!(reply.json(), call.answer_of(node), "{}", call.body());
                    assert!(reply.is_derived(), "{}: {}", call.body(), reply.cache_status());
                    served += 1;
                    // Each hit waits for its comparison with a node, because few are made at once.
                    let compared =
                        |result| gateway.front().metrics.verify.at((Method::GetTransaction, result)).get();
                    gateway.until("the hit is compared", || compared(VerifyResult::Equal) == served).await;
                }
            }
        }
    }
    // Nothing is left of the block after a purge.
    gateway.front().cache.purger().purge(&Filter { slot: Some(slot), ..Filter::default() });
    gateway.front().cache.purger().purge(&Filter::of(Method::GetTransaction));
    let signature = &signatures(&gateway, slot)[0];
    assert_eq!(transaction(signature, "json").version_0().send().await.cache_status(), "fwd=miss; stored");
}

#[tokio::test]
async fn blocks_without_whole_transactions_answer_for_none() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let slot = gateway.cluster.examples().block_with_v0;
    for details in ["signatures", "none"] {
        gateway.get_block(slot).details(details).send().await;
    }
    for signature in signatures(&gateway, slot) {
        let asked = gateway.call("getTransaction", json!([signature])).version_0().send().await;
        assert_eq!(asked.cache_status(), "fwd=miss; stored", "{}", asked.text);
    }
}

#[tokio::test]
async fn abandoned_fork_answers_for_no_final_transaction() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    let slot = gateway.cluster.slot(Commitment::Confirmed);
    let held = signatures(&gateway, slot);
    let [first, second, ..] = &held[..] else { panic!("{held:?}") };
    let transaction = |signature: &Value| gateway.call("getTransaction", json!([signature])).version_0();
    gateway.get_block(slot).version_0().confirmed().send().await;
    let confirmed = transaction(first).confirmed().send().await;
    assert_eq!((confirmed.is_derived(), confirmed.result()["slot"].clone()), (true, json!(slot)));
    // The block is not final, so it answers nobody who asks at finalized.
    let early = transaction(first).send().await;
    assert_eq!((early.result(), early.cache_status()), (Value::Null, "fwd=miss; stored"));

    // The slot becomes final with the block of another fork, and no node knows the transactions of the first one.
    node.fault_on("getTransaction", Fault::Result(Value::Null), None);
    gateway.step_by(40).await;
    assert!(gateway.cluster.slot(Commitment::Finalized) >= slot);
    let is_unknown = async |when: &str| {
        for call in [transaction(second), transaction(second).confirmed()] {
            let reply = call.send().await;
            assert_eq!((reply.result(), reply.is_derived()), (Value::Null, false), "{when}");
        }
    };
    is_unknown("only the abandoned block is kept").await;
    let other = gateway.get_block(slot - 1).base64().version_0().result_of(node);
    node.fault_on("getBlock", Fault::Result(other), None);
    let kept = gateway.get_block(slot).base64().version_0().send().await;
    assert_eq!(kept.cache_status(), "fwd=miss; stored");
    is_unknown("another block is kept at the slot").await;
}
