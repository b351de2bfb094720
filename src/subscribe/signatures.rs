//! The ends of transactions, from the tip's watches.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Hub;
use crate::methods::{Commitment, Signature, Subscription};

/// The time between the answer to a subscription and its first notification. A client library may lose a notification that
/// arrives in the same packet as the answer.
const AFTER_ANSWER: Duration = Duration::from_millis(10);

/// Notifies the subscribers once `signature` is at `commitment`, which ends their subscription. If `received` is true, also
/// tells them when a node has processed the transaction.
pub(super) async fn follow(
    hub: Arc<Hub>,
    subscription: Arc<Subscription>,
    signature: Signature,
    commitment: Commitment,
    received: bool,
) {
    let tip = &hub.parts.tip;
    let mut end = tip.watch(signature, commitment);
    let mut processed = received.then(|| tip.watch(signature, Commitment::Processed));
    let landed = tokio::select! {
        biased;
        landed = end.landed() => landed,
        Some(first) = async { Some(processed.as_mut()?.landed().await) } => {
            after_answer(&hub, &subscription).await;
            let result = format!(r#"{{"context":{{"slot":{}}},"value":"receivedSignature"}}"#, first.slot);
            hub.feeds.publish(&subscription, result.as_bytes(), false);
            end.landed().await
        }
    };
    after_answer(&hub, &subscription).await;
    let head = format!(r#"{{"context":{{"slot":{}}},"value":{{"err":"#, landed.slot);
    let result = [head.as_bytes(), &landed.err, b"}}"].concat();
    hub.feeds.publish(&subscription, &result, true);
}

/// Waits until the last subscriber has had its answer for a moment.
async fn after_answer(hub: &Hub, subscription: &Subscription) {
    loop {
        let joined_at = hub.feeds.lock().feed(subscription).and_then(|feed| feed.joined_at);
        let Some(until) = joined_at.map(|at| at + AFTER_ANSWER).filter(|until| *until > Instant::now())
        else {
            return;
        };
        sleep_until(until).await;
    }
}
