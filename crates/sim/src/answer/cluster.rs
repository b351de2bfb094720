//! getClusterNodes and getRecentPerformanceSamples: the peers of a node and its throughput.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::View;
use crate::chain::samples::PERIOD_S;
use crate::traits::VERSION;

/// The feature set of the version that simulated nodes report.
pub(crate) const FEATURE_SET: u32 = 3_718_597_879;
/// The address that getClusterNodes lists for a node that does not listen. The IP range is reserved for documentation.
const NOWHERE: ([u8; 4], u16) = ([192, 0, 2, 1], 8_899);

/// Answers getRecentPerformanceSamples.
pub(super) fn samples(view: &View<'_>, limit: u16) -> Value {
    let samples = view.chain.samples.of(view.node.index(), view.tip.slot).take(usize::from(limit));
    let entry = |sample: &crate::chain::samples::Sample| {
        json!({
            "numNonVoteTransactions": sample.non_votes,
            "numSlots": sample.slots,
            "numTransactions": sample.transactions,
            "samplePeriodSecs": PERIOD_S,
            "slot": sample.slot,
        })
    };
    samples.map(entry).collect()
}

/// Answers getClusterNodes.
pub(super) fn nodes(view: &View<'_>) -> Value {
    let shred_version = u16::from_le_bytes([view.chain.genesis.seed.to_le_bytes()[0], 0xa8]);
    let peers = view.node.peers().iter().zip(&view.chain.addresses.validators);
    peers
        .map(|(address, validator)| {
            let rpc = address.get().copied().unwrap_or_else(|| SocketAddr::from(NOWHERE));
            let port = |offset: u16| SocketAddr::new(rpc.ip(), rpc.port().wrapping_add(offset)).to_string();
            json!({
                "clientId": "Agave",
                "featureSet": FEATURE_SET,
                "gossip": port(3),
                "pubkey": validator.identity.to_string(),
                "pubsub": port(1),
                "rpc": rpc.to_string(),
                "serveRepair": port(18),
                "shredVersion": shred_version,
                "tpu": null,
                "tpuForwards": null,
                "tpuForwardsQuic": port(12),
                "tpuQuic": port(11),
                "tpuVote": port(13),
                "tvu": port(10),
                "version": VERSION,
            })
        })
        .collect()
}
