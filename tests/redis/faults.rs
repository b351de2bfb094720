//! Failures of the store: it stops, breaks, fills, moves or refuses the gateway. No caller fails, and the
//! store is used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slotfront::config::{CaFile, Secret, SharedSettings};
use slotfront::telemetry::{SharedOperation, SharedResult};
use slotfront_testkit::redis_server::{Redis, RedisCluster};
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::{connected, counted, until_stored, what_one_fetched_the_other_answers, with};

/// A timeout with which a test of a silent store ends soon. On a busy machine a good store may answer later, too.
const SHORT: Duration = Duration::from_millis(1500);

fn with_short_timeout(store: &Redis) -> SharedSettings {
    SharedSettings { timeout: SHORT, ..store.settings() }
}

/// Makes `calls` calls for slices of different accounts, one after the other. Asserts that each succeeds, and
/// returns the duration of the slowest.
async fn misses(gateway: &TestGateway, calls: usize) -> Duration {
    let there = gateway.cluster.examples();
    let mut longest = Duration::ZERO;
    for i in 0..calls {
        let account = there.wallets[i % there.wallets.len()];
        let call = gateway.get_account(account).base64().slice(i as u64, 1);
        let started = Instant::now();
        let reply = call.send().await;
        longest = longest.max(started.elapsed());
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.json().get("result").is_some(), "{}", reply.text);
    }
    longest
}

#[tokio::test]
async fn stopped_store_is_avoided_until_it_returns() {
    let store = Redis::start(&[]);
    let a = connected(TestGateway::builder().config(with(with_short_timeout(&store))).start().await).await;
    let puts = || counted(&a, SharedOperation::Put, SharedResult::Ok);
    misses_until(&a, "an answer is stored", || puts() > 0).await;
    store.pause();
    a.until("the store is left alone", || {
        counted(&a, SharedOperation::Connect, SharedResult::Timeout) >= 1
            && !a.front().cache.purger().shares()
    })
    .await;
    let asked = || {
        let of = |result| counted(&a, SharedOperation::Get, result);
        SharedResult::ALL.into_iter().map(of).sum::<u64>() - of(SharedResult::Skipped)
    };
    let before = asked();
    misses(&a, 200).await;
    assert_eq!(asked(), before, "the paused store is asked nothing");
    assert!(counted(&a, SharedOperation::Get, SharedResult::Skipped) >= 1);
    store.resume();
    a.until("the store is used again", || a.front().cache.purger().shares()).await;
    // The purge empties the cache, so that the next calls ask the store.
    a.front().cache.purger().purge(&slotfront::cache::purge::Filter::default());
    a.until("the purge has reached the store", || a.front().cache.purger().shares()).await;
    let before = asked();
    misses_until(&a, "the store is asked", || asked() > before).await;
}

/// Starts a proxy in front of the store, and returns its URL. While `on` is true, the proxy delays each request
/// that contains `slow`, until the gateway no longer waits for the answer.
async fn delaying_proxy(store: &Redis, slow: &'static [u8], on: &Arc<AtomicBool>) -> String {
    let (listener, to, on) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), store.port(), Arc::clone(on));
    let address = listener.local_addr().unwrap();
    let tasks = TaskTracker::new();
    tasks.clone().spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (server, on) = (TcpStream::connect(("127.0.0.1", to)).await.unwrap(), Arc::clone(&on));
            let ((mut asks, mut told), (mut tells, mut asked)) = (client.into_split(), server.into_split());
            tasks.spawn(async move { tokio::io::copy(&mut tells, &mut told).await });
            tasks.spawn(async move {
                let mut piece = [0; 4096];
                while let Ok(length @ 1..) = asks.read(&mut piece).await {
                    let piece = &piece[..length];
                    if on.load(Ordering::Relaxed) && piece.windows(slow.len()).any(|part| part == slow) {
                        tokio::time::sleep(3 * SHORT).await;
                    }
                    if asked.write_all(piece).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

#[tokio::test]
async fn late_store_costs_few_requests() {
    for slow in ["*", "EVALSHA"] {
        let (store, on) = (Redis::start(&[]), Arc::default());
        let url = delaying_proxy(&store, slow.as_bytes(), &on).await;
        let a = connected(
            TestGateway::builder()
                .config(with(SharedSettings { urls: vec![Secret::new(&url)], ..with_short_timeout(&store) }))
                .start()
                .await,
        )
        .await;
        misses(&a, 5).await;
        on.store(true, Ordering::Relaxed);
        let late = || counted(&a, SharedOperation::Get, SharedResult::Timeout);
        let (before, started) = (late(), Instant::now());
        while started.elapsed() < Duration::from_secs(3) {
            misses(&a, 20).await;
            a.front().cache.purger().clear();
        }
        // Three calls wait in vain before the gateway avoids the store. The store is checked once a second, and
        // after each successful check three more calls may wait in vain.
        let (most, late) = (3 * (started.elapsed().as_secs() + 2), late() - before);
        assert!(late <= most, "{slow}: {late} calls waited in vain");
    }
}

#[tokio::test]
async fn store_faults_under_load_fail_no_caller() {
    let mut store = Redis::start(&["--maxmemory-policy", "noeviction"]);
    // Under load, each pause of this machine would be a fault of the store if it had less time to answer.
    let settings = SharedSettings { timeout: Duration::from_secs(4), ..store.settings() };
    let a = connected(TestGateway::builder().config(with(settings)).start().await).await;
    let b = connected(a.beside().start().await).await;
    let over = AtomicBool::new(false);
    let load = async {
        while !over.load(Ordering::Relaxed) {
            tokio::join!(misses(&a, 20), misses(&b, 20));
            for gateway in [&a, &b] {
                gateway.front().cache.purger().clear();
            }
        }
    };
    let faults = async {
        let shares = || (a.front().cache.purger().shares(), b.front().cache.purger().shares());
        a.until("the store is used at first", || !store.keys("test:cache").is_empty()).await;
        store.pause();
        a.until("both leave the paused store alone", || shares() == (false, false)).await;
        store.resume();
        a.until("both use the store after the pause", || shares() == (true, true)).await;
        store.kill();
        a.until("both leave the killed store alone", || shares() == (false, false)).await;
        store.restart();
        a.until("both use the store after the restart", || shares() == (true, true)).await;
        a.until("the restarted store is used", || !store.keys("test:cache").is_empty()).await;
        store.flush();
        a.until("the emptied store is used", || !store.keys("test:cache").is_empty()).await;
        // A store that has lost the generation and has no room for it is left alone.
        a.until("the store knows the generation again", || !store.keys("test:generation").is_empty()).await;
        () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query(&mut store.connection()).unwrap();
        let refused = |gateway| counted(gateway, SharedOperation::Put, SharedResult::Refused) > 0;
        a.until("the store is full", || refused(&a) && refused(&b)).await;
        a.until("a full store can still be read", || a.front().cache.purger().shares()).await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(load, faults);
}

/// Starts a store whose user `slotfront` has the rights of docs/several-replicas.md. Returns the store, and a
/// function that makes its URL from a user's name and password.
pub(crate) fn with_rights() -> (Redis, impl Fn(&str) -> String) {
    let store = Redis::start(&["--requirepass", "hunter2"]);
    let port = store.port();
    let url = move |user: &str| format!("redis://{user}@127.0.0.1:{port}");
    let mut admin = redis::Client::open(url(":hunter2")).unwrap().get_connection().unwrap();
    let rights = "~test:* +get +set +getrange +del +pexpire +time +evalsha +script|load";
    let rights: Vec<_> = rights.split(' ').collect();
    let user = ["SETUSER", "slotfront", "on", ">p@ss,word"];
    () = redis::cmd("ACL").arg(&user).arg(&rights).query(&mut admin).unwrap();
    (store, url)
}

/// The name and the password of the user from [`with_rights`], encoded for a URL.
pub(crate) const USER: &str = "slotfront:p%40ss%2Cword";

#[tokio::test]
async fn wrong_store_credentials_fail_no_caller() {
    let (_store, url) = with_rights();
    for wrong in ["", "slotfront:hunter2", "nobody:x"] {
        let a = TestGateway::builder().nodes(1).config(with(Redis::settings_at(&url(wrong)))).start().await;
        a.until("the credentials are refused", || {
            counted(&a, SharedOperation::Connect, SharedResult::Refused) > 0
        })
        .await;
        misses(&a, 3).await;
        assert!(!a.front().cache.purger().shares());
    }
    let shared = Redis::settings_at(&url(USER));
    what_one_fetched_the_other_answers(shared).await;
}

#[tokio::test]
async fn over_tls_the_stores_certificate_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let issued = |name: &str| {
        let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (cert, key) = (dir.path().join(format!("{name}.pem")), dir.path().join(format!("{name}.key")));
        std::fs::write(&cert, issued.cert.pem()).unwrap();
        std::fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
        (cert, key)
    };
    let ((cert, key), (another, _)) = (issued("store"), issued("another"));
    let port = slotfront_testkit::redis_server::free_port().to_string();
    let _store = Redis::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        cert.to_str().unwrap(),
        "--tls-key-file",
        key.to_str().unwrap(),
        "--tls-auth-clients",
        "no",
    ]);
    let shared = |ca_file: &std::path::PathBuf| SharedSettings {
        ca_file: Some(CaFile { path: ca_file.clone(), pem: std::fs::read_to_string(ca_file).unwrap() }),
        ..Redis::settings_at(&format!("rediss://localhost:{port}"))
    };
    let distrusts = TestGateway::builder().nodes(1).config(with(shared(&another))).start().await;
    let refused = || counted(&distrusts, SharedOperation::Connect, SharedResult::Unreachable) > 0;
    distrusts.until("the certificate is not trusted", refused).await;
    what_one_fetched_the_other_answers(shared(&cert)).await;
}

#[tokio::test]
async fn writable_store_server_is_used() {
    let first = Redis::start(&[]);
    let follows = first.port().to_string();
    let second = Redis::start(&["--replicaof", "127.0.0.1", &follows]);
    let both = SharedSettings {
        urls: vec![Secret::new(second.url()), Secret::new(first.url())],
        ..first.settings()
    };
    let a = connected(TestGateway::builder().config(with(both)).start().await).await;
    misses(&a, 3).await;
    until_stored(&a, 3).await;
    // The servers change roles: the first one refuses writes from now on.
    let tell = |server: &Redis, words: [&str; 2]| {
        redis::cmd("REPLICAOF").arg(&words).exec(&mut server.connection()).unwrap();
    };
    tell(&second, ["NO", "ONE"]);
    tell(&first, ["127.0.0.1", &second.port().to_string()]);
    a.front().cache.purger().clear();
    let puts = || counted(&a, SharedOperation::Put, SharedResult::Ok);
    let before = puts();
    misses_until(&a, "the new writable server is found", || puts() > before).await;
}

/// Clears the cache and makes calls until `holds` returns true. On a busy machine some requests to the store time
/// out, so one round may not suffice. Panics with `what` after [`PATIENCE`].
async fn misses_until(gateway: &TestGateway, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out while waiting until {what}");
        gateway.front().cache.purger().clear();
        misses(gateway, 30).await;
    }
}

#[tokio::test]
async fn redis_cluster_continues_without_a_node() {
    let mut cluster = RedisCluster::start();
    let shared = SharedSettings { timeout: SHORT, ..cluster.settings() };
    let a = connected(TestGateway::builder().config(with(shared)).start().await).await;
    let puts = || counted(&a, SharedOperation::Put, SharedResult::Ok);
    let skipped = || counted(&a, SharedOperation::Get, SharedResult::Skipped);
    misses_until(&a, "the cluster is used", || puts() > 20).await;
    cluster.0[1].pause();
    let before = skipped();
    misses_until(&a, "the cluster is left alone for a while", || skipped() > before).await;
    let kept = puts();
    misses_until(&a, "the other nodes are used", || puts() > kept).await;
    cluster.0[1].resume();
    let kept = puts();
    misses_until(&a, "the cluster is used again", || puts() > kept + 20).await;
    cluster.0[2].kill();
    a.front().cache.purger().clear();
    misses(&a, 60).await;
    cluster.0[0].kill();
    cluster.0[1].kill();
    misses(&a, 60).await;
    cluster.0.iter_mut().for_each(Redis::restart);
    let kept = puts();
    misses_until(&a, "the cluster is found again", || puts() > kept).await;
}
