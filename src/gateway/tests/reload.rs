//! Tests of limits and requests in flight during a reload.

use super::*;

#[tokio::test(start_paused = true)]
async fn limits_and_usage_outlast_reload_and_restart() {
    let mut keys = TestKeys::new();
    keys.plan("small", |plan| (plan.rps, plan.burst, plan.daily_units) = (1, 5, Some(10)));
    let key = keys.key("small");
    let gateway = keys.gateway();
    let principal = authenticate(&gateway, &key).unwrap();
    while principal.take().is_ok() {}
    principal.book("looks", 7.0);

    keys.plan("small", |plan| (plan.rps, plan.burst, plan.daily_units) = (1, 6, Some(10)));
    gateway.replace(&keys.config).unwrap();
    let successor = authenticate(&gateway, &key).unwrap();
    assert!(successor.take().is_ok(), "the burst has grown by one");
    assert!(successor.take().is_err(), "and no more");
    assert!(principal.take().is_err(), "a request under way shares the state");

    gateway.write_usage();
    let used = Usage::of(&authenticate(&keys.gateway(), &key).unwrap(), Instant::now()).unwrap().day.used;
    assert_eq!(used, 7);
}

#[tokio::test(start_paused = true)]
async fn a_changed_rate_carries_calls_and_no_time() {
    // The old rate and burst, the calls that are used of it, the new rate and burst, and the calls that pass at once.
    for (old, used, new, left) in [
        ((1, 100), 100, (100, 200), 100),
        ((1, 100), 30, (100, 200), 170),
        ((100, 200), 200, (1, 5), 0),
        ((100, 200), 3, (1, 5), 2),
        ((1, 100), 100, (1, 10), 0),
        ((1, 100), 0, (7, 20), 20),
    ] {
        let mut keys = TestKeys::new();
        keys.plan("small", |plan| (plan.rps, plan.burst) = old);
        let key = keys.key("small");
        let gateway = keys.gateway();
        let principal = authenticate(&gateway, &key).unwrap();
        assert!((0..used).all(|_| principal.take().is_ok()));
        keys.plan("small", |plan| (plan.rps, plan.burst) = new);
        gateway.replace(&keys.config).unwrap();
        let successor = authenticate(&gateway, &key).unwrap();
        let passed = (0..1000).take_while(|_| successor.take().is_ok()).count();
        assert_eq!(passed, left, "{used} calls of {old:?} are used, then {new:?} applies");
        let Err(Error::Limited { retry_after, .. }) = successor.take() else {
            panic!("the burst is used up")
        };
        assert!(retry_after <= Duration::from_secs(1), "{old:?}, {used}, {new:?}: {retry_after:?}");
        // A request under way keeps the old rate and what was left of it, and its calls are not counted twice.
        let late = (0..1000).take_while(|_| principal.take().is_ok()).count();
        assert_eq!(late, old.1 as usize - used, "{old:?}, {used}, {new:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn secrets_and_reloads_share_rate_permits_usage() {
    let mut keys = TestKeys::new();
    keys.plan("small", |plan| (plan.rps, plan.burst) = (1, 4));
    let (file, now) = (KeyFile::new(keys.keys_file()), Timestamp::now());
    let old = file.create(&NewKey::of("a", "small"), now).unwrap();
    let new = file.rotate(&old.id, now + Duration::from_hours(1), now).unwrap();
    let other = keys.key("small");
    let gateway = keys.gateway();
    let [by_old, by_new] = [&old.key, &new.key].map(|key| authenticate(&gateway, key.expose()).unwrap());
    let stranger = authenticate(&gateway, &other).unwrap();
    gateway.replace(&keys.config).unwrap();
    let reloaded = authenticate(&gateway, new.key.expose()).unwrap();
    assert!(!Arc::ptr_eq(&by_new, &reloaded));

    let callers = [&by_old, &by_new, &reloaded];
    for caller in callers.iter().chain([&callers[0]]) {
        assert!(caller.take().is_ok());
    }
    assert!(callers.iter().all(|caller| caller.take().is_err()), "the secrets share one rate");

    // While one permit is free, a key may hold up to eight permits.
    let mut held: Vec<_> = (0..8).map(|i| callers[i % 3].hold(1).unwrap()).collect();
    assert!(callers.iter().all(|caller| caller.hold(1).is_none()), "the secrets share one set of permits");
    held.pop();
    assert!(reloaded.hold(1).is_some(), "a permit that an earlier caller gives back is free");

    for caller in callers {
        caller.book("looks", 1.0);
    }
    let used = |caller: &Principal| Usage::of(caller, Instant::now()).unwrap().day.used;
    assert!(callers.iter().all(|caller| used(caller) == 3), "the secrets share one usage");
    assert!(
        callers.iter().all(|caller| caller.caller() == reloaded.caller()),
        "the secrets are one caller at a node"
    );

    assert!(stranger.take().is_ok() && stranger.hold(1).is_some());
    assert!(used(&stranger) == 0 && stranger.caller() != reloaded.caller());
}

#[tokio::test(start_paused = true)]
async fn reload_waits_for_half_written_key_files() {
    let keys = TestKeys::new();
    let kept = keys.key("standard");
    let half = std::fs::read_to_string(keys.keys_file()).unwrap();
    let new = NewKey::of("b", "standard");
    let last = KeyFile::new(keys.keys_file()).create(&new, Timestamp::now()).unwrap().key.expose().to_owned();
    let whole = std::fs::read_to_string(keys.keys_file()).unwrap();
    let gateway = keys.gateway();
    std::fs::write(keys.keys_file(), &half).unwrap();
    let both = || authenticate(&gateway, &kept).is_ok() && authenticate(&gateway, &last).is_ok();
    let mut looks = 0;
    let pause = || {
        assert!(both(), "a half-written file refuses no key");
        looks += 1;
        std::fs::write(keys.keys_file(), &whole).unwrap();
    };
    gateway.replace_settled(&keys.config, pause).unwrap();
    assert!(both());
    assert_eq!(looks, 2, "the whole file is read twice");
    gateway.replace_settled(&keys.config, || unreachable!("the file is as it was")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn reload_during_changes_of_the_key_file_has_an_end_and_revokes_at_once() {
    let keys = TestKeys::new();
    let (goes, stays) = (keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let file = KeyFile::new(keys.keys_file());
    file.revoke(&file.list().unwrap()[0].id, Timestamp::now()).unwrap();
    let mut new = Vec::new();
    let pause = || {
        let accepted = [&goes, &stays].map(|key| authenticate(&gateway, key).is_ok());
        assert_eq!(accepted, [false, true], "a revocation does not wait for the rest");
        new.push(keys.key("standard"));
    };
    gateway.replace_settled(&keys.config, pause).unwrap();
    assert_eq!(new.len(), 2);
    assert!(new.iter().all(|key| authenticate(&gateway, key).is_ok()));
}

#[tokio::test(start_paused = true)]
async fn superseded_snapshots_are_freed_by_ticks() {
    let keys = TestKeys::new();
    let key = keys.key("standard");
    let gateway = keys.gateway();
    let superseded = || gateway.superseded.lock().len();
    let reading = gateway.snapshot.load();
    gateway.replace(&keys.config).unwrap();
    gateway.follow_key_file();
    assert_eq!(superseded(), 1, "a request reads the old snapshot");
    drop(reading);
    let principal = authenticate(&gateway, &key).unwrap();
    assert_eq!(superseded(), 1, "authentication frees no snapshot");
    gateway.replace(&keys.config).unwrap();
    gateway.follow_key_file();
    assert_eq!(superseded(), 0);
    assert!(principal.take().is_ok(), "an accepted request goes on");
}
