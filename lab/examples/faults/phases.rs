//! The faults, in the order in which they are played, and when one ends and the next begins.

use std::time::Duration;

use serde_json::json;
use slotfront_sim::{Cluster, Fault, Node};
use tokio::time::Instant;

use crate::callers::Callers;

pub(crate) const NODES: usize = 3;
pub(crate) const ACCOUNT: &str = "getAccountInfo";
/// The faulty node, and the one that is slow in one of the phases.
const FAULTY: usize = 0;
const SLOW: usize = 1;
/// The calls of the faulty node after which it counts as in use.
const IN_USE: u64 = 10;
/// The requests of a fault, probes included, after which the node has met it.
const MET: u64 = 10;
/// The longest wait for a gateway: until it answers at all, and until it asks a node that is well again.
const PATIENCE: Duration = Duration::from_mins(1);
/// The pause between two looks at whether something has happened.
const LOOK: Duration = Duration::from_millis(2);
/// The name of the time between the faults.
const REST: &str = "none, before and between the faults";

/// The end of a phase.
#[derive(Clone, Copy)]
pub(crate) enum Length {
    /// After this time.
    Time(Duration),
    /// After so many calls, and once the node has met the fault.
    Calls(u64),
}

/// A fault that is played for a while.
struct Phase {
    name: &'static str,
    play: fn(&Cluster),
    /// True if the nodes are well and in use before it.
    rests_before: bool,
    /// The part of the length of a phase.
    part: f64,
}

impl Phase {
    fn new(name: &'static str, play: fn(&Cluster)) -> Self {
        Self { name, play, rests_before: true, part: 1.0 }
    }

    /// Returns a phase that follows the one before it at once.
    fn at_once(name: &'static str, play: fn(&Cluster)) -> Self {
        Self { rests_before: false, ..Self::new(name, play) }
    }
}

fn faulty(cluster: &Cluster) -> &Node {
    cluster.node(FAULTY)
}

fn all_are_well(cluster: &Cluster) {
    for node in cluster.nodes() {
        node.clear_faults();
        node.set_lag(0);
        node.set_down(false);
    }
}

/// Returns every fault. The nodes are well when one begins.
fn phases() -> Vec<Phase> {
    vec![
        Phase::new("killed", |cluster| faulty(cluster).set_down(true)),
        Phase::at_once("back", |_| {}),
        Phase::new("hangs", |cluster| faulty(cluster).fault(Fault::Hang)),
        Phase::new("200 slots behind", |cluster| faulty(cluster).set_lag(200)),
        Phase::new("HTTP 503", |cluster| faulty(cluster).fault(Fault::Status(503))),
        Phase::new("JSON cut off", |cluster| faulty(cluster).fault(Fault::Half)),
        Phase::new("error -32005", |cluster| {
            let message = "Node is unhealthy".to_owned();
            faulty(cluster).fault(Fault::Error { code: -32_005, message });
        }),
        Phase::new("an HTML page", |cluster| {
            let text = "<html><head><title>Back soon</title></head><body>Back soon</body></html>\n";
            faulty(cluster).fault(Fault::Body { content_type: "text/html", text });
        }),
        Phase::new("100,000 slots ahead", |cluster| faulty(cluster).fault(Fault::Ahead(100_000))),
        Phase::new("foreign ids", |cluster| faulty(cluster).fault(Fault::WrongId)),
        Phase::new("an empty 200", |cluster| {
            faulty(cluster).fault(Fault::Body { content_type: "application/json", text: "" });
        }),
        Phase::new("`result: null`", |cluster| faulty(cluster).fault(Fault::NullResult)),
        Phase::new("HTTP 429", |cluster| faulty(cluster).fault(Fault::Status429 { retry_after_s: 1 })),
        Phase::new("30 MB", |cluster| faulty(cluster).fault(Fault::Huge(30_000_000))),
        Phase::new("nested 200,000 deep", |cluster| faulty(cluster).fault(Fault::Nested(200_000))),
        Phase::new("wrong types", |cluster| {
            let value = json!({
                "data": "none", "executable": 0, "lamports": "7", "owner": null, "rentEpoch": [], "space": "7",
            });
            let result = json!({ "context": { "slot": "7" }, "value": value });
            faulty(cluster).fault(Fault::Result(result));
        }),
        Phase::new("no probe answered", |cluster| {
            for method in slotfront_sim::probe_methods() {
                faulty(cluster).fault_on(method, Fault::Hang, None);
            }
        }),
        Phase::new("one killed, one slow", |cluster| {
            faulty(cluster).set_down(true);
            cluster.node(SLOW).fault(Fault::Latency(Duration::from_millis(500)));
        }),
        Phase {
            part: 0.5,
            ..Phase::new("HTTP 503 from all", |cluster| {
                for node in cluster.nodes() {
                    node.fault(Fault::Status(503));
                }
            })
        },
        Phase::at_once("all back", |_| {}),
    ]
}

/// Returns the names of the phases, in the order of the positions that [`play`] gives to the callers.
pub(crate) fn names() -> Vec<&'static str> {
    std::iter::once(REST).chain(phases().iter().map(|phase| phase.name)).collect()
}

/// Plays every fault to the callers, and lets them end.
///
/// # Errors
/// The gateway never answered from all nodes.
pub(crate) async fn play(cluster: &Cluster, callers: &Callers, length: Length) -> Result<(), String> {
    let serves = || callers.have_begun() && cluster.nodes().iter().all(|node| node.calls(ACCOUNT) >= IN_USE);
    if !until(serves).await {
        callers.end();
        return Err("the gateway did not answer from all nodes".to_owned());
    }
    for (position, phase) in (1..).zip(phases()) {
        all_are_well(cluster);
        if phase.rests_before {
            callers.enter(0);
            let asked = faulty(cluster).calls(ACCOUNT);
            let since = Instant::now();
            // A call of the fault before must not meet this one, too.
            let is_over = || position == 1 || callers.are_done_with(position - 1);
            if !until(|| is_over() && faulty(cluster).calls(ACCOUNT) >= asked + IN_USE).await {
                let passed = since.elapsed().as_secs();
                callers.remark(format!("before {}: the node was not in use after {passed} s", phase.name));
            }
        }
        callers.enter(position);
        (phase.play)(cluster);
        match length {
            Length::Time(time) => tokio::time::sleep(time.mul_f64(phase.part)).await,
            Length::Calls(calls) => {
                let met = met(cluster);
                if !until(|| callers.ended(position) >= calls && met(cluster)).await {
                    callers.remark(format!("{}: too few calls, or the node did not meet it", phase.name));
                }
            }
        }
    }
    callers.end();
    Ok(())
}

/// Returns the question of whether the faulty node has met a fault that begins now.
fn met(cluster: &Cluster) -> impl Fn(&Cluster) -> bool + use<> {
    let before = faulty(cluster).calls_total();
    move |cluster| faulty(cluster).is_down() || faulty(cluster).calls_total() >= before + MET
}

/// Waits until `holds` returns true. Returns false if it never did.
async fn until(holds: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}
