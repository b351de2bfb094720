//! Three simulated nodes with injected faults, and the callers of the gateway in front of them.
//!
//! The program serves the nodes and says so with the line `serving`. The gateway must be started after that line,
//! because one of the faults is there from the start. Once the gateway is ready, the program wants a line of input, or
//! its end. The other faults are injected one after the other. Each further line of the output is for one phase, or for
//! the calls that a phase makes beside those for accounts. The first phase is the time before and between the faults.
//! Every other phase is a fault or a recovery. The fields of a line are separated by tabs:
//!
//! - The name of the phase.
//! - The numbers of calls, of failed calls and of answers more than 60 slots old.
//! - The p50 and the p99 of the calls' durations in microseconds.
//! - The number of requests that the nodes received meanwhile, probes included.
//! - The p50 and the p99 of the slots by which the answers were behind the cluster at their commitment.
//!
//! Lines that begin with `#` are remarks, such as the first failure of each phase.
//!
//! With `--peers`, there are only two phases: all nodes are well, then one hangs. All calls have the id 1. After the lines
//! of the phases, the line `addresses` has the requested accounts. The nodes, all well, then serve until the input ends.

#![expect(clippy::print_stdout, reason = "the caller reads the output")]

mod answer;
mod beside;
mod callers;
mod phases;
mod tally;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use slotfront_lab::wire::{BoxError, Target};
use slotfront_sim::{Cluster, Settings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::callers::{Callers, Pace};

/// The duration of a slot, about that of mainnet.
const SLOT_TIME: Duration = Duration::from_millis(400);
/// The number of slots that the chain has at the start. It exceeds the largest lag that a fault gives to a node.
const HISTORY_SLOTS: u64 = 600;
/// The number of newest slots whose blocks are kept. A run takes fewer, so no block is dropped meanwhile.
const RETAINED_SLOTS: u64 = 100_000;

#[derive(Parser)]
struct Options {
    /// The URL of the gateway: `http://host:port/path`
    target: Target,
    /// The ports of the nodes, the faulty one first
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// The duration of each fault in seconds
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    #[arg(long, default_value_t = 16)]
    callers: usize,
    /// The pause of a caller between two calls, in milliseconds
    #[arg(long, default_value_t = 5)]
    pause_ms: u64,
    /// The commitments that the callers request in turn
    #[arg(long, value_delimiter = ',', default_value = "processed")]
    commitments: Vec<String>,
    /// The timeout of a caller in seconds
    #[arg(long, default_value_t = 10)]
    give_up_s: u64,
    /// Plays only the phases that compare gateways, and then serves until the input ends
    #[arg(long)]
    peers: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    if options.nodes.len() != phases::NODES {
        return Err(format!("--nodes takes {} ports", phases::NODES).into());
    }
    let mut listeners = Vec::new();
    for port in &options.nodes {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await?);
    }
    let cluster = Cluster::new(Settings {
        nodes: phases::NODES,
        slot_time: Some(SLOT_TIME),
        history_slots: HISTORY_SLOTS,
        retained_slots: RETAINED_SLOTS,
        ..Settings::default()
    });
    if !options.peers {
        phases::begin(&cluster);
    }
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    Arc::clone(&cluster).serve(listeners, &tasks, stop.clone()).await;
    println!("serving");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    let pace = Pace {
        callers: options.callers,
        pause: Duration::from_millis(options.pause_ms),
        give_up: Duration::from_secs(options.give_up_s),
        equal_ids: options.peers,
    };
    let time = Duration::from_secs_f64(options.seconds);
    let phases = if options.peers { phases::of_peers() } else { phases::all() };
    let callers =
        Callers::new(options.target, options.commitments, Arc::clone(&cluster), phases::rows(&phases));
    tokio::join!(phases::play(phases, &cluster, &callers, time), callers.ask(pace));
    for line in callers.lines() {
        println!("{line}");
    }
    if options.peers {
        phases::clear_all_faults(&cluster);
        let addresses: Vec<String> = callers.addresses().iter().map(ToString::to_string).collect();
        println!("addresses\t{}", addresses.join("\t"));
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    }
    stop.cancel();
    Ok(())
}
