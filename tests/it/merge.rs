//! Merging (`pool.merge`): calls for single accounts go upstream together while the nodes are busy.

use futures_util::future::join_all;
use serde_json::{Value, json};
use slotfront::methods::PerCommitment;
use slotfront_sim::{Fault, Hold};

use crate::harness::Stage;

fn params(key: &str) -> Value {
    json!([key, {"encoding": "base64", "commitment": "confirmed"}])
}

/// Returns a gateway that knows the sizes of all accounts and holds none of them fresh, and the accounts.
async fn stage(merge: bool) -> (Stage, Vec<String>) {
    let stage = Stage::with(|config| {
        config.pool.merge = merge;
        config.cache.max_lag_slots = PerCommitment::uniform(0);
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    })
    .await;
    let there = stage.cluster.examples();
    let accounts = there.wallets.iter().chain(&there.token_accounts).chain(&there.mints).take(20);
    let accounts: Vec<String> = accounts.map(ToString::to_string).collect();
    for account in &accounts {
        stage.call("getAccountInfo", params(account)).await;
    }
    stage.step_by(1).await;
    (stage, accounts)
}

/// Fetches every account at once while the nodes hold their replies. Returns the number of calls of each
/// kind.
async fn ask_all(stage: &Stage, accounts: &[String], fault: Option<Fault>) -> (Vec<Value>, u64, u64) {
    let calls = |method: &str| stage.cluster.nodes().iter().map(|node| node.calls(method)).sum::<u64>();
    let before = (calls("getAccountInfo"), calls("getMultipleAccounts"));
    let holds: Vec<_> = stage.cluster.nodes().iter().map(|node| node.hold("getAccountInfo")).collect();
    if let Some(fault) = fault {
        stage
            .cluster
            .nodes()
            .iter()
            .for_each(|node| node.fault_on("getMultipleAccounts", fault.clone(), None));
    }
    let asked = accounts.iter().map(|account| stage.call("getAccountInfo", params(account)));
    let in_flight = || stage.front().in_flight.load(std::sync::atomic::Ordering::Relaxed);
    let (replies, ()) = tokio::join!(join_all(asked), async {
        stage.until("all have asked", || in_flight() == accounts.len()).await;
        let waiting = || holds.iter().map(Hold::waiting).sum::<usize>();
        stage.until("the first of them are held", || waiting() >= 4).await;
        drop(holds);
    });
    for (account, reply) in accounts.iter().zip(&replies) {
        let truth = stage.cluster.account_at(
            &slotfront::methods::Pubkey::parse(account).unwrap(),
            reply.result()["context"]["slot"].as_u64().unwrap(),
        );
        assert_eq!(reply.result()["value"]["lamports"], truth.unwrap().lamports, "{account}");
        assert_eq!(reply.cache(), "fwd=stale; stored");
    }
    let results = replies.iter().map(crate::harness::Reply::result).collect();
    (results, calls("getAccountInfo") - before.0, calls("getMultipleAccounts") - before.1)
}

#[tokio::test]
async fn busy_pool_merges_single_accounts() {
    let (off, accounts) = stage(false).await;
    let (plain, singles, lists) = ask_all(&off, &accounts, None).await;
    assert_eq!((singles, lists), (20, 0), "off by default");
    let (on, _) = stage(true).await;
    let (merged, singles, lists) = ask_all(&on, &accounts, None).await;
    assert_eq!(merged, plain, "the answers are the same");
    assert_eq!(singles, 4, "those that were under way");
    assert!((1..=4).contains(&lists), "{lists} lists for the other 16");
    let hits = join_all(accounts.iter().map(|account| on.call("getAccountInfo", params(account)))).await;
    assert!(hits.iter().all(|hit| hit.cache().starts_with("hit")), "each is kept");
}

#[tokio::test]
async fn refused_merge_falls_back_to_single_calls() {
    let (stage, accounts) = stage(true).await;
    let refused = Fault::Error { code: -32602, message: "Too many inputs provided; max 1".to_owned() };
    let (_, singles, lists) = ask_all(&stage, &accounts, Some(refused)).await;
    assert_eq!(singles, 20);
    assert!(lists >= 1);
}
