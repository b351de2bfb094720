//! Three simulated nodes whose faults are played one after another, and the callers of the gateway in front of them.
//!
//! The program serves the nodes, waits until the gateway answers from all of them, and plays the faults. Each line of
//! the output is one fault, separated by tabs: its name, calls, failed calls, answers more than 60 slots old, and the
//! p50 and p99 of all its calls in microseconds. Lines that begin with `#` are remarks, such as the first failure of
//! each fault.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod answer;
mod callers;
mod phases;
mod tally;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use slotfront_lab::wire::{Fault, Target};
use slotfront_sim::{Cluster, Settings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::callers::{Callers, Pace};
use crate::phases::Length;

/// The length of a slot, about that of mainnet.
const SLOT_TIME: Duration = Duration::from_millis(400);
/// Slots that have passed at the start: more than a node can be behind.
const HISTORY_SLOTS: u64 = 600;

#[derive(Parser)]
struct Options {
    /// The URL of the gateway to ask: `http://host:port/path`
    target: Target,
    /// The ports of the nodes, the faulty one first
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// The seconds that each fault lasts
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Ends each fault once so many calls have ended and the node has met it, instead of after some seconds
    #[arg(long)]
    calls: Option<u64>,
    #[arg(long, default_value_t = 16)]
    callers: usize,
    /// The milliseconds for which a caller pauses between two calls
    #[arg(long, default_value_t = 5)]
    pause_ms: u64,
    /// The seconds after which a caller gives up
    #[arg(long, default_value_t = 10)]
    give_up_s: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Fault> {
    let options = Options::parse();
    if options.nodes.len() != phases::NODES {
        return Err(format!("{} nodes are needed", phases::NODES).into());
    }
    let mut listeners = Vec::new();
    for port in &options.nodes {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await?);
    }
    let cluster = Cluster::new(Settings {
        nodes: phases::NODES,
        slot_time: Some(SLOT_TIME),
        history_slots: HISTORY_SLOTS,
        ..Settings::default()
    });
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    Arc::clone(&cluster).serve(listeners, &tasks, stop.clone()).await;
    let length = match options.calls {
        Some(calls) => Length::Calls(calls),
        None => Length::Time(Duration::from_secs_f64(options.seconds)),
    };
    let pace = Pace {
        callers: options.callers,
        pause: Duration::from_millis(options.pause_ms),
        give_up: Duration::from_secs(options.give_up_s),
    };
    let callers = Callers::new(options.target, Arc::clone(&cluster), phases::names());
    let (played, ()) = tokio::join!(phases::play(&cluster, &callers, length), callers.ask(pace));
    stop.cancel();
    for line in callers.lines() {
        println!("{line}");
    }
    Ok(played?)
}
