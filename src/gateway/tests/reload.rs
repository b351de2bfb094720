//! The limits of keys, and requests under way, while the configuration is read again.

use super::*;

#[tokio::test(start_paused = true)]
async fn limits_and_use_outlive_reload_and_restart() {
    let mut site = Site::new();
    site.plan("small", |plan| (plan.rps, plan.burst, plan.daily_units) = (1, 5, Some(10)));
    let key = site.key("small");
    let gateway = site.gateway();
    let principal = enter(&gateway, &key).unwrap();
    while principal.take(Instant::now()).is_ok() {}
    principal.book(7.0);

    site.plan("small", |plan| (plan.rps, plan.burst, plan.daily_units) = (1, 6, Some(10)));
    gateway.replace(&site.config).unwrap();
    let successor = enter(&gateway, &key).unwrap();
    assert!(successor.take(Instant::now()).is_ok(), "the burst has grown by one");
    assert!(successor.take(Instant::now()).is_err(), "and no more");
    assert!(principal.take(Instant::now()).is_err(), "a request under way shares the state");

    gateway.tick(true);
    let used = Usage::of(&enter(&site.gateway(), &key).unwrap(), Instant::now()).unwrap().day.used;
    assert!((used - 7.0).abs() < 1e-9, "{used}");
}

#[tokio::test(start_paused = true)]
async fn secrets_and_reloads_share_rate_places_and_use() {
    let mut site = Site::new();
    site.plan("small", |plan| (plan.rps, plan.burst) = (1, 4));
    let (file, now) = (KeyFile::new(site.keys_file()), Timestamp::now());
    let old = file.create(&NewKey::of("a", "small"), now).unwrap();
    let new = file.rotate(&old.id, now + Duration::from_hours(1), now).unwrap();
    let other = site.key("small");
    let gateway = site.gateway();
    let [by_old, by_new] = [&old.key, &new.key].map(|key| enter(&gateway, key.expose()).unwrap());
    let stranger = enter(&gateway, &other).unwrap();
    gateway.replace(&site.config).unwrap();
    let reloaded = enter(&gateway, new.key.expose()).unwrap();
    assert!(!Arc::ptr_eq(&by_new, &reloaded));

    let callers = [&by_old, &by_new, &reloaded];
    for caller in callers.iter().chain([&callers[0]]) {
        assert!(caller.take(Instant::now()).is_ok());
    }
    assert!(callers.iter().all(|caller| caller.take(Instant::now()).is_err()), "one rate");

    // A key may hold eight places while one is free.
    let mut held: Vec<_> = (0..8).map(|i| callers[i % 3].hold(1).unwrap()).collect();
    assert!(callers.iter().all(|caller| caller.hold(1).is_none()), "one share");
    held.pop();
    assert!(reloaded.hold(1).is_some(), "a place that an earlier caller gives back is free");

    for caller in callers {
        caller.book(1.0);
    }
    let used = |caller: &Principal| Usage::of(caller, Instant::now()).unwrap().day.used;
    assert!(callers.iter().all(|caller| (used(caller) - 3.0).abs() < 1e-9), "one use");
    assert!(callers.iter().all(|caller| caller.caller() == reloaded.caller()), "one caller at a node");

    assert!(stranger.take(Instant::now()).is_ok() && stranger.hold(1).is_some());
    assert!(used(&stranger).abs() < 1e-9 && stranger.caller() != reloaded.caller());
}

#[tokio::test(start_paused = true)]
async fn a_reload_takes_no_half_of_a_key_file() {
    let site = Site::new();
    let kept = site.key("standard");
    let half = std::fs::read_to_string(site.keys_file()).unwrap();
    let new = NewKey::of("b", "standard");
    let last = KeyFile::new(site.keys_file()).create(&new, Timestamp::now()).unwrap().key.expose().to_owned();
    let whole = std::fs::read_to_string(site.keys_file()).unwrap();
    let gateway = site.gateway();
    std::fs::write(site.keys_file(), &half).unwrap();
    let both = || enter(&gateway, &kept).is_ok() && enter(&gateway, &last).is_ok();
    let mut looks = 0;
    let pause = || {
        assert!(both(), "half of the file is no reason to refuse a key");
        looks += 1;
        std::fs::write(site.keys_file(), &whole).unwrap();
    };
    gateway.replace_settled(&site.config, pause).unwrap();
    assert!(both());
    assert_eq!(looks, 2, "two looks have found the whole file");
    gateway.replace_settled(&site.config, || unreachable!("the file is as it was")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn superseded_snapshots_are_freed_by_no_request() {
    let site = Site::new();
    let key = site.key("standard");
    let gateway = site.gateway();
    let superseded = || gateway.superseded.lock().unwrap().len();
    let reading = gateway.snapshot.load();
    gateway.replace(&site.config).unwrap();
    gateway.tick(true);
    assert_eq!(superseded(), 1, "a request reads them");
    drop(reading);
    let principal = enter(&gateway, &key).unwrap();
    assert_eq!(superseded(), 1, "it did not free them");
    gateway.replace(&site.config).unwrap();
    gateway.tick(true);
    assert_eq!(superseded(), 0);
    assert!(principal.take(Instant::now()).is_ok(), "who was let in goes on");
}
