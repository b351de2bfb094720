//! `[follow]`: accounts are served until a block writes them. `[verify]`: hits are compared with a node.

use std::time::Duration;

use super::SHARE;
use crate::config::setting::section;

section! {
    /// Following the chain: slotfront reads each block, and serves an account until a block writes it.
    /// docs/following.md states which nodes can be followed, and what it costs.
    #[derive(Eq)]
    pub struct FollowSettings {
        /// "off"; "shadow" reads the blocks, and counts and compares the fetches that "on" would spare; "on".
        // Reading every block costs bandwidth. That pays only for some nodes and callers.
        mode: FollowMode = restart.get("off"),
        /// The names of the upstreams that are asked for blocks. Default: all Agave nodes that hold blocks.
        upstreams: Vec<String> = restart.with(|f| f.optional_list(&["validator-1"]).unwrap_or_default()),
        /// Interval between two questions for new blocks.
        // A fraction of a slot, so that an answer is at most a slot older than the node's.
        poll: Duration = restart.within("100ms", "20ms"..="2s"),
        /// Maximum new blocks to catch up with, as after a break of the connection. With more of them, slotfront begins
        /// anew and fetches every account once more.
        // Some 15 to 25 seconds of blocks. After a longer break, most accounts that callers ask for have changed.
        max_gap: usize = restart.within(64, 4..=512),
        /// An account that no block writes is fetched again after this time, and the new answer is compared with the
        /// cached one. A single wrong answer of a node lives no longer.
        // One fetch in ten minutes for each account in use is little beside the fetches that following saves.
        max_carry: Duration = restart.within("10m", "1s"..="24h"),
        /// With a shared store, the replicas read each block once for all. False lets each replica ask its own nodes
        /// for all blocks. Without a shared store this has no effect.
        // A shared store exists so that one replica fetches for all. It is trusted for blocks as it is for answers.
        share: bool = restart.get(true),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowMode {
    Off,
    /// Blocks are read, but callers get the same answers as in mode `off`. The fetches that mode `on` would spare are
    /// counted, and their answers are compared with the cached ones.
    Shadow,
    /// Cached accounts are served until a block writes them.
    On,
}

section! {
    /// The comparison of hits with a node's answers.
    #[derive(Copy)]
    pub struct Verify {
        /// The share of hits that is compared with a node afterwards: 0.001 is one in a thousand, 1.0 is all, 0.0 is
        /// none. `slotfront_verify_total` counts the results, and a mismatch is logged as an error. Default: one in a
        /// thousand of the answers that following serves longer, at most one a second, and no other hit.
        sample: Option<f64> = restart.optional_within(0.001, SHARE),
    }
}
