//! What probes ask, and what they leave out.

use std::time::Duration;

use serde_json::json;
use slotfront::jsonrpc::Params;
use slotfront::methods::{Commitment, Method, Profile, Query};
use slotfront::pool::Ask;
use slotfront::telemetry::Trace;
use tokio::time::Instant;

use crate::harness::Stage;

/// Slots asked for with each look at the node's health, while it is asked for an account at one commitment and not.
#[tokio::test]
async fn a_slot_that_answers_tell_is_not_asked_for() {
    let stage = Stage::of(1, |config| config.pool.probe_interval = Duration::from_millis(300)).await;
    let node = stage.cluster.node(0);
    let counts = || (node.calls("getHealth"), node.calls("getSlot"));
    let params = json!([stage.cluster.examples().wallets[0].to_string(), { "commitment": "confirmed" }]);
    let params = Params::Array(params.to_string().into());
    let query = Query::parse(Method::GetAccountInfo, &params, Profile::Node).unwrap();
    let before = counts();
    while counts().0 < before.0 + 8 {
        let deadline = Instant::now() + Duration::from_secs(5);
        let ask = Ask {
            query: query.clone(),
            floor: None,
            prefer: None,
            alone: false,
            deadline,
            trace: Trace::default(),
        };
        stage.front().pool.call(&ask).await.unwrap();
    }
    let busy = counts();
    let (healths, slots) = (busy.0 - before.0, busy.1 - before.1);
    assert!(slots <= healths * 2 + 4, "{slots} slots, {healths} healths");
    stage.until("it is idle for a while", || counts().0 >= busy.0 + 8).await;
    let (healths, slots) = (counts().0 - busy.0, counts().1 - busy.1);
    assert!(slots + 4 >= healths * 3, "{slots} slots, {healths} healths");
    // And what answers do not tell is still learned.
    stage.cluster.step_by(3);
    stage.settled().await;
    assert_eq!(stage.front().frontier.slot(Commitment::Processed), stage.cluster.slot(Commitment::Processed));
}
