//! Rates and quotas that all gateways share through a store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use slotfront::config::{Config, Secret, SharedSettings, from_text};
use slotfront::gateway::Usage;
use slotfront::telemetry::SharedOperation;
use slotfront::telemetry::SharedResult;
use slotfront_testkit::redis_server::Redis;
use slotfront_testkit::{PATIENCE, Reply, TestGateway};
use tokio::time::Instant;

use crate::{connected, counted};

/// Returns a function that lets a gateway share limits through this store, and sets these limits for the plan
/// `dev`.
fn limited(
    shared: SharedSettings,
    rps: u32,
    burst: u32,
    monthly_units: Option<u64>,
) -> impl FnOnce(&mut Config) {
    move |config| {
        config.shared = Some(shared);
        let plan = config.plans.get_mut("dev").unwrap();
        (plan.rps, plan.burst, plan.monthly_units) = (rps, burst, monthly_units);
    }
}

/// Makes calls without a pause, from `callers` callers at each gateway, until `wanted` calls in total have passed.
/// Returns the number of calls that passed, and the time that it took.
async fn flood(gateways: &[TestGateway], callers: usize, wanted: u32) -> (u32, Duration) {
    let (started, passed) = (Instant::now(), AtomicU32::new(0));
    let all =
        gateways.iter().flat_map(|gateway| std::iter::repeat_n(gateway, callers)).map(async |gateway| {
            while passed.load(Ordering::Relaxed) < wanted {
                assert!(started.elapsed() < PATIENCE, "{passed:?} of {wanted} calls passed");
                let reply = gateway.get_nodes().send().await;
                assert!(matches!(reply.status, 200 | 429), "{}", reply.text);
                passed.fetch_add(u32::from(reply.status == 200), Ordering::Relaxed);
            }
        });
    futures_util::future::join_all(all).await;
    (passed.into_inner(), started.elapsed())
}

/// Returns `n` gateways with one store and the same settings.
async fn gateways(n: usize, change: impl FnOnce(&mut Config)) -> Vec<TestGateway> {
    let mut gateways = vec![connected(TestGateway::builder().nodes(1).config(change).start().await).await];
    while gateways.len() < n {
        gateways.push(connected(gateways[0].beside().start().await).await);
    }
    gateways
}

/// Returns the seconds until the burst of the only rate in the store is free again.
fn full_in(store: &Redis) -> f64 {
    let key = store.keys("test:limit").remove(0);
    let state: String = redis::cmd("GET").arg(&key).query(&mut store.connection()).unwrap();
    let rest: f64 = state.split(' ').next().unwrap().parse().unwrap();
    let time: (f64, f64) = redis::cmd("TIME").query(&mut store.connection()).unwrap();
    (rest - time.0 * 1e6 - time.1) / 1e6
}

#[tokio::test]
async fn shared_rate_holds_across_four_gateways() {
    let store = Redis::start(&[]);
    let gateways = gateways(4, limited(store.settings(), 100, 100, None)).await;
    // The burst is 100 calls, and the rate allows the other 400 calls in four seconds. The flood ends only when
    // all 500 have passed.
    let (passed, took) = flood(&gateways, 2, 500).await;
    let allowed = 100.0 + 100.0 * took.as_secs_f64();
    // The store limits the calls by its own clock, so this holds however slow the machine is.
    assert!(f64::from(passed) <= allowed * 1.05, "{passed} of {allowed}");
}

#[tokio::test]
async fn shared_burst_is_whole_and_unused_is_returned() {
    let store = Redis::start(&[]);
    let gateways = gateways(2, limited(store.settings(), 1, 100, None)).await;
    let batch = |gateway: usize, calls: usize| {
        let gateway: &TestGateway = &gateways[gateway];
        gateway.batch(vec![gateway.get_nodes(); calls]).send()
    };
    let passed = |reply: &Reply| {
        let json = reply.json();
        json.as_array().unwrap().iter().filter(|element| element.get("result").is_some()).count()
    };
    // Ninety calls pass at once, without waiting for the store.
    assert_eq!(passed(&batch(0, 90).await), 90);
    let told = || counted(&gateways[0], SharedOperation::Limit, SharedResult::Ok) > 0;
    gateways[0].until("the store knows the first gateway's calls", told).await;
    // The first gateway returns the calls that it leased in advance. The store then counts no more than the ninety
    // calls that passed.
    gateways[0].until("the leased calls are returned", || full_in(&store) < 91.0).await;
    let second = passed(&batch(1, 100).await);
    let told = || counted(&gateways[1], SharedOperation::Limit, SharedResult::Ok) > 0;
    gateways[1].until("the store knows the second gateway's calls", told).await;
    println!("{second} more calls passed at the second gateway");
    // The second gateway did not yet know of the first one's calls, and let some calls pass beyond the limit. Now
    // both know that nothing is left.
    let after = batch(1, 50).await;
    assert_eq!(passed(&after), 0, "{}", after.text);
}

/// A key that only listens here books nothing here.
#[tokio::test]
async fn a_quota_that_is_used_up_elsewhere_ends_the_connection() {
    let store = Redis::start(&[]);
    let gateways = gateways(2, limited(store.settings(), 1_000, 1_000, Some(20))).await;
    let mut socket = gateways[1].socket().await;
    socket.subscribe("rootSubscribe", json!([])).await;
    // What the subscription cost is booked, with an answer that knows nothing of the other gateway's calls yet.
    let is_booked = || counted(&gateways[1], SharedOperation::Quota, SharedResult::Ok) > 0;
    gateways[1].until("its own units are booked", is_booked).await;
    while gateways[0].get_nodes().send().await.status == 200 {}
    assert_eq!(socket.closed().await, 1013);
    let refused = gateways[1].try_socket("/v3/dev", "").await.err().expect("no unit is left");
    assert_eq!((refused.status, &*refused.body), (429, "Too many requests: 20 units a month\n"));
}

#[tokio::test]
async fn a_changed_shared_rate_carries_calls_over() {
    let store = Redis::start(&[]);
    let gateways = gateways(2, limited(store.settings(), 1, 100, None)).await;
    let told = |gateway: &TestGateway| counted(gateway, SharedOperation::Limit, SharedResult::Ok);
    let batch = gateways[0].batch(vec![gateways[0].get_nodes(); 90]).send().await.json();
    assert!(batch.as_array().unwrap().iter().all(|element| element.get("result").is_some()), "{batch}");
    gateways[0].until("the store knows the calls", || told(&gateways[0]) > 0).await;
    // Until its unused lease is returned, the first gateway may still write at the old rate.
    gateways[0].until("the leased calls are returned", || full_in(&store) < 91.0).await;
    for gateway in &gateways {
        let mut new = gateway.front().config.copy();
        let plan = new.plans.get_mut("dev").unwrap();
        (plan.rps, plan.burst) = (100, 100);
        gateway.app.reload(&new).unwrap();
    }
    assert_eq!(gateways[1].get_nodes().send().await.status, 200);
    gateways[1].until("the store was asked at the new rate", || told(&gateways[1]) > 0).await;
    // At the new rate a whole burst is free again after a second, also if the second gateway has spent it on credit.
    let full_in = full_in(&store);
    assert!(full_in < 2.5, "the calls of the old rate count as {full_in} s");
}

#[tokio::test]
async fn shared_units_outlive_the_store() {
    let mut store = Redis::start(&[]);
    let gateways = gateways(2, limited(store.settings(), 1000, 1000, Some(40))).await;
    let used = |gateway: &TestGateway| {
        let gateway = &gateway.front().gateway;
        let who = gateway.authenticate("dev", Some([127, 0, 0, 1].into()), None, Instant::now()).unwrap();
        Usage::of(&who, Instant::now()).unwrap().month.used
    };
    for _ in 0..15 {
        gateways[0].get_nodes().send().await;
    }
    gateways[1].until("the other gateway knows the units", || used(&gateways[1]) >= 15).await;
    let names: Vec<String> = redis::cmd("KEYS").arg("*{dev}").query(&mut store.connection()).unwrap();
    // The number of days since 1970, so that a gateway whose clock is wrong has a key of its own.
    let is_of_a_day = |name: &String| name.contains(":day2") || name.contains(":day3");
    assert!(names.iter().any(is_of_a_day), "{names:?}");
    store.flush();
    for _ in 0..5 {
        gateways[1].get_nodes().send().await;
    }
    gateways[0].until("no units are forgotten", || used(&gateways[0]) >= 20).await;
    // Without a store each gateway counts its own units, and reports them when the store is back.
    store.kill();
    gateways[0].until("the store is lost", || !gateways[0].front().cache.purger().shares()).await;
    gateways[1].until("the store is lost", || !gateways[1].front().cache.purger().shares()).await;
    for gateway in &gateways {
        for _ in 0..5 {
            assert_eq!(gateway.get_nodes().send().await.status, 200);
        }
    }
    store.restart();
    for gateway in &gateways {
        gateway.until("all units are reported", || used(gateway) >= 30).await;
        assert!(used(gateway) <= 30, "units are reported once: {}", used(gateway));
    }
    while gateways[0].get_nodes().send().await.status == 200 {}
    gateways[1].until("the quota is used up here, too", || used(&gateways[1]) >= 40).await;
    assert_eq!(gateways[1].get_nodes().send().await.status, 429);
}

#[tokio::test]
async fn gateways_limit_alone_without_the_store() {
    let mut store = Redis::start(&[]);
    let gateways = gateways(2, limited(store.settings(), 10, 10, None)).await;
    store.kill();
    for gateway in &gateways {
        gateway.until("the store is lost", || !gateway.front().cache.purger().shares()).await;
    }
    let (passed, took) = flood(&gateways, 1, 50).await;
    let one = 10.0 + 10.0 * took.as_secs_f64();
    assert!(f64::from(passed) <= one * 2.0 + 2.0, "{passed} calls passed, and one gateway allows {one}");
    store.restart();
    for gateway in &gateways {
        gateway.until("the store is there", || gateway.front().cache.purger().shares()).await;
    }
    flood(&gateways, 1, 30).await;
    let (passed, took) = flood(&gateways, 1, 30).await;
    let one = 10.0 * took.as_secs_f64();
    assert!(f64::from(passed) <= one * 1.05 + 10.0, "{passed} calls passed, and {one} are allowed");
}

/// Books units in a day and a month, as booking `number` of the process `who`. Returns the totals.
fn book(store: &Redis, windows: [u64; 2], units: [u64; 2], who: u64, number: u64) -> (u64, u64) {
    let [day, month] = booked(store, windows, [units, [0, 0], [0, 0]].concat(), false, who, number);
    (day, month)
}

/// Makes such a booking of `units`, which are those to add, those that are known, and their marks. Returns the totals.
fn booked(store: &Redis, windows: [u64; 2], units: Vec<u64>, sets: bool, who: u64, number: u64) -> [u64; 2] {
    let mut call = redis::cmd("EVAL");
    call.arg(include_str!("../../src/redis_store/book.lua")).arg(3).arg(&keys_of(windows));
    call.arg(units).arg(u8::from(sets)).arg(format!("{who:x}")).arg(number);
    let (day, month, _, _): (u64, u64, u32, u32) = call.query(&mut store.connection()).unwrap();
    [day, month]
}

fn keys_of([day, month]: [u64; 2]) -> [String; 3] {
    ["test:booked:{dev}".to_owned(), format!("test:day{day}:{{dev}}"), format!("test:month{month}:{{dev}}")]
}

#[test]
fn store_keys_do_not_grow_with_restarts() {
    let (store, windows) = (Redis::start(&[]), [20_000, 650]);
    let book = |who: u64, number: u64| book(&store, windows, [10, 20], who, number);
    for process in 1000..1500_u64 {
        assert_eq!(book(process, 1), (10 * (process - 999), 20 * (process - 999)));
    }
    assert_eq!(book(1450, 1).0, 5000, "the same booking counts once");
    assert_eq!(book(1450, 2).0, 5010, "the next one counts");
    assert_eq!(book(1450, 1).0, 5010, "a late copy of the first one does not count");
    assert_eq!(book(1450, 2).0, 5010, "nor a repetition after it");
    let mut connection = store.connection();
    let held: Vec<String> = redis::cmd("MGET").arg(&keys_of(windows)).query(&mut connection).unwrap();
    let bytes: usize = held.iter().map(String::len).sum();
    assert!(bytes < 64 * 24 + 100, "{bytes} bytes");
    for key in keys_of(windows) {
        let days = redis::cmd("TTL").arg(&key).query::<i64>(&mut connection).unwrap() / 86_400;
        assert!((2..=35).contains(&days), "{key} lives {days} days");
    }
}

#[test]
fn bookings_of_a_wrong_clock_erase_no_units() {
    let store = Redis::start(&[]);
    let (right, tomorrow) = ([20_000, 657], [20_001, 657]);
    assert_eq!(book(&store, right, [99, 99], 1, 1), (99, 99));
    // The clock of another gateway is ahead by a day, a month and ten years, and behind.
    for (number, (windows, totals)) in (1..).zip([
        (tomorrow, (1, 100)),
        ([20_031, 658], (1, 1)),
        ([23_652, 777], (1, 1)),
        ([19_999, 656], (1, 1)),
    ]) {
        assert_eq!(book(&store, windows, [1, 1], 2, number), totals);
        assert_eq!(book(&store, windows, [1, 1], 2, number), totals, "the same booking counts once");
    }
    assert_eq!(book(&store, right, [1, 1], 1, 2), (100, 101));
    assert_eq!(book(&store, right, [1, 1], 2, 5), (101, 102), "its clock is right again");
    assert_eq!(book(&store, tomorrow, [1, 1], 1, 3), (2, 103), "the day ends all the same");
}

#[test]
fn what_is_no_total_counts_as_missing() {
    let (store, windows) = (Redis::start(&[]), [20_000, 650]);
    for (number, text) in (1..).zip(["nonsense", "1e18 0", "99999999999999999999 0", "5 99999999999"]) {
        for key in keys_of(windows) {
            let () = redis::cmd("SET").arg(key).arg(text).query(&mut store.connection()).unwrap();
        }
        let totals = booked(&store, windows, vec![1, 2, 30, 40, 0, 0], false, 1, number);
        assert_eq!(totals, [31, 42], "{text}");
    }
    for key in keys_of(windows) {
        let () = redis::cmd("DEL").arg(&key).query(&mut store.connection()).unwrap();
        let () = redis::cmd("RPUSH").arg(&key).arg("a").query(&mut store.connection()).unwrap();
    }
    assert_eq!(booked(&store, windows, vec![1, 2, 30, 40, 0, 0], false, 1, 9), [31, 42], "another's lists");
}

#[tokio::test]
async fn an_operator_repairs_the_usage_for_all_gateways() {
    let store = Redis::start(&[]);
    let token = "a token of an operator";
    let limit = limited(store.settings(), 1_000, 1_000, Some(40));
    let gateways = gateways(2, move |config| {
        limit(config);
        config.auth.admin_token = Some(Secret::new(token));
    })
    .await;
    let used = |gateway: &TestGateway| {
        let gateway = &gateway.front().gateway;
        let who = gateway.authenticate("dev", Some([127, 0, 0, 1].into()), None, Instant::now()).unwrap();
        Usage::of(&who, Instant::now()).unwrap().month.used
    };
    assert_eq!(gateways[0].get_nodes().send().await.status, 200);
    gateways[0].until("the other one knows", || used(&gateways[1]) >= 1).await;
    let names: Vec<String> = redis::cmd("KEYS").arg("*month*{dev}").query(&mut store.connection()).unwrap();
    let () =
        redis::cmd("SET").arg(&names[0]).arg("281474976710656 0").query(&mut store.connection()).unwrap();
    for gateway in &gateways {
        gateway.until("the key is locked", || used(gateway) > 1 << 30).await;
    }
    assert_eq!(gateways[0].get_nodes().send().await.status, 429);
    let put = gateways[1].client.put(format!("{}/api/keys/dev/usage", gateways[1].admin));
    let set = gateways[1].send(put.bearer_auth(token).body(r#"{"month":5}"#)).await;
    assert_eq!((set.status, &set.json()["month"]["used"]), (200, &json!(5)), "{}", set.text);
    for gateway in &gateways {
        gateway.until("the usage is repaired", || used(gateway) == 5).await;
    }
    assert_eq!(gateways[0].get_nodes().send().await.status, 200);
    gateways[1].until("and goes on", || used(&gateways[1]) == 6).await;
}

#[tokio::test]
async fn the_rate_of_a_method_holds_across_gateways() {
    let store = Redis::start(&[]);
    let text =
        "[[upstream]]\nurl = \"http://node.invalid\"\n[plans.free]\nrate = { getClusterNodes = \"3/h\" }";
    let configured = from_text(text, &std::collections::BTreeMap::new(), std::path::Path::new(""));
    let rate = configured.unwrap_or_else(|problems| panic!("{problems}")).plans["free"].rate.clone();
    let limit = limited(store.settings(), 1_000, 1_000, None);
    let gateways = gateways(2, move |config| {
        limit(config);
        config.plans.get_mut("dev").unwrap().rate = rate;
    })
    .await;
    for _ in 0..3 {
        assert_eq!(gateways[0].get_nodes().send().await.status, 200);
    }
    assert_eq!(gateways[0].get_nodes().send().await.status, 429);
    let is_known = || {
        let keys = store.keys("test:limit1:{dev/getClusterNodes}");
        let state: Option<String> =
            keys.first().and_then(|key| redis::cmd("GET").arg(key).query(&mut store.connection()).unwrap());
        let rest = state.and_then(|state| state.split(' ').next()?.parse::<f64>().ok());
        let time: (f64, f64) = redis::cmd("TIME").query(&mut store.connection()).unwrap();
        rest.is_some_and(|rest| rest / 1e6 - time.0 > 3000.0)
    };
    gateways[0].until("the store knows the calls", is_known).await;
    // The second gateway lets a call pass on credit before it has heard of the first one's.
    let passed = async || u32::from(gateways[1].get_nodes().send().await.status == 200);
    let first = passed().await;
    let told = || counted(&gateways[1], SharedOperation::Limit, SharedResult::Ok) > 1;
    gateways[1].until("the second one has heard of it", told).await;
    assert_eq!((first, passed().await, passed().await), (1, 0, 0));
}

#[test]
fn rates_that_are_no_rates_count_as_missing() {
    let store = Redis::start(&[]);
    let key = "test:limit1:{dev}";
    for text in ["nonsense", "nan 1 1", "99999999999999999999999999 0 0", "1 1.2.3 1"] {
        let () = redis::cmd("SET").arg(key).arg(text).query(&mut store.connection()).unwrap();
        let mut call = redis::cmd("EVAL");
        call.arg(include_str!("../../src/redis_store/lease.lua")).arg(1).arg(key);
        call.arg(0).arg(1).arg(10_000.0).arg(20);
        let (leased, left): (u32, i64) = call.query(&mut store.connection()).unwrap();
        assert!(leased <= 1 && (-320..=20).contains(&left), "{text}: {leased} leased, {left} left");
    }
}
