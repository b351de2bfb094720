//! `[send]`: the sending of transactions.

use crate::config::setting::section;

section! {
    /// The sending of transactions, for plans with `send = true`.
    pub struct SendSettings {
        /// True if sendTransaction is forwarded to nodes.
        // An endpoint that only reads can do no harm, so an operator has to decide this.
        enabled: bool = restart.get(false),
        /// The names of the upstreams that get transactions. Default: all.
        upstreams: Vec<String> = restart.list(&[]),
        /// The number of further nodes that get a copy of an accepted transaction, without preflight.
        fanout: usize = restart.within(0, 0..=16),
    }
}
