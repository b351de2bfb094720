//! Quotas that are used up.

use std::time::Duration;

use serde_json::json;
use slotfront::config::Config;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront_testkit::{TestGateway, TestSocket};

use super::CLOCK;

/// Returns a change of the plan `dev` to this quota of the day, with this price of a notification.
fn quota(units: u64, notification: u64) -> impl FnOnce(&mut Config) {
    move |config| {
        config.units.notification = notification;
        config.plans.get_mut("dev").unwrap().daily_units = Some(units);
    }
}

/// Steps the cluster until the connection is closed.
async fn closed(gateway: &TestGateway, socket: &mut TestSocket) -> u16 {
    let stepping = async {
        loop {
            gateway.step_by(1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        code = socket.closed() => code,
        () = stepping => unreachable!("it never ends"),
    }
}

#[tokio::test]
async fn a_quota_that_notifications_use_up_ends_the_connection() {
    let gateway = TestGateway::builder().nodes(1).config(quota(40, 10)).start().await;
    let mut socket = gateway.socket().await;
    socket.subscribe("slotSubscribe", json!([])).await;
    assert_eq!(closed(&gateway, &mut socket).await, 1013);
    let used = gateway.metric("slotfront_key_units_total{key=\"dev\"}");
    assert!(used >= 40, "{used} units");
    // Whoever comes again is told when to come.
    let refused = gateway.try_socket("/v3/dev", "").await.err().expect("no unit is left");
    assert_eq!((refused.status, &*refused.body), (429, "Too many requests: 40 units a day\n"));
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
}

#[tokio::test]
async fn a_quota_that_calls_use_up_ends_the_connections_of_that_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let now = jiff::Timestamp::now();
    let other = file.create(&NewKey::of("other", "dev"), now).unwrap();
    let path = file.path().to_owned();
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            quota(20, 0)(config);
            config.auth.keys_file = Some(path);
        })
        .start()
        .await;
    let (mut socket, path) = (gateway.socket().await, format!("/v3/{}", other.key.expose()));
    let mut unconcerned = gateway.try_socket(&path, "").await.unwrap();
    for one in [&mut socket, &mut unconcerned] {
        one.subscribe("slotSubscribe", json!([])).await;
    }
    while gateway.call("getVoteAccounts", json!([])).send().await.status == 200 {}
    // The last units are too few for that call.
    while gateway.get_account(CLOCK).send().await.status == 200 {}
    assert_eq!(closed(&gateway, &mut socket).await, 1013);
    assert!(unconcerned.call("slotUnsubscribe", json!([0])).await["error"].is_object());
}

#[tokio::test]
async fn a_quota_that_a_reload_lowers_ends_the_connection() {
    let gateway = TestGateway::builder().nodes(1).config(quota(1_000, 0)).start().await;
    let mut socket = gateway.socket().await;
    socket.subscribe("slotSubscribe", json!([])).await;
    assert_eq!(gateway.get_account(CLOCK).send().await.status, 200);
    let mut config = (*gateway.front().config).clone();
    let plan = config.plans.get_mut("dev").unwrap();
    (plan.daily_units, plan.monthly_units) = (None, Some(2));
    gateway.app.reload(&config).unwrap();
    assert_eq!(closed(&gateway, &mut socket).await, 1013);
    let refused = gateway.try_socket("/v3/dev", "").await.err().expect("no unit is left");
    assert_eq!(refused.body, "Too many requests: 2 units a month\n");
}

#[tokio::test]
async fn an_expired_key_ends_its_connections() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let now = jiff::Timestamp::now();
    let later =
        NewKey { expires: Some(now + jiff::SignedDuration::from_hours(24)), ..NewKey::of("a", "dev") };
    let key = file.create(&later, now).unwrap();
    let path = file.path().to_owned();
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.auth.keys_file = Some(path)).start().await;
    let mut socket = gateway.try_socket(&format!("/v3/{}", key.key.expose()), "").await.unwrap();
    socket.subscribe("slotSubscribe", json!([])).await;
    let text = std::fs::read_to_string(file.path()).unwrap();
    let line = text.lines().find(|line| line.starts_with("expires")).unwrap();
    std::fs::write(file.path(), text.replace(line, "expires = \"2026-01-01T00:00:00Z\"")).unwrap();
    assert_eq!(closed(&gateway, &mut socket).await, 1008);
}
