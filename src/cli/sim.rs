//! `slotfront sim`: only the simulated cluster, for a gateway or a client of one's own.

use std::net::SocketAddr;

use clap::builder::RangedU64ValueParser;
use slotfront_sim::{Cluster, SLOT_TIME, Settings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Failure, World};
use crate::app;
use crate::app::signals::Signals;

/// Only the simulated cluster: node i listens on the port + i
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Only the simulated cluster, for a gateway or a client of your own: node i listens on the port + i.\n\
                  It speaks the eight methods, and those that probes and clients need, as a node does.",
    after_help = "Example:\n    slotfront sim --listen 127.0.0.1:8001 --nodes 3 --seed 7 --slot-time 100ms"
)]
pub(super) struct Args {
    /// Address of the first node; port 0 takes any that are free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = nodes())]
    nodes: u16,
    /// How many of the nodes, the last ones, do only what a Firedancer node does, and answer all else with HTTP 501
    #[arg(long, value_name = "N", default_value_t = 0)]
    firedancer: u16,
    /// What the history is made from: the same seed, the same history
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How long a slot lasts
    #[arg(long, value_name = "TIME", default_value_t = SLOT_TIME.into(), value_parser = slot_time)]
    slot_time: humantime::Duration,
}

/// How many nodes may be simulated: past a hundred, one machine simulates nothing but waiting.
pub(super) fn nodes() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=100)
}

fn slot_time(text: &str) -> Result<humantime::Duration, String> {
    let time: humantime::Duration = text.parse().map_err(|e: humantime::DurationError| e.to_string())?;
    if time.is_zero() { Err("a slot lasts at least 1ms".to_owned()) } else { Ok(time) }
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    let mut signals = Signals::catch()?;
    let listeners = bind("--listen", args.listen, args.nodes).await?;
    for (i, listener) in listeners.iter().enumerate() {
        writeln!(world.out, "node {i}: http://{}", listener.local_addr()?)?;
    }
    world.out.flush()?;
    let settings = Settings {
        seed: args.seed,
        nodes: listeners.len(),
        firedancer: args.firedancer.into(),
        slot_time: Some(args.slot_time.into()),
        ..Settings::default()
    };
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    Cluster::new(settings).serve(listeners, &tasks, stop.clone()).await;
    signals.stop.asked().await;
    stop.cancel();
    Ok(())
}

/// A listener for each node, on ports that follow each other; with port 0, on any.
pub(super) async fn bind(
    setting: &'static str,
    first: SocketAddr,
    nodes: u16,
) -> Result<Vec<TcpListener>, Failure> {
    let mut listeners = Vec::new();
    for i in 0..nodes {
        let mut address = first;
        if first.port() != 0 {
            let port = first.port().checked_add(i);
            let port =
                port.ok_or_else(|| Failure::Usage(format!("{setting}: the ports end before node {i}")))?;
            address.set_port(port);
        }
        listeners.push(app::bind(setting, address).await.map_err(Failure::runtime)?);
    }
    Ok(listeners)
}
