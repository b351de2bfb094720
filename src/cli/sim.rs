//! `slotfront sim`: runs a simulated cluster without a gateway, for tests of other gateways and of clients.

use std::net::SocketAddr;

use clap::builder::RangedU64ValueParser;
use slotfront_sim::{Cluster, SLOT_TIME, Settings};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Failure, World};
use crate::app;
use crate::app::signals::Signals;

/// Run a simulated cluster without a gateway; node i, from 0, listens on the port + i
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Run a simulated cluster alone, for a gateway or client of your own. Node i, from 0, listens on the port + i.\n\
                  The nodes answer every method that only reads, over HTTP and WebSocket. They execute transactions, and\n\
                  give airdrops. The key of a wallet with 1,000 SOL is printed.",
    after_help = "Example:\n    slotfront sim --listen 127.0.0.1:8001 --nodes 3 --seed 7 --slot-time 100ms"
)]
pub(super) struct Args {
    /// The address of the first node; port 0 takes any free ports
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// The number of nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = nodes())]
    nodes: u16,
    /// The number of nodes, counted from the last, that support only the methods of Firedancer and answer others
    /// with HTTP 501
    #[arg(long, value_name = "N", default_value_t = 0)]
    firedancer: u16,
    /// The seed of the chain's history; the same seed gives the same history
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// The duration of a slot
    #[arg(long, value_name = "TIME", default_value_t = SLOT_TIME.into(), value_parser = slot_time)]
    slot_time: humantime::Duration,
}

/// Returns a parser of the number of simulated nodes: 1 to 100. More nodes would only wait for the processor.
pub(super) fn nodes() -> RangedU64ValueParser<u16> {
    RangedU64ValueParser::new().range(1..=100)
}

fn slot_time(text: &str) -> Result<humantime::Duration, String> {
    let time: humantime::Duration = text.parse().map_err(|e: humantime::DurationError| e.to_string())?;
    if time.is_zero() { Err("expected at least 1ms".to_owned()) } else { Ok(time) }
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    let mut signals = Signals::catch()?;
    let mut listeners = bind("--listen", args.listen, args.nodes).await?;
    let mut addresses = Vec::new();
    for listener in &listeners {
        addresses.push(listener.local_addr()?);
    }
    if let Some(last) = addresses.last() {
        listeners.extend(bind_next(*last, world).await?);
    }
    let settings = Settings {
        seed: args.seed,
        nodes: addresses.len(),
        firedancer: args.firedancer.into(),
        slot_time: Some(args.slot_time.into()),
        ..Settings::default()
    };
    let cluster = Cluster::new(settings);
    writeln!(world.out, "{}", wallet(&cluster))?;
    for (i, address) in addresses.iter().enumerate() {
        writeln!(world.out, "node {i}: http://{address}")?;
    }
    world.out.flush()?;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    cluster.serve(listeners, &tasks, stop.clone()).await;
    signals.stop.received().await;
    stop.cancel();
    Ok(())
}

/// Returns the secret key of the cluster's funded account, as the array of bytes that client libraries read.
pub(super) fn wallet(cluster: &Cluster) -> String {
    let key = cluster.funded_key();
    let address = bs58::encode(&key[32..]).into_string();
    let bytes: Vec<String> = key.iter().map(u8::to_string).collect();
    format!("The wallet {address} has 1,000 SOL; its secret key is\n[{}]", bytes.join(","))
}

/// Binds the port after `address`. If it cannot be had, says so on standard error.
pub(super) async fn bind_next(
    address: SocketAddr,
    world: &mut World<'_>,
) -> Result<Option<TcpListener>, Failure> {
    let bound = app::bind_next(address).await;
    if let Err(why) = &bound {
        writeln!(world.err, "{why}")?;
    }
    Ok(bound.ok())
}

/// Binds a listener for each of `nodes` nodes, on consecutive ports that begin with the port of `first`. If this port
/// is 0, each listener gets any free port. Errors name the address by `setting`, such as `--listen`.
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
                port.ok_or_else(|| Failure::Usage(format!("{setting}: no port is left for node {i}")))?;
            address.set_port(port);
        }
        listeners.push(app::bind(setting, address).await.map_err(Failure::runtime)?);
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test]
    async fn a_taken_port_of_sockets_is_said_and_does_no_harm() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut world = World { env: BTreeMap::new(), out: &mut out, err: &mut err };
        let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let taken = held.local_addr().unwrap();
        let before = SocketAddr::new(taken.ip(), taken.port() - 1);
        assert!(bind_next(before, &mut world).await.unwrap().is_none());
        let last = SocketAddr::new(taken.ip(), u16::MAX);
        assert!(bind_next(last, &mut world).await.unwrap().is_none());
        let said = String::from_utf8(err).unwrap();
        let expected = format!("port {} is taken, so client libraries do not find", taken.port());
        assert!(said.starts_with(&expected) && said.contains(&format!("ws://{before}")), "{said}");
    }

    #[test]
    fn the_printed_key_is_that_of_the_printed_wallet() {
        let cluster = Cluster::new(Settings { slot_time: None, history_slots: 0, ..Settings::default() });
        let text = wallet(&cluster);
        let (sentence, key) = text.split_once('\n').unwrap();
        let key: Vec<u8> = serde_json::from_str(key).unwrap();
        assert_eq!(key.len(), 64);
        let address = bs58::encode(&key[32..]).into_string();
        assert!(sentence.contains(&address), "{text}");
        let slot = cluster.slot(crate::methods::Commitment::Processed);
        let account = cluster.account_at(&crate::methods::Pubkey::parse(&address).unwrap(), slot).unwrap();
        assert_eq!(account.lamports, 1_000_000_000_000);
    }
}
