//! The shares of the keys in what all of them use together: the rate of a node, and the memory for answers.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use slotfront::config::Config;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::Group;
use slotfront_testkit::{LoopbackTap, TestGateway};
use tempfile::TempDir;
use tokio_util::task::TaskTracker;

/// Starts a gateway in front of one node. Besides the key `dev` there is a second key, which is returned.
async fn two_keys(
    tap: Option<&LoopbackTap>,
    change: impl FnOnce(&mut Config),
) -> (TestGateway, String, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let key = file.create(&NewKey::of("other", "standard"), jiff::Timestamp::now()).expect("a key").key;
    let configure = |config: &mut Config| {
        config.auth.keys_file = Some(file.path().to_path_buf());
        config.plans.get_mut("standard").expect("the default plan").bypass_cache = true;
        change(config);
    };
    let builder = TestGateway::builder().nodes(1).config(configure);
    let builder = if let Some(tap) = tap { builder.tap(tap) } else { builder };
    let gateway = builder.start().await;
    (gateway, key.expose().to_owned(), dir)
}

#[tokio::test]
async fn one_key_cannot_take_a_nodes_rate() {
    let (gateway, other, _dir) = two_keys(None, |config| config.upstreams[0].rps = Some(20)).await;
    let wallets = gateway.cluster.examples().wallets;
    let node = gateway.cluster.node(0);
    let tasks = TaskTracker::new();
    // A hundred calls a second, none of which waits for the one before.
    let greedy = async |caller: usize| -> () {
        loop {
            let call = gateway.get_account(wallets[caller]).no_cache();
            tasks.spawn(async move { call.send().await });
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let polite = async {
        gateway.until("the rate is used up", || node.calls("getAccountInfo") >= 20).await;
        let mut replies = Vec::new();
        for wallet in wallets.iter().skip(10).take(10) {
            replies.push(gateway.get_account(wallet).key(&other).send().await);
        }
        replies
    };
    let replies = tokio::select! {
        replies = polite => replies,
        _ = join_all((0..10).map(greedy)) => unreachable!("the greedy callers never stop"),
    };
    for reply in replies {
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
}

#[tokio::test]
async fn one_key_cannot_take_the_memory_for_answers() {
    let arrived = 1 << 20;
    let patience = Duration::from_mins(5);
    let tap = LoopbackTap::start().await;
    let (gateway, other, _dir) = two_keys(Some(&tap), |config| {
        config.pool.max_response = 4 << 20;
        config.pool.max_buffered = 32 << 20;
        config.pool.attempt_timeout.fill(patience);
        config.server.request_timeout = patience;
    })
    .await;
    // A quarter of each answer arrives, and the rest never does.
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 4 * arrived);
    tap.answer_instead("getAccountInfo", [head.into_bytes(), vec![b' '; arrived]].concat());
    let wallets = gateway.cluster.examples().wallets;
    let greedy = wallets.iter().cycle().take(40).map(|wallet| gateway.get_account(wallet).no_cache().send());
    let mut greedy: FuturesUnordered<_> = greedy.collect();
    let refused = greedy.next().await.expect("forty calls");
    assert_eq!(refused.error()["data"]["attempts"][0]["reason"], "buffers_full", "{}", refused.text);
    let block = gateway.cluster.examples().block_with_v0;
    let polite = async {
        let mut replies = Vec::new();
        for _ in 0..28 {
            replies.push(gateway.get_block(block).key(&other).no_cache().send().await);
        }
        replies
    };
    let others = async { greedy.map(|_| ()).collect::<()>().await };
    let replies = tokio::select! {
        replies = polite => replies,
        () = others => panic!("the calls are held"),
    };
    let failed: Vec<_> = replies.iter().filter(|reply| reply.status != 200).collect();
    assert!(failed.is_empty(), "{} of {}: {}", failed.len(), replies.len(), failed[0].text);
}

#[tokio::test]
async fn one_key_cannot_take_all_scans() {
    let (gateway, other, _dir) = two_keys(None, |config| {
        config.pool.max_scans = 2;
        let scans = Group::Scans.methods().collect();
        config.plans.get_mut("standard").expect("the default plan").methods = Some(scans);
    })
    .await;
    let wallets = gateway.cluster.examples().wallets;
    let hold = gateway.cluster.node(0).hold("getProgramAccounts");
    let greedy = wallets[..9].iter().map(|wallet| {
        let scan = gateway.call("getProgramAccounts", json!([wallet.to_string()])).send();
        TaskTracker::new().spawn(scan)
    });
    let greedy: Vec<_> = greedy.collect();
    gateway.until_in_flight(9).await;
    hold.arrived(1).await;
    // The others wait for their turn, and this key does not wait for them.
    let polite = gateway.call("getSupply", json!([])).key(&other).send().await;
    assert_eq!(polite.status, 200, "{}", polite.text);
    hold.release();
    for reply in join_all(greedy).await {
        let reply = reply.expect("the call ends");
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
}
