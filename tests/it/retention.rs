//! Nodes that keep different parts of the history: no answer is missing that one of them has.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::Config;
use slotfront::methods::{Commitment, PerCommitment, Slot};
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;

#[tokio::test]
async fn everything_that_one_node_keeps_is_found() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let (cluster, pruned, whole) = (&gateway.cluster, gateway.cluster.node(0), gateway.cluster.node(1));
    let newest = cluster.slot(Commitment::Finalized);
    let kept = newest - 20;
    pruned.prune_below(kept);
    // A page of transactions does not show that older ones are missing, so the gateway has to know it from a probe.
    let first = || gateway.front().pool.members()[0].first_available();
    gateway.until("the first node's oldest block is known", || first() == Some(kept)).await;
    let wallet = cluster.examples().wallets[0].to_string();
    let same = async |method: &'static str, params: Value| {
        let call = gateway.call(method, params);
        let reply = call.send().await;
        assert_eq!(reply.json(), call.answer_of(whole), "{}: {}", call.body(), reply.cache_status());
        reply.result()
    };
    for back in (0..60).step_by(3) {
        let slot = newest - back;
        same("getBlocks", json!([slot, newest])).await;
        same("getBlocksWithLimit", json!([slot, 4])).await;
        same("getBlockTime", json!([slot])).await;
        let block = gateway.get_block(slot).details("signatures").send().await;
        if let Some(signature) = block.result()["signatures"].get(0) {
            let transaction =
                same("getTransaction", json!([signature, { "maxSupportedTransactionVersion": 0 }])).await;
            assert_eq!(transaction["slot"], json!(slot));
        }
    }
    // From the newest transaction back, page by page, beyond what the first node keeps.
    let mut config = json!({ "limit": 7 });
    let mut oldest = newest;
    while oldest > kept - 20 {
        let page = same("getSignaturesForAddress", json!([wallet, config])).await;
        let last =
            page.as_array().and_then(|page| page.last()).expect("there are older transactions").clone();
        oldest = last["slot"].as_u64().unwrap();
        config["before"] = last["signature"].clone();
    }
}

#[tokio::test]
async fn lists_of_blocks_come_from_nodes_that_hold_their_start() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let cluster = &gateway.cluster;
    let newest = cluster.slot(Commitment::Finalized);
    let whole = |first: u64, last: u64| {
        let node = cluster.node(1);
        gateway.call("getBlocks", json!([first, last])).result_of(node)
    };
    // Nobody knows yet that the first node has lost its old blocks: it leaves them out of its lists.
    cluster.node(0).prune_below(newest - 20);
    for n in 0..12 {
        let (first, last) = (newest - 90 + n, newest - 10);
        let blocks = gateway.call("getBlocks", json!([first, last]));
        let reply = blocks.send().await;
        assert_eq!(reply.result(), whole(first, last), "{}", reply.cache_status());
        let again = blocks.confirmed().send().await;
        assert_eq!((again.is_hit(), again.result()), (true, reply.result()), "{}", again.cache_status());
    }
    // While the node that has them is down, nobody is told that they are missing.
    cluster.node(1).set_down(true);
    let cut = gateway.call("getBlocks", json!([newest - 60, newest - 10])).send().await;
    assert_eq!((cut.status, cut.code()), (502, -32095), "{}", cut.text);
}

#[tokio::test]
async fn rewards_that_one_node_lacks_come_from_another() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let cluster = &gateway.cluster;
    let lacking = Fault::Error { code: -32_018, message: "Rewards cannot be found".to_owned() };
    cluster.node(0).fault_on("getInflationReward", lacking, None);
    let stakes: Vec<_> = cluster.examples().stake_accounts.iter().map(ToString::to_string).collect();
    // Each list is a call of its own, so that both nodes are asked first at some time.
    for first in 0..stakes.len().min(9) {
        let call = gateway.call("getInflationReward", json!([stakes[first..]]));
        let reply = call.send().await;
        assert_eq!(reply.json(), call.answer_of(cluster.node(1)), "{first}");
        assert!(reply.result()[0].is_object(), "{}", reply.text);
    }
}

/// Lets answers about the newest state be kept for this time.
fn state_for(time: Duration) -> impl FnOnce(&mut Config) {
    move |config| {
        config.cache.ttl.account = PerCommitment::uniform(time);
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    }
}

#[tokio::test]
async fn lists_with_a_gap_are_asked_elsewhere_and_not_kept() {
    let gateway = TestGateway::builder().nodes(2).config(state_for(Duration::ZERO)).start().await;
    let newest = gateway.cluster.slot(Commitment::Finalized);
    let list = |first: Slot, missing: std::ops::Range<Slot>| -> Vec<Slot> {
        (first..=newest).filter(|slot| !missing.contains(slot)).collect()
    };
    // Each list begins elsewhere, so none is kept already.
    let mut firsts = (0..newest - 50).rev();
    for _ in 0..4 {
        // A node that has begun anew from a snapshot has a hole in its blocks, and leaves them out without a word.
        for (missing, is_kept) in [
            (newest - 40..newest - 32, true),
            (newest - 40..newest - 31, false),
            (newest - 30..newest + 1, false),
        ] {
            let first = firsts.next().unwrap();
            gateway.cluster.clear_faults();
            let holed = list(first, missing.clone());
            gateway.cluster.fault_everywhere("getBlocks", &Fault::Result(json!(holed)));
            let call = gateway.call("getBlocks", json!([first, newest]));
            assert_eq!(call.send().await.result(), json!(holed));
            assert_eq!(call.send().await.is_hit(), is_kept, "{missing:?} of {first} to {newest}");
        }
        // The other node has them.
        let first = firsts.next().unwrap();
        gateway.cluster.clear_faults();
        let holed = Fault::Result(json!(list(first, newest - 40..newest - 20)));
        gateway.cluster.node(0).fault_on("getBlocks", holed, None);
        let whole = json!(list(first, 0..0));
        gateway.cluster.node(1).fault_on("getBlocks", Fault::Result(whole.clone()), None);
        let reply = gateway.call("getBlocks", json!([first, newest])).send().await;
        assert_eq!(reply.result(), whole, "{}", reply.cache_status());
    }
}
