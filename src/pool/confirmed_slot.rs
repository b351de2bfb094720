//! Extra requests for the confirmed slot while calls miss the cache, which keep the newest known confirmed slot up
//! to date.
//!
//! An answer reports the slot of its own commitment, and some answers report none. If all misses are at finalized,
//! or for blocks, only probes report the confirmed slot. A node is therefore also asked for its confirmed slot
//! after an answer. The request is sent once no node has reported the confirmed slot for a quarter of a slot's
//! length. There is no timer: a pool without calls sends no requests.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::lock;
use super::member::Member;
use super::nodes::Nodes;
use super::probe;
use crate::frontier::Frontier;
use crate::methods::Commitment;
use crate::node::NodeReply;

/// The divisor of a slot's length that gives the time for which the confirmed slot may go unreported.
const SILENT_PART: u32 = 4;
/// The longest time for which the confirmed slot may go unreported, however long slots are.
const LONGEST_SILENCE: Duration = Duration::from_millis(100);
/// The minimum number of answers between two requests for the confirmed slot.
const ANSWERS: u32 = 4;

/// Notes that `member` has answered a call, and requests the node's confirmed slot if that is due.
pub(super) fn note_answer(silence: &Mutex<Silence>, frontier: &Frontier, member: &Member, now: Instant) {
    let heard = frontier.since_last_report(Commitment::Confirmed, now);
    let due = lock(silence).answered(heard, frontier.slot_time(), now);
    if due && member.take_spare_rate(now) {
        member.state.slot_wanted.notify_one();
    }
}

/// The time at which a node was last asked for its confirmed slot, and the number of answers since.
#[derive(Debug, Default)]
pub(super) struct Silence {
    asked_at: Option<Instant>,
    answers: u32,
}

impl Silence {
    /// Counts an answer, and returns true if the node that gave it is now to be asked for its confirmed slot.
    /// `heard` is the time since a node last reported the newest confirmed slot.
    fn answered(&mut self, heard: Duration, slot_time: Duration, now: Instant) -> bool {
        let patience = (slot_time / SILENT_PART).min(LONGEST_SILENCE);
        self.answers = self.answers.saturating_add(1);
        let asked = self.asked_at.is_some_and(|at| now.saturating_duration_since(at) < patience);
        let due = heard >= patience && !asked && self.answers >= ANSWERS;
        if due {
            *self = Self { asked_at: Some(now), answers: 0 };
        }
        due
    }
}

/// Asks the node `id` for its confirmed slot each time that an answer makes it due. Never returns.
pub(super) async fn request_confirmed(nodes: &Nodes, id: usize) {
    while let Some(member) = nodes.snapshot().of(id) {
        member.state.slot_wanted.notified().await;
        let params = json!([{ "commitment": Commitment::Confirmed.as_str() }]);
        let era = nodes.frontier.era();
        let answer = probe::question(&member.client, "getSlot", &params).await;
        // If the node does not answer, its next probe finds the reason.
        if let Ok(NodeReply::Result(slot)) = answer
            && let Ok(slot) = serde_json::from_slice(&slot)
        {
            nodes.frontier.answered_in(era, id, Commitment::Confirmed, slot, Instant::now());
        }
    }
    // The node has left the pool. Its next probe notices that and ends this task.
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_asked_after_silence() {
        const MS: fn(u64) -> Duration = Duration::from_millis;
        let start = Instant::now();
        // Each element of `answers`: a number of answers, the time at which they arrive, and the time since a
        // node last reported the newest confirmed slot. Both times are in milliseconds.
        for (name, slot_ms, answers, expected) in [
            ("heard just now", 250, &[(9, 0, 62)][..], 0),
            ("the fourth answer asks", 250, &[(4, 0, 63)], 1),
            ("not again at once", 250, &[(40, 0, 63)], 1),
            ("not again too soon", 250, &[(4, 0, 63), (4, 62, 250)], 1),
            ("again a quarter of a slot later", 250, &[(4, 0, 63), (4, 63, 250)], 2),
            ("slow slots are looked at as often", 2_000, &[(4, 0, 100), (4, 100, 200)], 2),
            ("few calls ask little", 250, &[(1, 0, 900), (1, 500, 900), (1, 1_000, 900)], 0),
        ] {
            let mut silence = Silence::default();
            let mut asked = 0;
            for (times, at, heard) in answers {
                for _ in 0..*times {
                    asked += u32::from(silence.answered(MS(*heard), MS(slot_ms), start + MS(*at)));
                }
            }
            assert_eq!(asked, expected, "{name}");
        }
    }
}
