//! Merging (`pool.merge`): calls for single accounts go upstream together while the nodes are busy.

use futures_util::future::join_all;
use serde_json::Value;
use slotfront::methods::{PerCommitment, Pubkey};
use slotfront_sim::{Fault, Hold};
use slotfront_testkit::TestGateway;

/// Returns a gateway and twenty accounts. The gateway knows the sizes of the accounts, and holds no fresh
/// answer about them.
async fn knowing_sizes(merge: bool) -> (TestGateway, Vec<Pubkey>) {
    let gateway = TestGateway::builder()
        .config(|config| {
            config.pool.merge = merge;
            config.cache.max_lag_slots = PerCommitment::uniform(0);
            config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
        })
        .start()
        .await;
    let there = gateway.cluster.examples();
    let accounts = there.wallets.iter().chain(&there.token_accounts).chain(&there.mints).take(20);
    let accounts: Vec<Pubkey> = accounts.copied().collect();
    for account in &accounts {
        gateway.get_account(account).confirmed().base64().send().await;
    }
    gateway.step_by(1).await;
    (gateway, accounts)
}

/// Asks for all accounts at the same time while the nodes hold their replies. Returns the results, and two numbers
/// of upstream calls: of getAccountInfo and of getMultipleAccounts.
async fn ask_all(gateway: &TestGateway, accounts: &[Pubkey], fault: Option<Fault>) -> (Vec<Value>, u64, u64) {
    let calls = |method: &str| gateway.cluster.nodes().iter().map(|node| node.calls(method)).sum::<u64>();
    let before = (calls("getAccountInfo"), calls("getMultipleAccounts"));
    let holds: Vec<_> = gateway.cluster.nodes().iter().map(|node| node.hold("getAccountInfo")).collect();
    if let Some(fault) = fault {
        gateway.cluster.fault_everywhere("getMultipleAccounts", &fault);
    }
    let asked = accounts.iter().map(|account| gateway.get_account(account).confirmed().base64().send());
    let (replies, ()) = tokio::join!(join_all(asked), async {
        gateway.until_in_flight(accounts.len()).await;
        let waiting = || holds.iter().map(Hold::waiting).sum::<usize>();
        gateway.until("the first of them are held", || waiting() >= 4).await;
        drop(holds);
    });
    for (account, reply) in accounts.iter().zip(&replies) {
        let truth = gateway.cluster.account_at(account, reply.slot());
        assert_eq!(reply.value()["lamports"], truth.unwrap().lamports, "{account}");
        assert_eq!(reply.cache_status(), "fwd=stale; stored");
    }
    let results = replies.iter().map(slotfront_testkit::Reply::result).collect();
    (results, calls("getAccountInfo") - before.0, calls("getMultipleAccounts") - before.1)
}

#[tokio::test]
async fn busy_pool_merges_single_accounts() {
    let (off, accounts) = knowing_sizes(false).await;
    let (plain, singles, lists) = ask_all(&off, &accounts, None).await;
    assert_eq!((singles, lists), (20, 0), "nothing is merged by default");
    let (on, _) = knowing_sizes(true).await;
    let (merged, singles, lists) = ask_all(&on, &accounts, None).await;
    assert_eq!(merged, plain, "the answers are the same");
    assert_eq!(singles, 4, "the calls that were under way are not merged");
    assert!((1..=4).contains(&lists), "{lists} lists for the other 16");
    let hits =
        join_all(accounts.iter().map(|account| on.get_account(account).confirmed().base64().send())).await;
    assert!(hits.iter().all(|hit| hit.is_hit()), "each account is held");
}

#[tokio::test]
async fn refused_merge_falls_back_to_single_calls() {
    let (gateway, accounts) = knowing_sizes(true).await;
    let refused = Fault::Error { code: -32602, message: "Too many inputs provided; max 1".to_owned() };
    let (_, singles, lists) = ask_all(&gateway, &accounts, Some(refused)).await;
    assert_eq!(singles, 20);
    assert!(lists >= 1);
}
