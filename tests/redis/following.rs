//! Replicas with following turned on share blocks through the store, so only one of them reads each block. A
//! replica reads a block from its own node if the store does not provide the block.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Commands;
use serde_json::json;
use slotfront::config::{Config, FollowMode, Secret, SharedSettings};
use slotfront::methods::{Commitment, Slot};
use slotfront::telemetry::{BlockResult, SharedOperation, SharedResult};
use slotfront_sim::{Cluster, Fault, Settings};
use slotfront_testkit::redis_server::{Redis, RedisCluster};
use slotfront_testkit::{PATIENCE, TestCall, TestCluster, TestGateway, TestGatewayBuilder};
use tokio::time::Instant;

use crate::faults::{USER, with_rights};
use crate::{SILENT_AFTER, connected, counted};

/// The number of slots in each step. Some of these slots are skipped.
const STEP: u64 = 8;

/// Returns a function that lets a gateway follow the blocks of node `node`, and share them through a store.
fn following(shared: SharedSettings, node: usize) -> impl FnOnce(&mut Config) {
    move |config| {
        config.shared = Some(shared);
        config.follow.mode = FollowMode::On;
        config.follow.poll = Duration::from_millis(20);
        config.follow.upstreams = vec![format!("node-{node}")];
    }
}

/// Starts a gateway with following turned on, and waits until it knows the newest block.
async fn started(builder: TestGatewayBuilder<'_>) -> TestGateway {
    let gateway = connected(builder.start().await.with_own_buckets().await).await;
    until_tip(&gateway).await;
    gateway
}

/// Returns two gateways over one simulated Solana cluster and one store. The first gateway follows the blocks of
/// node 0, and the second gateway those of node 1.
async fn two(shared: SharedSettings) -> (TestGateway, TestGateway) {
    let a = started(TestGateway::builder().nodes(2).config(following(shared.clone(), 0))).await;
    let b = started(a.beside().config(following(shared, 1))).await;
    (a, b)
}

/// Waits until the followed chain has the newest confirmed block.
async fn until_tip(gateway: &TestGateway) {
    let tip = || gateway.front().followed.current().as_ref().map(|chain| chain.tip().slot);
    let is_there = || tip() == Some(gateway.cluster.slot(Commitment::Confirmed));
    gateway.until("the chain is followed to its newest block", is_there).await;
}

/// Returns the number of blocks that a gateway read from nodes, and the number that it got from another gateway.
fn blocks(gateway: &TestGateway) -> (u64, u64) {
    let count = |result| gateway.front().metrics.follow_blocks.at(result).get();
    (count(BlockResult::Read), count(BlockResult::Shared))
}

/// Lets [`STEP`] slots pass. The gateway `behind` learns of the new blocks, from `node`, only after `ahead` has
/// read them and `then` has run. Returns two numbers for each gateway: the blocks that it read from nodes, and the
/// blocks that it got from the other gateway.
async fn step_behind(
    (ahead, behind): (&TestGateway, &TestGateway),
    node: usize,
    then: impl FnOnce(),
) -> [(u64, u64); 2] {
    for gateway in [ahead, behind] {
        fetch_unchanged(gateway).await;
    }
    let before = [blocks(ahead), blocks(behind)];
    let node = behind.cluster.node(node);
    node.fault_on("getBlocks", Fault::Status(500), None);
    ahead.cluster.step_by(STEP);
    until_tip(ahead).await;
    then();
    node.clear_faults();
    until_tip(behind).await;
    let after = [blocks(ahead), blocks(behind)];
    [0, 1].map(|n| (after[n].0 - before[n].0, after[n].1 - before[n].1))
}

/// Returns a call for an account that no block writes.
fn unchanged(gateway: &TestGateway) -> TestCall {
    gateway.get_account(gateway.cluster.examples().nonce_account).base64().confirmed()
}

/// Fetches the account of [`unchanged`] from a node. An answer that another gateway fetched would not be carried.
async fn fetch_unchanged(gateway: &TestGateway) {
    assert!(unchanged(gateway).no_cache().send().await.cache_status().starts_with("fwd="));
}

/// Checks that the answer for [`unchanged`] is carried to the newest confirmed slot. Then calls [`check_states`].
async fn check_carried(gateway: &TestGateway) {
    let reply = unchanged(gateway).send().await;
    assert_eq!(reply.cache_status(), "hit; detail=carried");
    assert_eq!(reply.slot(), gateway.cluster.slot(Commitment::Confirmed));
    check_states(gateway).await;
}

/// Checks that answers about accounts that blocks write show the state of each account at the answer's slot.
async fn check_states(gateway: &TestGateway) {
    for key in &gateway.cluster.examples().wallets {
        let reply = gateway.get_account(key).base64().confirmed().send().await;
        let state = gateway.cluster.account_at(key, reply.slot()).unwrap();
        assert_eq!(reply.value()["lamports"], state.lamports, "{key} at {}", reply.slot());
    }
}

async fn one_reads_for_both(shared: SharedSettings) {
    let (a, b) = two(shared).await;
    for _ in 0..3 {
        check_states(&a).await;
        check_states(&b).await;
        step_shared((&a, &b), 1).await;
        check_carried(&a).await;
        check_carried(&b).await;
    }
    // Now `b` reads the blocks, and `a` gets them from the store.
    step_shared((&b, &a), 0).await;
    check_carried(&a).await;
}

/// Lets slots pass until `ahead` has read all new blocks, and `behind` has asked its node for none of them. A gateway waits
/// for the store only for a moment, so on a busy machine this may take several steps.
async fn step_shared((ahead, behind): (&TestGateway, &TestGateway), node: usize) {
    let deadline = Instant::now() + PATIENCE;
    let asked = || behind.cluster.node(node).calls("getBlock");
    loop {
        let before = asked();
        let [ahead, behind] = step_behind((ahead, behind), node, || ()).await;
        assert_eq!(ahead.0 + ahead.1, behind.0 + behind.1, "each has each block once");
        if ahead.0 > 0 && (ahead.1, behind, asked()) == (0, (0, ahead.0), before) {
            return;
        }
        assert!(Instant::now() < deadline, "one reads, and the other asks no node: {ahead:?} and {behind:?}");
    }
}

#[tokio::test]
async fn block_is_read_by_one_replica() {
    one_reads_for_both(Redis::start(&[]).settings()).await;
}

#[tokio::test]
async fn blocks_are_shared_through_a_redis_cluster() {
    let cluster = RedisCluster::start();
    one_reads_for_both(cluster.settings()).await;
}

#[tokio::test]
async fn documented_rights_suffice_for_blocks() {
    let (_store, url) = with_rights();
    let (a, b) = two(Redis::settings_at(&url(USER))).await;
    step_shared((&a, &b), 1).await;
}

#[tokio::test]
async fn replicas_divide_the_blocks() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    for gateway in [&a, &b] {
        fetch_unchanged(gateway).await;
    }
    let before = [blocks(&a), blocks(&b)];
    let number = [&a, &b].map(|gateway| gateway.front().followed.number());
    for _ in 0..40 {
        a.cluster.step();
        until_tip(&a).await;
        until_tip(&b).await;
    }
    let [of_a, of_b] = [(blocks(&a), before[0]), (blocks(&b), before[1])]
        .map(|(after, before)| (after.0 - before.0, after.1 - before.1));
    println!("blocks read from nodes and shared: {of_a:?} and {of_b:?}");
    assert_eq!(of_a.0 + of_a.1, of_b.0 + of_b.1, "each has each block once");
    assert!(of_a.1 + of_b.1 > 0, "some are shared");
    assert_eq!([&a, &b].map(|gateway| gateway.front().followed.number()), number, "one chain covers all");
    check_carried(&a).await;
    check_carried(&b).await;
}

#[tokio::test]
async fn replica_reads_by_itself_once_the_other_stops() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    step_behind((&a, &b), 1, || ()).await;
    let (before, number) = (blocks(&b), b.front().followed.number());
    a.app.stop().await;
    b.cluster.step_by(STEP);
    until_tip(&b).await;
    let after = blocks(&b);
    assert!(after.0 > before.0 && after.1 == before.1, "{before:?} {after:?}");
    assert_eq!(b.front().followed.number(), number, "one chain covers all blocks");
    check_carried(&b).await;
}

#[tokio::test]
async fn replicas_read_alone_without_the_store() {
    let mut store = Redis::start(&[]);
    let shared = SharedSettings { timeout: SILENT_AFTER, ..store.settings() };
    let (a, b) = two(shared).await;
    let number = [&a, &b].map(|gateway| gateway.front().followed.number());
    let is_lost = |gateway: &TestGateway| !gateway.front().cache.purger().shares();
    store.pause();
    // Both gateways try to share new blocks, and so find that the store does not answer.
    for step in 0.. {
        if is_lost(&a) && is_lost(&b) {
            break;
        }
        assert!(step < 100, "the store is never left alone");
        a.cluster.step_by(STEP);
        until_tip(&a).await;
        until_tip(&b).await;
    }
    store.resume();
    store.kill();
    let [(read, 0), (own, 0)] = step_behind((&a, &b), 1, || ()).await else { panic!("nothing is shared") };
    assert_eq!(read, own);
    check_carried(&a).await;
    check_carried(&b).await;
    store.restart();
    a.until("the store is used again", || !is_lost(&a) && !is_lost(&b)).await;
    let [_, (_, shared)] = step_behind((&a, &b), 1, || ()).await;
    assert!(shared > 0);
    assert_eq!([&a, &b].map(|gateway| gateway.front().followed.number()), number, "one chain covers all");
}

/// Returns the key of each block record in the store, by the block's slot.
fn records(store: &Redis) -> BTreeMap<Slot, String> {
    let slot = |key: &String| key.split(['{', '}']).nth(1).unwrap().parse().unwrap();
    store.keys("test:block1").into_iter().map(|key| (slot(&key), key)).collect()
}

#[tokio::test]
async fn broken_records_are_asked_of_nodes() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let (mut connection, known) = (store.connection(), records(&store));
    let number = b.front().followed.number();
    let foreign = || counted(&b, SharedOperation::Block, SharedResult::Foreign);
    let mut broken = Vec::new();
    let break_records = || {
        let new: Vec<_> = records(&store).into_iter().filter(|(slot, _)| !known.contains_key(slot)).collect();
        let [(_, altered), (_, copied), (_, cut), (_, listed), (_, claimed), rest @ ..] = &new[..] else {
            panic!("too few blocks: {new:?}")
        };
        let mut value = |key: &String| -> Vec<u8> { connection.get(key).unwrap() };
        let (mut alters, another, cuts) = (value(altered), value(altered), value(cut));
        *alters.last_mut().unwrap() ^= 1;
        () = connection.set(altered, alters).unwrap();
        () = connection.set(copied, another).unwrap();
        () = connection.set(cut, &cuts[..cuts.len() - 8]).unwrap();
        () = connection.del(listed).unwrap();
        () = connection.lpush(listed, "x").unwrap();
        // A gateway announced in the store that it would read this block, and then stopped.
        () = connection.set(claimed, "claim").unwrap();
        if let [(_, long), ..] = rest {
            () = connection.set(long, vec![b'x'; 1 << 20]).unwrap();
        }
        broken = new[..6.min(new.len())].iter().map(|(_, key)| key.clone()).collect();
    };
    let [(read, 0), (asked, shared)] = step_behind((&a, &b), 1, break_records).await else {
        panic!("the first gateway reads alone")
    };
    // On a busy machine some more are not there in time.
    assert!(asked >= broken.len() as u64 && asked + shared == read, "{asked}, {shared} of {read}");
    assert_eq!(foreign(), broken.len() as u64 - 2);
    assert_eq!(b.front().followed.number(), number, "one chain covers all blocks");
    check_carried(&b).await;
    let is_string =
        |key| redis::cmd("TYPE").arg(key).query::<String>(&mut store.connection()).unwrap() == "string";
    b.until("valid records replace them", || broken.iter().all(is_string)).await;
}

#[tokio::test]
async fn incomplete_records_replace_no_complete_ones() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    for gateway in [&a, &b] {
        fetch_unchanged(gateway).await;
    }
    let known = records(&store);
    let node = a.cluster.node(0);
    node.fault_on("getBlock", Fault::With(json!({ "rewards": [] })), None);
    let hold = node.hold("getBlock");
    let other_node = a.cluster.node(1);
    other_node.fault_on("getBlocks", Fault::Status(500), None);
    a.cluster.step_by(STEP);
    hold.arrived(1).await;
    other_node.clear_faults();
    // The first gateway announced in the store that it reads these blocks. The announcements expire, so the other
    // gateway reads the blocks.
    until_tip(&b).await;
    let values = || -> BTreeMap<Slot, Vec<u8>> {
        let new = records(&store).into_iter().filter(|(slot, _)| !known.contains_key(slot));
        new.map(|(slot, key)| (slot, store.connection().get(key).unwrap())).collect()
    };
    let complete = values();
    let before = blocks(&a);
    hold.release();
    until_tip(&a).await;
    let declined = || counted(&a, SharedOperation::Block, SharedResult::Older) > 0;
    a.until("the store declines an incomplete record", declined).await;
    assert_eq!(values(), complete);
    let after = blocks(&a);
    assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}: it takes the complete records");
    check_carried(&a).await;
}

/// Starts a gateway over another simulated Solana cluster and the same store. The other cluster begins at the slot
/// of the first one.
async fn over_another_cluster(shared: SharedSettings, prepare: impl FnOnce(&Cluster)) -> TestGateway {
    // Each seed skips other slots, so the confirmed slots of two clusters may differ.
    let slot = TestCluster::unserved(1).slot(Commitment::Confirmed);
    let clusters = (90..).map(|seed| Cluster::new(Settings { seed, ..TestCluster::settings(1) }));
    let mut equal = clusters.filter(|cluster| cluster.slot(Commitment::Confirmed) == slot);
    let cluster = equal.next().unwrap();
    prepare(&cluster);
    let cluster = TestCluster::serve(cluster).await;
    started(TestGateway::builder().cluster(&cluster).config(following(shared, 0))).await
}

#[tokio::test]
async fn records_of_another_chain_are_not_applied() {
    let store = Redis::start(&[]);
    // Gateway `b` is the only replica over its Solana cluster. A second one would replace the records of the other
    // cluster.
    let b = started(TestGateway::builder().nodes(2).config(following(store.settings(), 1))).await;
    let genesis = b.front().pool.genesis().unwrap();
    // The other Solana cluster reports the same genesis hash, so its records have the same names in the store.
    let prepare = |cluster: &Cluster| {
        cluster.node(0).fault_on("getGenesisHash", Fault::Result(json!(genesis)), None);
    };
    let other = over_another_cluster(store.settings(), prepare).await;
    assert_eq!(other.cluster.slot(Commitment::Confirmed), b.cluster.slot(Commitment::Confirmed));
    let number = b.front().followed.number();
    let hits = || counted(&b, SharedOperation::Block, SharedResult::Hit);
    let before = (blocks(&b), hits());
    fetch_unchanged(&b).await;
    b.cluster.fault_everywhere("getBlocks", &Fault::Status(500));
    b.cluster.step_by(STEP);
    other.cluster.step_by(STEP);
    until_tip(&other).await;
    b.cluster.clear_faults();
    until_tip(&b).await;
    assert!(hits() > before.1, "records of the other chain are found");
    assert!(blocks(&b).0 > before.0.0, "their blocks are asked of nodes");
    assert_eq!(b.front().followed.number(), number, "one chain covers all blocks");
    check_carried(&b).await;
}

#[tokio::test]
async fn clusters_secrets_and_settings_separate_blocks() {
    let store = Redis::start(&[]);
    let a = started(TestGateway::builder().nodes(2).config(following(store.settings(), 0))).await;
    let other = over_another_cluster(store.settings(), |_| ()).await;
    let secret = SharedSettings { secret: Some(Secret::new("secret")), ..store.settings() };
    let signed = started(a.beside().config(following(secret, 1))).await;
    let alone =
        a.beside().config(following(store.settings(), 1)).config(|config| config.follow.share = false);
    let alone = started(alone).await;
    for gateway in [&signed, &alone] {
        let [(read, 0), (own, 0)] = step_behind((&a, gateway), 1, || ()).await else {
            panic!("nothing is shared")
        };
        assert_eq!(read, own);
        until_tip(&signed).await;
        until_tip(&alone).await;
    }
    fetch_unchanged(&other).await;
    other.cluster.step_by(4 * STEP);
    until_tip(&other).await;
    assert_eq!(blocks(&other).1, 0);
    let by_alone = counted(&alone, SharedOperation::Block, SharedResult::Ok);
    assert_eq!(by_alone, 0, "nothing is published");
    check_carried(&other).await;
}

#[tokio::test]
async fn records_of_blocks_expire() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    step_behind((&a, &b), 1, || ()).await;
    let (mut connection, keys) = (store.connection(), store.keys("test:block1"));
    assert!(!keys.is_empty());
    for key in keys {
        let left: i64 = connection.pttl(&key).unwrap();
        assert!((1..=30_000).contains(&left), "{key} expires in {left} ms");
    }
}
