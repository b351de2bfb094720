//! Tests of key file changes while the gateway runs.

use super::*;

/// Runs two rounds of the background task. The gateway takes over a changed key file once two rounds have found
/// the same content.
fn settle(gateway: &Gateway) {
    gateway.follow_key_file();
    gateway.follow_key_file();
}

#[tokio::test(start_paused = true)]
async fn key_file_is_followed_and_faulty_ones_refused() {
    let mut keys = TestKeys::new();
    let gateway = keys.gateway();
    assert_eq!(authenticate(&gateway, "any").unwrap_err(), Error::Unauthorized, "no file yet");
    let key = keys.key("standard");
    settle(&gateway);
    assert!(authenticate(&gateway, &key).is_ok(), "the new file is read");

    let good = std::fs::read_to_string(keys.keys_file()).unwrap();
    for bad in
        [good.replace("standard", "gold"), good.replace("sha256 = \"", "sha256 = \"0"), good.clone() + &good]
    {
        std::fs::write(keys.keys_file(), bad).unwrap();
        settle(&gateway);
        assert!(authenticate(&gateway, &key).is_ok(), "an invalid file changes nothing");
        assert!(gateway.replace(&keys.config).is_err());
        let error = Gateway::new(&keys.config, Metrics::new()).err().unwrap().to_string();
        assert!(error.starts_with("auth.keys_file: ") && error.contains("key "), "{error}");
    }
    std::fs::remove_file(keys.keys_file()).unwrap();
    settle(&gateway);
    assert!(
        gateway.replace(&keys.config).is_err() && authenticate(&gateway, &key).is_ok(),
        "a missing file is not an empty one"
    );
    std::fs::write(keys.keys_file(), &good).unwrap();

    keys.config.plans.remove("standard");
    let error = gateway.replace(&keys.config).unwrap_err().to_string();
    assert!(error.contains("no plan is named \"standard\""), "{error}");
    assert!(authenticate(&gateway, &key).is_ok(), "the plan goes on while keys have it");
}

#[tokio::test(start_paused = true)]
async fn faulty_key_files_revoke_keys() {
    let keys = TestKeys::new();
    let (goes, stays, mistyped) = (keys.key("standard"), keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let good = std::fs::read_to_string(keys.keys_file()).unwrap();
    let accepts = |key: &str| authenticate(&gateway, key).is_ok();
    let tables: Vec<String> = good.split("[[key]]").skip(1).map(|rest| format!("[[key]]{rest}\n")).collect();
    let [first, second, third] = tables.try_into().unwrap();
    let revoked = |table: &str| format!("{table}\nrevoked = \"2026-11-01T00:00:00Z\"\n\n");
    let mistaken = third.replace("standard", "gold");

    std::fs::write(keys.keys_file(), [revoked(first.trim_end()), second.clone(), mistaken.clone()].concat())
        .unwrap();
    settle(&gateway);
    assert_eq!([&goes, &stays, &mistyped].map(|key| accepts(key)), [false, true, true]);
    assert!(gateway.replace(&keys.config).is_err(), "no plan has the name");

    std::fs::write(keys.keys_file(), [first, second, revoked(mistaken.trim_end())].concat()).unwrap();
    settle(&gateway);
    assert_eq!([&goes, &stays, &mistyped].map(|key| accepts(key)), [true, true, false]);
    gateway.replace(&keys.config).unwrap();
}

#[tokio::test(start_paused = true)]
async fn refused_rotations_do_not_hide_revocations() {
    let keys = TestKeys::new();
    let (leaked, stays) = (keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let accepts = |key: &str| authenticate(&gateway, key).is_ok();
    let file = KeyFile::new(keys.keys_file());
    let id = file.list().unwrap()[0].id.clone();
    keys.key("gold");
    file.rotate(&id, Timestamp::now(), Timestamp::now()).unwrap();
    settle(&gateway);
    assert_eq!([accepts(&leaked), accepts(&stays)], [true, true], "the file is refused");
    file.revoke(&id, Timestamp::now()).unwrap();
    settle(&gateway);
    assert_eq!([accepts(&leaked), accepts(&stays), gateway.is_revoked(&id)], [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn only_times_revoke_keys() {
    let keys = TestKeys::new();
    let key = keys.key("standard");
    let gateway = keys.gateway();
    let good = std::fs::read_to_string(keys.keys_file()).unwrap();
    for faulty in ["revoked = \"\"", "revoked = \"yesterday\"", "revoked = 1", "colour = \"red\""] {
        std::fs::write(keys.keys_file(), format!("{}\n{faulty}\n", good.trim_end())).unwrap();
        settle(&gateway);
        assert!(authenticate(&gateway, &key).is_ok(), "{faulty}");
    }
    let revoked = "revoked = \"2026-11-01T00:00:00Z\"\ncolour = \"red\"\n";
    std::fs::write(keys.keys_file(), format!("{}\n{revoked}", good.trim_end())).unwrap();
    settle(&gateway);
    assert!(authenticate(&gateway, &key).is_err(), "an unknown member hides no revocation");
}

#[tokio::test(start_paused = true)]
async fn copied_ids_revoke_one_key() {
    let keys = TestKeys::new();
    let (goes, stays) = (keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let listed = KeyFile::new(keys.keys_file()).list().unwrap();
    let good = std::fs::read_to_string(keys.keys_file()).unwrap();
    let copied = good.replace(&listed[0].id, &listed[1].id);
    let faulty = copied.replacen("[[key]]", "[[key]]\nrevoked = \"2026-11-01T00:00:00Z\"", 1);
    std::fs::write(keys.keys_file(), faulty).unwrap();
    settle(&gateway);
    assert_eq!([&goes, &stays].map(|key| authenticate(&gateway, key).is_ok()), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn blank_key_files_remove_no_keys() {
    let keys = TestKeys::new();
    let key = keys.key("standard");
    let gateway = keys.gateway();
    let metrics = gateway.metrics();
    let good = std::fs::read_to_string(keys.keys_file()).unwrap();
    for blank in ["", "\n", "# keys follow\n"] {
        std::fs::write(keys.keys_file(), blank).unwrap();
        settle(&gateway);
        assert!(authenticate(&gateway, &key).is_ok(), "{blank:?}");
        let error = gateway.replace(&keys.config).unwrap_err().to_string();
        assert!(error.ends_with("write `key = []` to remove all keys"), "{error}");
    }
    let rejected = "slotfront_key_file_reads_total{result=\"rejected\"} 3";
    assert!(metrics.render().contains(rejected), "{}", metrics.render());
    std::fs::write(keys.keys_file(), "key = []\n").unwrap();
    settle(&gateway);
    assert_eq!(authenticate(&gateway, &key).unwrap_err(), Error::Unauthorized, "on purpose");
    std::fs::write(keys.keys_file(), "").unwrap();
    settle(&gateway);
    std::fs::write(keys.keys_file(), &good).unwrap();
    settle(&gateway);
    assert!(authenticate(&gateway, &key).is_ok());
}

#[tokio::test(start_paused = true)]
async fn half_written_key_files_remove_no_keys() {
    let keys = TestKeys::new();
    let (first, second) = (keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let good = std::fs::read_to_string(keys.keys_file()).unwrap();
    let half = &good[..good.rfind("[[key]]").unwrap()];
    std::fs::write(keys.keys_file(), half).unwrap();
    gateway.follow_key_file();
    assert!(
        authenticate(&gateway, &first).is_ok() && authenticate(&gateway, &second).is_ok(),
        "seen while it is written"
    );
    std::fs::write(keys.keys_file(), &good).unwrap();
    settle(&gateway);
    assert!(authenticate(&gateway, &second).is_ok());
    std::fs::write(keys.keys_file(), half).unwrap();
    settle(&gateway);
    assert!(authenticate(&gateway, &first).is_ok());
    assert_eq!(authenticate(&gateway, &second).unwrap_err(), Error::Unauthorized, "it was meant");
}

#[tokio::test(start_paused = true)]
async fn restless_key_files_are_in_force_at_the_third_look() {
    let keys = TestKeys::new();
    let (goes, stays) = (keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let file = KeyFile::new(keys.keys_file());
    let accepts = |key: &str| authenticate(&gateway, key).is_ok();
    // Somebody creates a key before each look.
    let new = [(); 9].map(|()| {
        let new = keys.key("standard");
        gateway.follow_key_file();
        new
    });
    assert!(new[..9].iter().all(|key| accepts(key)), "each third look takes the file as it is");

    let late = keys.key("standard");
    file.revoke(&file.list().unwrap()[0].id, Timestamp::now()).unwrap();
    gateway.follow_key_file();
    assert_eq!([&goes, &stays, &late].map(|key| accepts(key)), [false, true, false], "at the first look");
    for _ in 0..2 {
        keys.key("standard");
        gateway.follow_key_file();
    }
    assert_eq!([&goes, &stays, &late].map(|key| accepts(key)), [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn half_written_key_files_revoke_keys() {
    let keys = TestKeys::new();
    let (goes, stays) = (keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let file = KeyFile::new(keys.keys_file());
    file.revoke(&file.list().unwrap()[0].id, Timestamp::now()).unwrap();
    let text = std::fs::read_to_string(keys.keys_file()).unwrap();
    let second = text.rfind("[[key]]").unwrap();
    for (end, revoked) in [(second - 10, false), (text.len() - 3, true)] {
        assert!(toml::from_str::<toml::Table>(&text[..end]).is_err(), "it is cut inside of a line");
        std::fs::write(keys.keys_file(), &text[..end]).unwrap();
        gateway.follow_key_file();
        assert_eq!([&goes, &stays].map(|key| authenticate(&gateway, key).is_ok()), [!revoked, true], "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn files_that_are_not_toml_revoke_keys() {
    let keys = TestKeys::new();
    let (goes, stays) = (keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let good = std::fs::read_to_string(keys.keys_file()).unwrap();
    let revoked = "revoked = \"2026-11-01T00:00:00Z\"\n";
    let tables: Vec<&str> = good.split("[[key]]").collect();
    // The header of the last table lacks a bracket, so the line after it may belong to either key.
    let unclear = format!("{}[[key]]{}[[key]{}{revoked}", tables[0], tables[1], tables[2]);
    std::fs::write(keys.keys_file(), unclear).unwrap();
    settle(&gateway);
    assert_eq!([&goes, &stays].map(|key| authenticate(&gateway, key).is_ok()), [true, true]);
    for text in [
        format!("[[key]]{}{revoked}[[key]]{}name = oops\n", tables[1], tables[2]),
        format!("oops\n[[key]]{}[[key]]\n{revoked}{}", tables[2], tables[1]),
    ] {
        std::fs::write(keys.keys_file(), text).unwrap();
        settle(&gateway);
        gateway.replace(&keys.config).unwrap_err();
        assert_eq!([&goes, &stays].map(|key| authenticate(&gateway, key).is_ok()), [false, true]);
        std::fs::write(keys.keys_file(), &good).unwrap();
        settle(&gateway);
    }
}

#[tokio::test(start_paused = true)]
async fn usage_of_removed_keys_ends_with_the_month() {
    let keys = TestKeys::new();
    let (stays, goes) = (keys.key("standard"), keys.key("standard"));
    let gateway = keys.gateway();
    let set = |time: &str| gateway.clock.count_from(time.parse().unwrap());
    set("2026-11-30T12:00:00Z");
    let used =
        |key: &str| Usage::of(&authenticate(&gateway, key).unwrap(), Instant::now()).unwrap().month.used;
    for key in [&stays, &goes] {
        authenticate(&gateway, key).unwrap().book("looks", 3.0);
    }
    let both = std::fs::read_to_string(keys.keys_file()).unwrap();
    let one = both[..both.rfind("[[key]]").unwrap()].to_owned();
    let reload = |text: &str| {
        std::fs::write(keys.keys_file(), text).unwrap();
        gateway.replace(&keys.config).unwrap();
        gateway.replace(&keys.config).unwrap();
    };
    reload(&one);
    reload(&both);
    assert_eq!(used(&goes), 3, "a key that comes back goes on");
    reload(&one);
    assert_eq!(gateway.ledger.len(), 2, "its month has not ended");
    set("2026-12-01T00:00:01Z");
    gateway.write_usage();
    reload(&one);
    assert_eq!(gateway.ledger.len(), 1);
    assert_eq!(used(&stays), 0);
}

#[test]
fn unreadable_key_file_is_not_replaced() {
    let keys = TestKeys::new();
    std::fs::write(keys.keys_file(), [0xff]).unwrap();
    let change = KeyFile::new(keys.keys_file()).create(&NewKey::of("a", "standard"), Timestamp::now());
    assert!(change.is_err());
    assert_eq!(std::fs::read(keys.keys_file()).unwrap(), [0xff]);
}
