//! Following the chain: a cached account is served until a block writes it, and never longer.

mod carried;
mod contradictions;
mod follower;
mod hidden;
mod nodes;
mod restarts;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use slotfront::config::{Config, FollowMode};
use slotfront::methods::{Commitment, Pubkey, Slot};
use slotfront_testkit::{Reply, TestGateway, TestGatewayBuilder};

/// The `Cache-Status` of a carried answer.
const CARRIED: &str = "hit; detail=carried";

/// Turns following on, with the shortest poll.
fn on(config: &mut Config) {
    config.follow.mode = FollowMode::On;
    config.follow.poll = Duration::from_millis(20);
}

/// Starts a gateway with following turned on, and waits until it knows the newest block.
async fn following(builder: TestGatewayBuilder<'_>) -> TestGateway {
    let gateway = builder.config(on).start().await.with_own_buckets().await;
    until_tip(&gateway).await;
    gateway
}

/// Returns the newest slot of the followed chain.
fn tip(gateway: &TestGateway) -> Option<Slot> {
    gateway.front().followed.current().as_deref().map(|chain| chain.tip().slot)
}

/// Waits until the followed chain has the newest confirmed block.
async fn until_tip(gateway: &TestGateway) {
    let is_there = || tip(gateway) == Some(gateway.cluster.slot(Commitment::Confirmed));
    gateway.until("the chain is followed to its newest block", is_there).await;
}

/// Waits until answers at finalized are carried to the newest finalized slot.
async fn until_target(gateway: &TestGateway) {
    let target = || gateway.front().followed.current().as_deref()?.target();
    let is_there = || target() == Some(gateway.cluster.slot(Commitment::Finalized));
    gateway.until("the newest final block is one of the chain", is_there).await;
}

/// Steps the cluster, and waits until the followed chain has the new blocks.
async fn step(gateway: &TestGateway, slots: u64) {
    gateway.step_by(slots).await;
    until_tip(gateway).await;
}

/// Returns the number of times that following began anew for this reason.
fn restarts(gateway: &TestGateway, reason: &str) -> u64 {
    gateway.metric(&format!("slotfront_follow_restarts_total{{reason=\"{reason}\"}}"))
}

/// Checks that a value in base64 is the state of the account as of this slot.
#[track_caller]
fn check_state(gateway: &TestGateway, key: &Pubkey, slot: Slot, value: &Value) {
    let Some(account) = gateway.cluster.account_at(key, slot) else {
        assert_eq!(value, &Value::Null, "{key} does not exist at {slot}");
        return;
    };
    assert_eq!(value["lamports"], account.lamports, "{key} at {slot}");
    assert_eq!(value["owner"], account.owner.to_string(), "{key} at {slot}");
    assert_eq!(value["data"], json!([STANDARD.encode(&account.data), "base64"]), "{key} at {slot}");
}

/// Checks that a base64 answer about one account shows the account's state at the answer's slot. Returns that
/// slot.
#[track_caller]
fn checked_slot(gateway: &TestGateway, key: &Pubkey, reply: &Reply) -> Slot {
    check_state(gateway, key, reply.slot(), &reply.value());
    reply.slot()
}
