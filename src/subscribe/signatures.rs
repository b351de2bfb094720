//! The ends of transactions, from the tip's watches.

use std::sync::Arc;

use super::Hub;
use crate::methods::{Commitment, Signature, Subscription};
use crate::tip::Landed;

/// Notifies the subscribers once `signature` is at `commitment`, which ends their subscription. If `received` is true, also
/// tells them when a node has processed the transaction. Closes them if no node answers what has become of it.
pub(super) async fn follow(
    hub: Arc<Hub>,
    subscription: Arc<Subscription>,
    signature: Signature,
    commitment: Commitment,
    received: bool,
) {
    // No height waits for this task, but for those whom it notifies.
    let watch = |commitment| hub.parts.tip.watch(signature, commitment, None);
    let (mut end, mut processed) = (watch(commitment), received.then(|| watch(Commitment::Processed)));
    let ended = tokio::select! {
        biased;
        ended = end.landed() => ended,
        Some(Ok(first)) = async { Some(processed.as_mut()?.landed().await) } => {
            let result = format!(r#"{{"context":{{"slot":{}}},"value":"receivedSignature"}}"#, first.slot);
            hub.feeds.publish(&subscription, result.as_bytes(), false);
            end.landed().await
        }
    };
    if let Ok(Landed { slot, err }) = ended {
        let head = format!(r#"{{"context":{{"slot":{slot}}},"value":{{"err":"#);
        let result = [head.as_bytes(), &err, b"}}"].concat();
        hub.feeds.publish(&subscription, &result, true);
    } else {
        hub.feeds.interrupt(|of| *of == *subscription);
    }
}
