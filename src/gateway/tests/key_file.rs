//! The key file while the gateway runs.

use super::*;

/// Looks at the files until a young one is taken.
fn settle(gateway: &Gateway) {
    gateway.tick(true);
    gateway.tick(true);
}

#[tokio::test(start_paused = true)]
async fn the_key_file_is_followed_and_a_bad_one_changes_nothing() {
    let mut site = Site::new();
    let gateway = site.gateway();
    assert_eq!(enter(&gateway, "any").unwrap_err(), Error::Unauthorized, "no file yet");
    let key = site.key("standard");
    settle(&gateway);
    assert!(enter(&gateway, &key).is_ok(), "the file has come");

    let good = std::fs::read_to_string(site.keys_file()).unwrap();
    for bad in
        [good.replace("standard", "gold"), good.replace("sha256 = \"", "sha256 = \"0"), good.clone() + &good]
    {
        std::fs::write(site.keys_file(), bad).unwrap();
        settle(&gateway);
        assert!(enter(&gateway, &key).is_ok(), "refused whole");
        assert!(gateway.replace(&site.config).is_err());
        let error = Gateway::new(&site.config).err().unwrap().to_string();
        assert!(error.starts_with("auth.keys_file: ") && error.contains("key "), "{error}");
    }
    std::fs::remove_file(site.keys_file()).unwrap();
    settle(&gateway);
    assert!(gateway.replace(&site.config).is_err() && enter(&gateway, &key).is_ok(), "gone is not empty");
    std::fs::write(site.keys_file(), &good).unwrap();

    site.config.plans.remove("standard");
    let error = gateway.replace(&site.config).unwrap_err().to_string();
    assert!(error.contains("there is no plan \"standard\""), "{error}");
    assert!(enter(&gateway, &key).is_ok(), "the plan goes on while keys have it");
}

#[tokio::test(start_paused = true)]
async fn an_empty_key_file_takes_no_key_away() {
    let site = Site::new();
    let key = site.key("standard");
    let gateway = site.gateway();
    let metrics = Metrics::new();
    gateway.report_to(&metrics);
    let good = std::fs::read_to_string(site.keys_file()).unwrap();
    for blank in ["", "\n", "# keys follow\n"] {
        std::fs::write(site.keys_file(), blank).unwrap();
        settle(&gateway);
        assert!(enter(&gateway, &key).is_ok(), "{blank:?}");
        let error = gateway.replace(&site.config).unwrap_err().to_string();
        assert!(error.ends_with("write `key = []` to take all keys out"), "{error}");
    }
    let rejected = "slotfront_key_file_reads_total{result=\"rejected\"} 3";
    assert!(metrics.render().contains(rejected), "{}", metrics.render());
    std::fs::write(site.keys_file(), "key = []\n").unwrap();
    settle(&gateway);
    assert_eq!(enter(&gateway, &key).unwrap_err(), Error::Unauthorized, "on purpose");
    std::fs::write(site.keys_file(), "").unwrap();
    settle(&gateway);
    std::fs::write(site.keys_file(), &good).unwrap();
    settle(&gateway);
    assert!(enter(&gateway, &key).is_ok());
}

#[tokio::test(start_paused = true)]
async fn half_a_key_file_takes_no_key_away() {
    let site = Site::new();
    let (first, second) = (site.key("standard"), site.key("standard"));
    let gateway = site.gateway();
    let good = std::fs::read_to_string(site.keys_file()).unwrap();
    let half = &good[..good.rfind("[[key]]").unwrap()];
    std::fs::write(site.keys_file(), half).unwrap();
    gateway.tick(true);
    assert!(enter(&gateway, &first).is_ok() && enter(&gateway, &second).is_ok(), "seen while it is written");
    std::fs::write(site.keys_file(), &good).unwrap();
    settle(&gateway);
    assert!(enter(&gateway, &second).is_ok());
    std::fs::write(site.keys_file(), half).unwrap();
    settle(&gateway);
    assert!(enter(&gateway, &first).is_ok());
    assert_eq!(enter(&gateway, &second).unwrap_err(), Error::Unauthorized, "it was meant");
}

#[tokio::test(start_paused = true)]
async fn use_of_a_removed_key_is_forgotten_after_its_month() {
    let site = Site::new();
    let (stays, goes) = (site.key("standard"), site.key("standard"));
    let gateway = site.gateway();
    let set = |time: &str| gateway.clock.set(time.parse().unwrap());
    set("2026-11-30T12:00:00Z");
    let used = |key: &str| Usage::of(&enter(&gateway, key).unwrap(), Instant::now()).unwrap().month.used;
    for key in [&stays, &goes] {
        enter(&gateway, key).unwrap().book(3.0);
    }
    let both = std::fs::read_to_string(site.keys_file()).unwrap();
    let one = both[..both.rfind("[[key]]").unwrap()].to_owned();
    let reload = |text: &str| {
        std::fs::write(site.keys_file(), text).unwrap();
        gateway.replace(&site.config).unwrap();
        gateway.replace(&site.config).unwrap();
    };
    reload(&one);
    reload(&both);
    assert!((used(&goes) - 3.0).abs() < 1e-9, "a key that comes back goes on");
    reload(&one);
    assert_eq!(gateway.ledger.len(), 2, "its month has not ended");
    set("2026-12-01T00:00:01Z");
    reload(&one);
    assert_eq!(gateway.ledger.len(), 1);
    assert!(used(&stays).abs() < 1e-9);
}
