//! The faults in their order, and the conditions for the end of each fault.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use slotfront_rpc::methods::Commitment;
use slotfront_sim::{Cluster, Fault, Node};
use tokio::time::Instant;

use crate::beside::{self, ACCOUNT, Beside, REFUSED, WELL};
use crate::callers::{Callers, Row};

pub(crate) const NODES: usize = 3;
const FAULTY: usize = 0;
/// The position of the node that is slow in one of the phases, and down in another.
const SLOW: usize = WELL;
/// The node that has no history then.
const SHALLOW: usize = 2;
/// The method by which nodes tell their health.
const HEALTH: &str = "getHealth";
/// The node that stands still from the start is this many slots behind.
const STILL: u64 = 100;
/// After this many calls to a node, the gateway counts as using it.
const IN_USE: u64 = 10;
/// The longest wait for a condition: for the gateway's first answers, or for the use of a recovered node.
const PATIENCE: Duration = Duration::from_mins(1);
/// The interval between two checks of a condition.
const LOOK: Duration = Duration::from_millis(2);
/// The name of the phase before and between the faults.
const REST: &str = "none, before and between the faults";

/// A phase of the run: one fault of the nodes, and the rule for its duration.
pub(crate) struct Phase {
    name: &'static str,
    play: fn(&Cluster),
    /// True if the phase begins only after all nodes have recovered and the gateway uses each of them again.
    rests_before: bool,
    /// The factor by which the duration of the phases is multiplied for this one.
    part: f64,
    /// The calls that the phase makes beside those for accounts.
    beside: Option<Beside>,
}

impl Phase {
    fn new(name: &'static str, play: fn(&Cluster)) -> Self {
        Self { name, play, rests_before: true, part: 1.0, beside: None }
    }

    /// Returns the phase with calls beside those for accounts.
    fn beside(self, beside: Beside) -> Self {
        Self { beside: Some(beside), ..self }
    }

    /// Returns the rows of the output that count the calls of the phase.
    fn rows(&self) -> impl Iterator<Item = Row> {
        let beside = self.beside.map(|beside| format!("{}: {}", self.name, beside.name()));
        let row = Row { name: self.name.to_owned(), beside: self.beside };
        std::iter::once(row).chain(beside.map(|name| Row { name, beside: None }))
    }

    /// Returns a phase that begins as soon as the phase before has ended.
    fn at_once(name: &'static str, play: fn(&Cluster)) -> Self {
        Self { rests_before: false, ..Self::new(name, play) }
    }
}

fn faulty(cluster: &Cluster) -> &Node {
    cluster.node(FAULTY)
}

pub(crate) fn clear_all_faults(cluster: &Cluster) {
    for node in cluster.nodes() {
        node.clear_faults();
        node.set_lag(0);
        node.stand_still_at(None);
        node.set_hole(0..0);
        node.prune_below(0);
        node.set_down(false);
    }
}

/// Injects the fault that is there when the gateway starts. Of the other two nodes, one is down. So there is nobody to
/// outvote the node that stands still.
pub(crate) fn begin(cluster: &Cluster) {
    faulty(cluster).stand_still_at(Some(cluster.slot(Commitment::Processed).saturating_sub(STILL)));
    faulty(cluster).fault_on(HEALTH, Fault::Result(json!("ok")), None);
    cluster.node(SLOW).set_down(true);
}

fn fault_everywhere(cluster: &Cluster, method: &str, fault: &Fault) {
    for node in cluster.nodes() {
        node.fault_on(method, fault.clone(), None);
    }
}

/// The phases of a comparison of any gateways, `lab/peers.py`: first none has a fault, then one node hangs.
pub(crate) fn of_peers() -> Vec<Phase> {
    vec![
        Phase::new("all nodes well", |_| {}),
        Phase::new("hangs", |cluster| faulty(cluster).fault(Fault::Hang)),
    ]
}

/// All faults. They are cleared between two phases.
pub(crate) fn all() -> Vec<Phase> {
    let mut all = of_whole_nodes();
    all.extend(of_methods());
    all
}

fn of_whole_nodes() -> Vec<Phase> {
    vec![
        Phase::at_once("stands still from the start, one killed", begin),
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
        Phase::new("no getHealth at any, one 200 slots behind", |cluster| {
            let message = "Method not found".to_owned();
            fault_everywhere(cluster, HEALTH, &Fault::Error { code: -32_601, message });
            faulty(cluster).set_lag(200);
        }),
        Phase::new("two machines a slot apart, the others killed", |cluster| {
            faulty(cluster).fault(Fault::TwoMachines);
            for node in cluster.nodes().iter().filter(|node| node.index() != FAULTY) {
                node.set_down(true);
            }
        })
        .beside(Beside::NewestSlot),
        Phase::new("a hole in the blocks of two", |cluster| {
            for node in cluster.nodes().iter().filter(|node| node.index() != SLOW) {
                node.set_hole(beside::hole());
            }
        })
        .beside(Beside::Blocks),
    ]
}

/// Faults in one method, and those of nodes that are not alike.
fn of_methods() -> Vec<Phase> {
    vec![
        Phase::new("HTTP 504 from all to one method, one 200 slots behind", |cluster| {
            fault_everywhere(cluster, REFUSED, &Fault::Status(504));
            faulty(cluster).set_lag(200);
        })
        .beside(Beside::Refused { retry_after: false }),
        Phase::new("HTTP 429 from all to one method", |cluster| {
            fault_everywhere(cluster, REFUSED, &Fault::Status429 { retry_after_s: 60 });
        })
        .beside(Beside::Refused { retry_after: true }),
        Phase::new("an archive with HTTP 503", |cluster| fault_of_archive(cluster, Fault::Status(503)))
            .beside(Beside::Pages),
        Phase::new("an archive with HTTP 429", |cluster| {
            fault_of_archive(cluster, Fault::Status429 { retry_after_s: 1 });
        })
        .beside(Beside::Pages),
        Phase::new("HTTP 400 to one method", |cluster| fault_of_archive(cluster, Fault::Status(400)))
            .beside(Beside::Pages),
        Phase::new("accounts hang while probes are answered", |cluster| {
            faulty(cluster).fault_on(ACCOUNT, Fault::Hang, None);
        }),
        Phase::new("out of credits: 429", |cluster| refuse(cluster, 429, "You have used up your credits")),
        Phase::new("out of credits: -32003", |cluster| {
            refuse(cluster, -32_003, "daily request limit reached");
        }),
        Phase::new("out of credits: -32000", |cluster| {
            refuse(cluster, -32_000, "50/second request limit reached");
        }),
        Phase::new("out of credits: -32413", |cluster| refuse(cluster, -32_413, "compute units exceeded")),
        Phase::new("HTTP 413", |cluster| faulty(cluster).fault_on(ACCOUNT, Fault::Status(413), None)),
        Phase {
            // A scan and a bit.
            part: 5.0,
            ..Phase::new("scans of 14 s at all", |cluster| {
                fault_everywhere(cluster, "getProgramAccounts", &Fault::Latency(beside::SCAN));
            })
        }
        .beside(Beside::Scans),
    ]
}

/// Injects a fault into the pages of signatures of an archive. Of the other nodes, one has the whole history and one has
/// none.
fn fault_of_archive(cluster: &Cluster, fault: Fault) {
    faulty(cluster).fault_on(beside::PAGES, fault, None);
    cluster.node(SHALLOW).prune_below(cluster.slot(Commitment::Finalized));
}

/// Answers the account calls with the words of a provider whose customer has used up what he paid for.
fn refuse(cluster: &Cluster, code: i32, message: &str) {
    let message = message.to_owned();
    faulty(cluster).fault_on(ACCOUNT, Fault::Error { code, message }, None);
}

/// Returns the rows of the output. The first is for the time before and between the faults.
pub(crate) fn rows(phases: &[Phase]) -> Vec<Row> {
    let rest = Row { name: REST.to_owned(), beside: None };
    std::iter::once(rest).chain(phases.iter().flat_map(Phase::rows)).collect()
}

/// Injects every fault in turn, each for this time, then stops the callers.
pub(crate) async fn play(phases: Vec<Phase>, cluster: &Cluster, callers: &Callers, time: Duration) {
    let mut next = 1;
    for phase in phases {
        let position = next;
        next += phase.rows().count();
        clear_all_faults(cluster);
        if phase.rests_before {
            callers.enter(0);
            // A node that has just come back is known to be back after its next probe only.
            let asked: Vec<_> = cluster.nodes().iter().map(|node| node.calls(ACCOUNT)).collect();
            let since = Instant::now();
            // Calls that began during the previous fault must end before the next fault begins.
            let is_over = || callers.are_done_with_faults();
            let is_used = |node: &Arc<Node>| node.calls(ACCOUNT) >= asked[node.index()] + IN_USE;
            if !until(|| is_over() && cluster.nodes().iter().all(is_used)).await {
                let passed = since.elapsed().as_secs();
                callers.remark(format!("before {}: a node was not in use after {passed} s", phase.name));
            }
        }
        callers.enter(position);
        (phase.play)(cluster);
        tokio::time::sleep(time.mul_f64(phase.part)).await;
    }
    callers.end();
}

/// Waits until `holds` returns true. Returns false after [`PATIENCE`].
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
