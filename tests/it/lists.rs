//! Lists of blocks, pages of signatures and rewards: which of them are kept, and of which node.

use std::time::Duration;

use serde_json::json;
use slotfront::config::Config;
use slotfront::methods::{Commitment, PerCommitment};
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
