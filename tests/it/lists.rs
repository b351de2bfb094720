//! Lists of blocks, pages of signatures and rewards: which of them are kept, and of which node.

use std::time::Duration;

use serde_json::json;
use slotfront::config::Config;
use slotfront::methods::{Commitment, PerCommitment, Slot};
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;

/// Lets answers about the newest state be kept for this time.
fn state_for(time: Duration) -> impl FnOnce(&mut Config) {
    move |config| {
        config.cache.ttl.account = PerCommitment::uniform(time);
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    }
}

#[tokio::test]
async fn a_list_that_is_not_final_yet_serves_its_own_commitment() {
    let gateway = TestGateway::builder().nodes(1).config(state_for(Duration::from_mins(1))).start().await;
    let (cluster, node) = (&gateway.cluster, gateway.cluster.node(0));
    let newest = cluster.slot(Commitment::Finalized);
    let page = json!([{ "signature": "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW", "slot": newest + 1 }]);
    for page in [json!([]), page] {
        node.fault_on("getSignaturesForAddress", Fault::Result(page), Some(1));
    }
    let wallet = cluster.examples().wallets[0].to_string();
    for (method, params) in
        [("getSignaturesForAddress", json!([wallet])), ("getBlocksWithLimit", json!([newest - 9, 1000]))]
    {
        let call = gateway.call(method, params);
        let at_finalized = call.send().await.result();
        assert!(call.send().await.is_hit(), "{method}");
        // What is confirmed and not final is missing at finalized.
        let reply = call.confirmed().send().await;
        let [at_finalized, confirmed] =
            [at_finalized, reply.result()].map(|list| list.as_array().unwrap().len());
        assert!(confirmed > at_finalized, "{method}: {}, {}", reply.cache_status(), reply.text);
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

#[tokio::test]
async fn rewards_come_from_a_node_that_has_the_first_block_of_the_epoch() {
    let gateway = TestGateway::builder().nodes(2).in_tiers().start().await;
    let message = "Rewards cannot be found because slot 96 is not the epoch boundary. This may be due to gap in the queried node's local ledger or long-term storage";
    let gap = Fault::Error { code: -32_018, message: message.to_owned() };
    gateway.cluster.node(0).fault_on("getInflationReward", gap.clone(), None);
    gateway.cluster.node(1).fault_on("getInflationReward", Fault::Result(json!([null])), Some(1));
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    let call = gateway.call("getInflationReward", json!([[wallet], { "epoch": 2 }]));
    let reply = call.send().await;
    assert_eq!(reply.result(), json!([null]), "{}", reply.text);
    // Where no node has it, the caller gets to know why.
    gateway.cluster.node(1).fault_on("getInflationReward", gap, None);
    let other = gateway.call("getInflationReward", json!([[wallet], { "epoch": 1 }])).send().await;
    assert_eq!(other.code(), -32_018, "{}", other.text);
}
