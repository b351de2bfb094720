//! Accounts that change although no block lists them. Several rules keep answers about such accounts from being
//! carried, and each rule is needed.

use std::collections::BTreeSet;

use slotfront::methods::Commitment;
use slotfront_sim::{Cluster, HiddenRule, Settings};
use slotfront_testkit::{TestCluster, TestGateway};

use super::{CARRIED, checked_slot, following, restarts, step};

/// The number of slots in an epoch of these tests.
const EPOCH: u64 = 64;

/// Returns a cluster whose next epoch begins ten slots after its newest slot.
async fn before_an_epoch() -> TestCluster {
    let settings = TestCluster::settings(1);
    let newest = 100 * EPOCH - 10;
    let first_slot = newest - settings.history_slots;
    TestCluster::serve(Cluster::new(Settings { first_slot, slots_per_epoch: EPOCH, ..settings })).await
}

#[tokio::test]
async fn hidden_writes_are_never_missed() {
    let cluster = before_an_epoch().await;
    let gateway = following(TestGateway::builder().cluster(&cluster)).await;
    let hidden = cluster.hidden_writes();
    let call = |key| gateway.get_account(key).base64().confirmed();
    let mut changed = BTreeSet::new();
    let mut last: Vec<_> = Vec::new();
    for write in &hidden {
        let reply = call(write.address).send().await;
        last.push((checked_slot(&gateway, &write.address, &reply), reply.value()));
    }
    for _ in 0..24 {
        step(&gateway, 1).await;
        for (write, last) in hidden.iter().zip(&mut last) {
            let reply = call(write.address).send().await;
            let slot = checked_slot(&gateway, &write.address, &reply);
            assert!(slot >= last.0, "{write:?} went back from {} to {slot}", last.0);
            let may_be_carried = write.rule == HiddenRule::EpochStart;
            assert!(may_be_carried || reply.cache_status() != CARRIED, "{write:?} was carried to {slot}");
            if reply.value() != last.1 {
                changed.insert(write.rule);
            }
            *last = (slot, reply.value());
        }
    }
    let rules: BTreeSet<_> = hidden.iter().map(|write| write.rule).collect();
    assert_eq!(changed, rules, "each rule stands for a change that was seen");
    assert_eq!(restarts(&gateway, "epoch"), 1);
}

#[tokio::test]
async fn epoch_fetches_every_account_once_more() {
    let cluster = before_an_epoch().await;
    let gateway = following(TestGateway::builder().cluster(&cluster)).await;
    let call = gateway.get_account(cluster.examples().nonce_account).base64().confirmed();
    let calls = || cluster.node(0).calls("getAccountInfo");
    call.send().await;
    step(&gateway, 5).await;
    assert_eq!((call.send().await.cache_status(), calls()), (CARRIED, 1));
    step(&gateway, 20).await;
    let reply = call.send().await;
    assert_eq!((reply.slot(), calls()), (cluster.slot(Commitment::Confirmed), 2));
    step(&gateway, 20).await;
    assert_eq!((call.send().await.cache_status(), calls()), (CARRIED, 2));
    assert_eq!(restarts(&gateway, "epoch"), 1);
}
