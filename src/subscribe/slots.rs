//! New slots and roots, from the frontier and from the nodes' lists of blocks.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;
use tokio::time::Instant;

use super::unread::UnreadSince;
use super::{CHECK_INTERVAL, Hub};
use crate::jsonrpc::Params;
use crate::methods::{Commitment, Method, Profile, Query, Slot, Subscription};
use crate::node::NodeReply;
use crate::pool::{CallContext, UpstreamRequest};

/// The time that a list of roots may take.
const ROOTS_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which no node may list the roots before their subscribers are closed.
const MAX_UNREAD_TIME: Duration = Duration::from_secs(30);
/// The number of slots for which roots may be missing before their subscribers are closed. Nodes list up to 500,000.
const MAX_MISSING_ROOTS: Slot = 1_000;

pub(super) async fn follow_slots(hub: Arc<Hub>) {
    let mut last = 0;
    loop {
        let slot = hub.next_slot(Commitment::Processed, last).await;
        if slot < last {
            hub.last_slot().0 = 0;
            hub.feeds.interrupt(|subscription| *subscription == Subscription::Slot);
        }
        hub.note_slot(slot, None);
        last = slot;
    }
}

impl Hub {
    pub(super) fn last_slot(&self) -> MutexGuard<'_, (Slot, Instant)> {
        self.last_slot.lock()
    }

    /// Notifies of a slot, unless it is not above the last one: slots rise, and none comes twice. Where `parent` is not
    /// known, it is the last slot that was known before.
    pub(super) fn note_slot(&self, slot: Slot, parent: Option<Slot>) {
        let mut last = self.last_slot();
        if slot <= last.0 {
            return;
        }
        let (before, _) = std::mem::replace(&mut *last, (slot, Instant::now()));
        // A node announces a slot when it begins to make it, and so far is only known to have the parent.
        let shown = parent.unwrap_or(slot);
        let Some(parent) = parent.or((before > 0).then_some(before)) else { return };
        // The lock of the last slot is held until all subscribers have the slot, so that they get slots in order.
        let mut table = self.feeds.lock();
        if table.feed(&Subscription::Slot).is_some() {
            self.parts.tip.raise(Commitment::Processed, shown);
            let root = self.parts.frontier.slot(Commitment::Finalized);
            let result = format!(r#"{{"parent":{parent},"root":{root},"slot":{slot}}}"#);
            self.feeds.publish_in(&mut table, &Subscription::Slot, result.as_bytes(), false);
        }
    }
}

pub(super) async fn follow_roots(hub: Arc<Hub>) {
    let (mut last, mut unread) = (0, UnreadSince::default());
    loop {
        let slot = hub.next_slot(Commitment::Finalized, last).await;
        let is_asked = hub.feeds.has(&Subscription::Root);
        if slot < last || slot - last > MAX_MISSING_ROOTS {
            hub.feeds.interrupt(|subscription| *subscription == Subscription::Root);
        } else if is_asked && last > 0 {
            // A node that does not have the newest root yet would leave roots out.
            let Some(roots) = roots(&hub, last + 1, slot).await.filter(|roots| roots.last() == Some(&slot))
            else {
                if unread.lasts(last, slot, MAX_UNREAD_TIME) {
                    hub.feeds.interrupt(|subscription| *subscription == Subscription::Root);
                }
                tokio::time::sleep(CHECK_INTERVAL / 4).await;
                continue;
            };
            unread.end();
            hub.parts.tip.raise(Commitment::Finalized, slot);
            for root in roots {
                hub.feeds.publish(&Subscription::Root, root.to_string().as_bytes(), false);
            }
        }
        if !is_asked {
            unread.end();
        }
        last = slot;
    }
}

/// Returns the finalized slots with blocks from `first` to `last`, in order. `None` if no node lists them.
async fn roots(hub: &Hub, first: Slot, last: Slot) -> Option<Vec<Slot>> {
    let params = format!(r#"[{first},{last},{{"commitment":"finalized"}}]"#);
    let query = Query::parse(Method::GetBlocks, &Params::Array(params.into()), Profile::Node).ok()?;
    let context = CallContext::own(Instant::now() + ROOTS_TIMEOUT);
    let request = UpstreamRequest { query, min_slot: Some(last), prefer: None, one_node: false, context };
    match hub.parts.pool.call(&request).await.map(|reply| reply.body) {
        Ok(NodeReply::Result(text)) => serde_json::from_slice(&text).ok(),
        Ok(NodeReply::Error { .. }) | Err(_) => None,
    }
}
