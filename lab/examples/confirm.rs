//! Three simulated nodes with sockets for `lab/confirm.py`, and the faults that it asks for.
//!
//! Prints `serving` once the nodes listen. Each further line of the input is a command, which is answered with a line:
//! `kill N`, `hang N`, `behind N SLOTS` and `heal N` change node N and are answered with `ok`; `calls` is answered with the
//! number of calls over HTTP that the nodes have got.

#![expect(clippy::print_stdout, reason = "the caller reads the output")]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use slotfront_lab::wire::BoxError;
use slotfront_sim::{Cluster, Fault, Settings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[derive(Parser)]
struct Options {
    /// The ports of the nodes
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// The duration of a slot in milliseconds
    #[arg(long, default_value_t = 100)]
    slot_ms: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let mut listeners = Vec::new();
    for port in &options.nodes {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await?);
    }
    let cluster = Cluster::new(Settings {
        nodes: options.nodes.len(),
        slot_time: Some(Duration::from_millis(options.slot_ms)),
        history_slots: 600,
        ..Settings::default()
    });
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    Arc::clone(&cluster).serve(listeners, &tasks, stop.clone()).await;
    println!("serving");
    let commands = move || -> Result<(), BoxError> {
        for line in std::io::stdin().lines() {
            println!("{}", command(&cluster, &line?)?);
        }
        Ok(())
    };
    tokio::task::spawn_blocking(commands).await??;
    stop.cancel();
    Ok(())
}

fn command(cluster: &Cluster, line: &str) -> Result<String, BoxError> {
    let words: Vec<_> = line.split_whitespace().collect();
    let node = |text: &str| -> Result<_, BoxError> {
        cluster.nodes().get(text.parse::<usize>()?).ok_or_else(|| format!("no node {text}").into())
    };
    match words[..] {
        ["kill", index] => node(index)?.set_down(true),
        ["hang", index] => node(index)?.fault(Fault::Hang),
        ["behind", index, slots] => node(index)?.set_lag(slots.parse()?),
        ["heal", index] => {
            let node = node(index)?;
            node.clear_faults();
            node.set_lag(0);
            node.set_down(false);
        }
        ["calls"] => {
            return Ok(cluster.nodes().iter().map(|node| node.calls_total()).sum::<u64>().to_string());
        }
        _ => return Err(format!("unknown command: {line}").into()),
    }
    Ok("ok".to_owned())
}
