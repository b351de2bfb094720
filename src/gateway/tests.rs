//! Tests of the gateway through the functions that requests use.

mod key_file;
mod reload;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::keys::file::{KeyFile, NewKey};
use super::*;
use crate::cache::CacheStatus;
use crate::config::{AuthMode, Plan, Secret, Upstream};
use crate::methods::{Commitment, Method, Query};

const CLIENT: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));

/// A configuration, and a directory with the key file that it names.
struct TestKeys {
    dir: tempfile::TempDir,
    config: Config,
}

impl TestKeys {
    fn new() -> Self {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::dev(any, any, vec![Upstream::plain("a", Secret::new("http://a.example"))]);
        let dir = tempfile::tempdir().unwrap();
        config.auth.dev_key = None;
        config.auth.keys_file = Some(dir.path().join("keys.toml"));
        config.auth.usage_file = Some(dir.path().join("usage.json"));
        Self { dir, config }
    }

    fn keys_file(&self) -> PathBuf {
        self.dir.path().join("keys.toml")
    }

    fn key(&self, plan: &str) -> String {
        let new = NewKey::of("a", plan);
        KeyFile::new(self.keys_file()).create(&new, Timestamp::now()).unwrap().key.expose().to_owned()
    }

    fn plan(&mut self, name: &str, change: impl FnOnce(&mut Plan)) {
        let mut plan = self.config.plans["standard"].clone();
        change(&mut plan);
        self.config.plans.insert(name.to_owned(), plan);
    }

    fn gateway(&self) -> Gateway {
        Gateway::new(&self.config, Metrics::new()).unwrap()
    }
}

fn authenticate(gateway: &Gateway, key: &str) -> Result<Arc<Principal>, Error> {
    gateway.authenticate(key, CLIENT, None, Instant::now())
}

#[tokio::test(start_paused = true)]
async fn unknown_expired_and_revoked_keys_get_one_answer() {
    let keys = TestKeys::new();
    let file = KeyFile::new(keys.keys_file());
    let now = Timestamp::now();
    let new = NewKey::of("a", "standard");
    let ends = now + Duration::from_mins(1);
    let good = file.create(&new, now).unwrap();
    let ending = file.create(&NewKey { expires: Some(ends), ..new.clone() }, now).unwrap();
    let revoked = file.create(&new, now).unwrap();
    let rotated = file.create(&new, now).unwrap();
    file.revoke(&revoked.id, now).unwrap();
    let successor = file.rotate(&rotated.id, ends, now).unwrap();
    let gateway = keys.gateway();

    assert_eq!(authenticate(&gateway, good.key.expose()).unwrap().id(), good.id);
    assert_eq!(authenticate(&gateway, ending.key.expose()).unwrap().id(), ending.id);
    for key in [&rotated.key, &successor.key] {
        assert_eq!(
            authenticate(&gateway, key.expose()).unwrap().id(),
            rotated.id,
            "both secrets are valid for a while"
        );
    }
    let long = "x".repeat(20_000);
    for key in ["", "dev", "sf_", &long, revoked.key.expose()] {
        assert_eq!(authenticate(&gateway, key).unwrap_err(), Error::Unauthorized);
    }
    tokio::time::advance(Duration::from_secs(61)).await;
    for key in [&ending.key, &rotated.key] {
        assert_eq!(authenticate(&gateway, key.expose()).unwrap_err(), Error::Unauthorized);
    }
    assert!(authenticate(&gateway, successor.key.expose()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn clock_jumps_affect_dates_and_no_rates() {
    let mut keys = TestKeys::new();
    keys.plan("small", |plan| (plan.rps, plan.burst) = (1, 2));
    let start = Timestamp::now();
    let new = NewKey { expires: Some(start + Duration::from_hours(2)), ..NewKey::of("a", "small") };
    let key = KeyFile::new(keys.keys_file()).create(&new, start).unwrap().key;
    let gateway = keys.gateway();
    let principal = authenticate(&gateway, key.expose()).unwrap();
    while principal.take().is_ok() {}
    for jump in [Duration::from_hours(3), Duration::from_hours(24 * 365)] {
        gateway.clock.set(start + jump);
        assert_eq!(authenticate(&gateway, key.expose()).unwrap_err(), Error::Unauthorized);
        gateway.clock.set(start);
        assert!(authenticate(&gateway, key.expose()).is_ok(), "the clock was corrected");
        assert!(principal.take().is_err(), "rates follow the steady clock");
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(principal.take().is_ok());
}

#[tokio::test(start_paused = true)]
async fn failed_keys_are_limited_by_address() {
    let mut keys = TestKeys::new();
    keys.config.auth.failed_per_minute = 3;
    let good = keys.key("standard");
    let gateway = keys.gateway();
    let tries: Vec<_> = (0..5).map(|_| authenticate(&gateway, "wrong").unwrap_err()).collect();
    let limited = Error::Limited {
        limit: "3 requests without a valid API key a minute".to_owned(),
        reason: "failed_keys",
        retry_after: Duration::from_secs(20),
    };
    let unknown = Error::Unauthorized;
    assert_eq!(tries, [unknown.clone(), unknown.clone(), unknown, limited.clone(), limited]);
    assert!(authenticate(&gateway, &good).is_ok());
    let other = Some("192.0.2.2".parse().unwrap());
    assert_eq!(gateway.authenticate("wrong", other, None, Instant::now()).unwrap_err(), Error::Unauthorized);
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(authenticate(&gateway, "wrong").unwrap_err(), Error::Unauthorized);
}

#[tokio::test(start_paused = true)]
async fn keys_are_restricted_to_origins_addresses_methods() {
    let keys = TestKeys::new();
    let key = keys.key("standard");
    let text = std::fs::read_to_string(keys.keys_file()).unwrap()
        + "addresses = [\"192.0.2.0/24\"]\norigins = [\"https://a.example\"]\nmethods = [\"getBlock\"]\n";
    std::fs::write(keys.keys_file(), text).unwrap();
    let gateway = keys.gateway();
    let authenticate_from = |client: &str, origin| {
        gateway.authenticate(&key, client.parse().ok(), origin, Instant::now()).map(|_| ())
    };
    let forbidden = |what: &str| Err(Error::Forbidden(what.to_owned()));
    assert_eq!(authenticate_from("192.0.2.9", None), Ok(()));
    assert_eq!(authenticate_from("::ffff:192.0.2.9", Some("https://a.example")), Ok(()));
    assert_eq!(authenticate_from("192.0.2.9", Some("https://b.example")), forbidden("this origin"));
    assert_eq!(authenticate_from("198.51.100.1", None), forbidden("this address"));
    assert_eq!(authenticate_from("unknown", None), forbidden("an unknown client address"));
    let principal = gateway.authenticate(&key, CLIENT, None, Instant::now()).unwrap();
    assert_eq!(principal.admit(&Query::ClusterNodes).map(|_| ()), forbidden("getClusterNodes"));
}

#[tokio::test(start_paused = true)]
async fn keys_used_from_wrong_addresses_count_as_failed() {
    let mut keys = TestKeys::new();
    keys.config.auth.failed_per_minute = 3;
    keys.plan("small", |plan| (plan.rps, plan.burst) = (1, 1));
    let key = keys.key("small");
    let text = std::fs::read_to_string(keys.keys_file()).unwrap()
        + "addresses = [\"192.0.2.0/24\"]\norigins = [\"https://a.example\"]\n";
    std::fs::write(keys.keys_file(), text).unwrap();
    let gateway = keys.gateway();
    let metrics = gateway.metrics();
    let authenticate_from = |key: &str, client: &str, origin| {
        gateway.authenticate(key, client.parse().ok(), origin, Instant::now())
    };
    let (near, far, elsewhere) = ("192.0.2.9", "198.51.100.1", Some("https://b.example"));
    let limited =
        |entered: Result<_, Error>| matches!(entered, Err(Error::Limited { reason: "failed_keys", .. }));
    for (client, origin) in [(near, elsewhere), (far, None)] {
        for _ in 0..3 {
            assert!(matches!(authenticate_from(&key, client, origin), Err(Error::Forbidden(_))), "{client}");
        }
        assert!(
            limited(authenticate_from(&key, client, origin)),
            "{client}: used in a wrong place too often"
        );
        assert!(limited(authenticate_from("wrong", client, None)), "{client}: one count with wrong keys");
    }
    // The refused attempts have not used up the key's rate, which allows one call.
    assert!(authenticate_from(&key, near, None).unwrap().take().is_ok());
    let text = metrics.render();
    for (reason, times) in [("origin", 3), ("address", 3), ("limited", 4)] {
        let line = format!("slotfront_auth_failures_total{{reason=\"{reason}\"}} {times}");
        assert!(text.contains(&line), "{line} is missing from\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn limits_and_headers_follow_the_plan() {
    let mut keys = TestKeys::new();
    keys.plan("small", |plan| {
        (plan.rps, plan.burst) = (2, 5);
        (plan.daily_units, plan.monthly_units) = (Some(10), Some(20));
        plan.max_batch = Some(7);
    });
    let key = keys.key("small");
    let gateway = keys.gateway();
    gateway.clock.count_from("2026-11-30T23:00:00Z".parse().unwrap());
    let principal = authenticate(&gateway, &key).unwrap();
    let left = || {
        let mut left = Vec::new();
        principal.write_left(&mut left, Instant::now());
        String::from_utf8(left).unwrap()
    };
    assert_eq!((principal.max_batch(), principal.bypass_cache()), (Some(7), false));
    assert_eq!(principal.policy(), Some(r#""rate";q=5;w=3, "day";q=10;w=86400, "month";q=20"#));
    let take = || principal.take();
    assert_eq!((0..20).filter(|_| take().is_ok()).count(), 5, "20 calls against a burst of 5");
    let limit = |limit: &str, reason, retry_after| {
        Err(Error::Limited { limit: limit.to_owned(), reason, retry_after })
    };
    assert_eq!(take(), limit("2 calls a second", "rate", Duration::from_millis(500)));
    assert_eq!(left(), r#""rate";r=0;t=3, "day";r=10;t=3600, "month";r=20;t=3600"#);

    tokio::time::advance(Duration::from_secs(10)).await;
    principal.book("looks", 8.5);
    let admit = || principal.admit(&Query::ClusterNodes);
    let under_way = admit().unwrap();
    assert_eq!(left(), r#""rate";r=5;t=0, "day";r=0;t=3590, "month";r=10;t=3590"#);
    let refused = || admit().map(|_| ());
    assert_eq!(refused(), limit("10 units a day", "day", Duration::from_secs(1)), "until the call has ended");
    drop(under_way);
    assert_eq!(left(), r#""rate";r=5;t=0, "day";r=1;t=3590, "month";r=11;t=3590"#);
    admit().unwrap().answered(CacheStatus::Carried, 9);
    assert_eq!(refused(), limit("10 units a day", "day", Duration::from_secs(3590)), "half a unit is left");
    assert_eq!(take(), Ok(()), "the rate is not the quota");
    principal.book("looks", 1.0);
    let usage = serde_json::to_string(&Usage::of(&principal, Instant::now()).unwrap()).unwrap();
    let id = principal.id();
    assert_eq!(
        usage,
        format!(
            r#"{{"id":"{id}","name":"a","plan":"small","rate":{{"perSecond":2,"burst":5,"left":4}},"day":{{"used":11,"quota":10,"left":0,"endsInSeconds":3590,"resets":"2026-12-01T00:00:00Z"}},"month":{{"used":11,"quota":20,"left":9,"endsInSeconds":3590,"resets":"2026-12-01T00:00:00Z"}}}}"#
        )
    );

    tokio::time::advance(Duration::from_secs(3590)).await;
    assert!(admit().is_ok(), "a new day in a new month");
}

#[tokio::test(start_paused = true)]
async fn monotonic_plans_keep_slots_over_reloads() {
    let mut keys = TestKeys::new();
    keys.plan("steady", |plan| plan.monotonic = true);
    let (steady, plain) = (keys.key("steady"), keys.key("standard"));
    let gateway = keys.gateway();
    let query = |method, params: &'static str| {
        let params = crate::jsonrpc::Params::Array(bytes::Bytes::from_static(params.as_bytes()));
        Query::parse(method, &params, crate::methods::Profile::Node).unwrap()
    };
    let account = query(Method::GetAccountInfo, r#"["11111111111111111111111111111111"]"#);
    let confirmed = query(
        Method::GetTokenAccountBalance,
        r#"["11111111111111111111111111111111",{"commitment":"confirmed"}]"#,
    );
    let block = query(Method::GetBlock, "[5]");
    let principal = authenticate(&gateway, &steady).unwrap();
    let highest = |principal: &Principal, query| principal.known_slot(query, |_, slot| slot < 1_000);
    let show = Principal::note_shown;
    assert_eq!(highest(&principal, &account), None, "nothing has been shown yet");
    for slot in [10, 12, 11] {
        show(&principal, &account, slot);
    }
    show(&principal, &block, 99);
    assert_eq!(
        [&account, &confirmed, &block].map(|query| highest(&principal, query)),
        [Some(12), None, None]
    );

    gateway.replace(&keys.config).unwrap();
    let successor = authenticate(&gateway, &steady).unwrap();
    show(&principal, &confirmed, 14);
    assert_eq!([&account, &confirmed].map(|query| highest(&successor, query)), [Some(12), Some(14)]);

    let other = authenticate(&gateway, &plain).unwrap();
    show(&other, &account, 20);
    assert_eq!(highest(&other, &account), None, "not by this plan");

    show(&principal, &account, 2_000);
    assert_eq!(highest(&successor, &account), None, "no node is near it");
    show(&principal, &account, 5);
    assert_eq!(highest(&successor, &account), Some(5), "another cluster");

    let told = authenticate(&gateway, &plain).unwrap();
    told.known_slots().tell(Commitment::Confirmed, 30);
    assert_eq!([&account, &confirmed].map(|query| highest(&told, query)), [None, Some(30)], "by any plan");
    let supply = query(Method::GetSupply, r#"[{"commitment":"confirmed"}]"#);
    show(&successor, &supply, 40);
    assert_eq!([&successor, &told].map(|principal| highest(principal, &supply)), [Some(40), None], "a scan");
}

#[tokio::test(start_paused = true)]
async fn open_mode_accepts_any_key_or_none() {
    let mut keys = TestKeys::new();
    keys.config.auth.mode = AuthMode::Open;
    let gateway = keys.gateway();
    assert!(gateway.is_open());
    let anybody = authenticate(&gateway, "").unwrap();
    assert!((0..1000).all(|_| anybody.take().is_ok()), "no limits");
    assert_eq!((anybody.policy(), anybody.has_plan()), (None, false));

    keys.plan("small", |plan| plan.burst = 5);
    keys.config.auth.open_plan = Some("small".to_owned());
    gateway.replace(&keys.config).unwrap();
    let calls = |client: &str, key: &str| {
        let client = client.parse().ok();
        (0..20)
            .filter(|_| gateway.authenticate(key, client, None, Instant::now()).unwrap().take().is_ok())
            .count()
    };
    assert_eq!((calls("192.0.2.1", "a"), calls("192.0.2.1", "b"), calls("192.0.2.2", "a")), (5, 0, 5));
    gateway.replace(&keys.config).unwrap();
    assert_eq!(
        (calls("unknown", "a"), calls("_hidden", "b")),
        (5, 0),
        "all unknown addresses share one limit"
    );
    assert_eq!(calls("192.0.2.1", "a"), 0, "a reload without changes restores nothing");
}

#[tokio::test(start_paused = true)]
async fn dev_config_has_the_dev_key() {
    let any = "127.0.0.1:0".parse().unwrap();
    let gateway = Gateway::new(&Config::dev(any, any, vec![]), Metrics::new()).unwrap();
    let principal = authenticate(&gateway, "dev").unwrap();
    assert_eq!((principal.id(), principal.bypass_cache(), principal.has_plan()), ("dev", true, true));
    assert_eq!(authenticate(&gateway, "prod").unwrap_err(), Error::Unauthorized);
}

#[tokio::test(start_paused = true)]
async fn refusals_and_units_are_counted() {
    let mut keys = TestKeys::new();
    keys.plan("small", |plan| plan.burst = 1);
    let key = keys.key("small");
    let gateway = keys.gateway();
    let metrics = gateway.metrics();
    assert!(authenticate(&gateway, "wrong").is_err());
    let principal = authenticate(&gateway, &key).unwrap();
    assert!(principal.take().is_ok() && principal.take().is_err());
    principal.book("looks", 2.0);
    let text = metrics.render();
    for line in [
        "slotfront_auth_failures_total{reason=\"unknown\"} 1".to_owned(),
        format!("slotfront_key_limited_total{{reason=\"rate\",key=\"{}\"}} 1", principal.id()),
        format!("slotfront_key_units_total{{key=\"{}\"}} 2", principal.id()),
    ] {
        assert!(text.contains(&line), "{line} is missing from\n{text}");
    }
    assert!(!text.contains(&key));
}

#[tokio::test]
async fn usage_is_written_at_shutdown() {
    let keys = TestKeys::new();
    let key = keys.key("standard");
    let gateway = Arc::new(keys.gateway());
    authenticate(&gateway, &key).unwrap().book("looks", 3.0);
    gateway.save_last().await;
    let used = Usage::of(&authenticate(&keys.gateway(), &key).unwrap(), Instant::now()).unwrap().month.used;
    assert_eq!(used, 3);
}

#[tokio::test]
async fn a_hanging_usage_file_keeps_no_revoked_key() {
    let keys = TestKeys::new();
    let (goes, stays) = (keys.key("standard"), keys.key("standard"));
    let gateway = Arc::new(keys.gateway());
    let until = async |what: &str, holds: &dyn Fn() -> bool| {
        let seen = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), seen).await.expect(what);
    };
    let failing = |file| gateway.metrics().file_failing.at(file).get();
    let (hold, released) = std::sync::mpsc::channel::<()>();
    let (of, hung) = (Arc::clone(&gateway), Arc::new(AtomicBool::new(false)));
    let is_hung = Arc::clone(&hung);
    let hanging = std::thread::spawn(move || {
        let _guard = of.ledger.hang();
        is_hung.store(true, Ordering::Release);
        released.recv().unwrap_err();
    });
    until("it hangs", &|| hung.load(Ordering::Acquire)).await;
    authenticate(&gateway, &stays).unwrap().book("looks", 3.0);
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    gateway.watch(&tasks, &stop);
    until("it is told", &|| failing(AuthFile::Usage) == 1).await;
    let file = KeyFile::new(keys.keys_file());
    file.revoke(&file.list().unwrap()[0].id, Timestamp::now()).unwrap();
    until("it is revoked", &|| authenticate(&gateway, &goes).is_err()).await;
    assert!(authenticate(&gateway, &stays).is_ok());
    assert_eq!(gateway.failing_files().collect::<Vec<_>>(), ["auth.usage_file fails; the log says why"]);
    assert_eq!(failing(AuthFile::Keys), 0);
    let waiting = tokio::time::timeout(Duration::from_mins(1), gateway.save_last());
    waiting.await.expect("a stop does not wait for the disk");
    drop(hold);
    hanging.join().unwrap();
    until("it is written", &|| failing(AuthFile::Usage) == 0).await;
    stop.cancel();
}

#[tokio::test]
async fn a_hanging_key_file_is_told_and_units_are_kept() {
    let keys = TestKeys::new();
    let key = keys.key("standard");
    let gateway = Arc::new(keys.gateway());
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    gateway.watch(&tasks, &stop);
    let (hold, released) = std::sync::mpsc::channel::<()>();
    let worker = gateway.key_worker.clone();
    // All reads of the file are made by one thread, and one of them lasts.
    let reading = tasks.spawn(async move { worker.run(move || released.recv().unwrap_err()).await });
    let failing = || gateway.metrics().file_failing.at(AuthFile::Keys).get();
    let until = async |what: &str, value| {
        let seen = async {
            while failing() != value {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), seen).await.expect(what);
    };
    until("it is told", 1).await;
    assert_eq!(gateway.failing_files().collect::<Vec<_>>(), ["auth.keys_file fails; the log says why"]);
    authenticate(&gateway, &key).unwrap().book("looks", 3.0);
    tokio::time::timeout(Duration::from_mins(1), gateway.save_last())
        .await
        .expect("the stop waits for no disk");
    let used = Usage::of(&authenticate(&keys.gateway(), &key).unwrap(), Instant::now()).unwrap().month.used;
    assert_eq!(used, 3);
    drop(hold);
    reading.await.unwrap().unwrap();
    until("it goes on", 0).await;
    stop.cancel();
}
