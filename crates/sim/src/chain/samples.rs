//! Performance samples: the numbers of slots and transactions that each node counts in each period of 60 seconds.
//!
//! Nodes begin their first minute at different slots, so their samples differ, as on real clusters.

use std::collections::VecDeque;

use slotfront_rpc::methods::Slot;

use crate::draw::Draw;

/// The length of a sample in seconds.
pub(crate) const PERIOD_S: u64 = 60;
/// The maximum number of performance samples that a node keeps, as on a real node.
const KEPT: usize = 720;
/// The number of samples from before the simulation began.
const EARLIER: u64 = 30;

/// The counts of one node over one period, which ended at `slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) slot: Slot,
    pub(crate) slots: u64,
    pub(crate) transactions: u64,
    pub(crate) non_votes: u64,
}

/// The samples of every node, newest first.
#[derive(Clone)]
pub(crate) struct Samples {
    slots_per_period: u64,
    nodes: Vec<VecDeque<Sample>>,
    open: Vec<Sample>,
}

impl Samples {
    /// Creates the samples of `nodes` nodes, on a chain that begins at the slot `first`. Samples from before `first`
    /// are invented.
    pub(crate) fn new(seed: u64, nodes: usize, slots_per_period: u64, first: Slot) -> Self {
        let mut samples = Self { slots_per_period, nodes: vec![], open: vec![] };
        for node in (0..).take(nodes) {
            let mut draw = Draw::new(seed, "samples", node);
            let begun = draw.below(slots_per_period);
            let made_up = (0..EARLIER)
                .map_while(|n| {
                    let slots = slots_per_period - draw.below(slots_per_period / 10 + 1);
                    let non_votes = slots * draw.range(5, 8);
                    let slot = first.checked_sub(begun + n * slots_per_period + 1)?;
                    Some(Sample { slot, slots, transactions: non_votes + slots * 5, non_votes })
                })
                .collect();
            samples.nodes.push(made_up);
            samples.open.push(Sample {
                slot: first,
                slots: begun,
                transactions: begun * 12,
                non_votes: begun * 7,
            });
        }
        samples
    }

    /// Counts `slot`, with or without a block, for every node. `transactions` includes votes, `non_votes` does not.
    pub(crate) fn count(&mut self, slot: Slot, transactions: u64, non_votes: u64) {
        for (open, closed) in self.open.iter_mut().zip(&mut self.nodes) {
            open.slot = slot;
            open.slots += 1;
            open.transactions += transactions;
            open.non_votes += non_votes;
            if open.slots >= self.slots_per_period {
                closed.push_front(*open);
                closed.truncate(KEPT);
                *open = Sample { slot, slots: 0, transactions: 0, non_votes: 0 };
            }
        }
    }

    /// Returns the samples that `node` has completed by `slot`, newest first.
    pub(crate) fn of(&self, node: usize, slot: Slot) -> impl Iterator<Item = &Sample> {
        self.nodes.get(node).into_iter().flatten().skip_while(move |sample| sample.slot > slot)
    }
}
