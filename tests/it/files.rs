//! Disks that are full or cannot be written: callers notice nothing, what guards access goes on, and the operator
//! is told.

use std::path::Path;

use serde_json::{Value, json};
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront_testkit::TestGateway;

/// A gateway with a key file and a usage file in a folder.
async fn gateway_in(dir: &Path) -> TestGateway {
    TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.auth.keys_file = Some(dir.join("keys.toml"));
            config.auth.usage_file = Some(dir.join("usage.json"));
        })
        .start()
        .await
}

fn create(file: &KeyFile) -> String {
    let new = NewKey::of("a", "standard");
    file.create(&new, jiff::Timestamp::now()).unwrap().key.expose().to_owned()
}

async fn status(gateway: &TestGateway, key: &str) -> u16 {
    gateway.get_nodes().key(key).send().await.status
}

async fn readiness(gateway: &TestGateway) -> (u16, Value) {
    let readiness = gateway.admin("/readyz").await;
    (readiness.status, readiness.json())
}

const USAGE_FAILS: &str = r#"slotfront_file_failing{file="usage"}"#;
#[tokio::test]
async fn an_unwritable_usage_file_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let key = create(&KeyFile::new(dir.path().join("keys.toml")));
    let file = dir.path().join("usage.json");
    let gateway = gateway_in(dir.path()).await;
    // Not even root writes to a folder.
    std::fs::create_dir(&file).unwrap();
    assert_eq!(status(&gateway, &key).await, 200);
    gateway.until_metric(USAGE_FAILS, 1).await;
    let reasons = ["auth.usage_file fails; the log says why"];
    assert_eq!(readiness(&gateway).await, (200, json!({"state": "degraded", "reasons": reasons})));
    assert_eq!(status(&gateway, &key).await, 200, "callers notice nothing");

    std::fs::remove_dir(&file).unwrap();
    gateway.until("the file is written", || gateway.metric(USAGE_FAILS) == 0).await;
    assert_eq!(readiness(&gateway).await.1, json!({"state": "ready"}));
    let written = || std::fs::read_to_string(&file).unwrap_or_default().contains(r#""used":[2.0,2.0]"#);
    gateway.until("the units of both calls are there", written).await;
}
