//! Counts the calls that following the chain saves, and compares them with an ideal cache.
//!
//! The program serves one simulated cluster and sends the same reads, at the same time, to gateways with and
//! without following. Single accounts and lists go to different gateways. Each gateway has nodes of its own, so
//! the node that gets a call shows which gateway sent the call. The ideal cache knows the writes of the cluster at
//! once. Each answer is compared with the state of the cluster at the slot that the answer names.
//!
//! The output is a table in Markdown. The text before it describes the reads.

#![expect(clippy::print_stdout, reason = "the caller reads the output")]

mod check;
mod lane;
mod table;
mod upstream;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use slotfront_lab::ideal::IdealCache;
use slotfront_lab::reads::{PlannedRead, Reads, Spread};
use slotfront_lab::wire::{BoxError, Target};
use slotfront_rpc::methods::Commitment;
use slotfront_sim::{Cluster, Settings};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lane::Lane;
use crate::table::{IdealFetches, Measured};

/// The maximum delay of a read. A longer delay means that the machine and the cluster have stalled. All later
/// reads are then postponed.
const LATE: Duration = Duration::from_secs(1);
/// The version that the nodes report. At finalized, nodes below 4.1 may give data of a slot later than the
/// answer's own.
const NODE_VERSION: &str = "4.4.0";
/// The number of newest slots whose blocks the cluster keeps. Gateways that follow the chain request only the
/// newest blocks.
const RETAINED_SLOTS: u64 = 400;

#[derive(Parser)]
struct Options {
    /// The gateway for single accounts that does not follow the chain: `http://host:port/v3/KEY`
    #[arg(long)]
    singles_off: Target,
    /// The gateway for single accounts that follows the chain
    #[arg(long)]
    singles_on: Target,
    /// The gateway for lists that does not follow the chain
    #[arg(long)]
    lists_off: Target,
    /// The gateway for lists that follows the chain
    #[arg(long)]
    lists_on: Target,
    /// The ports of the nodes: equally many for each gateway, in the order of the gateways above
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The average number of reads of single accounts per second
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
    /// The average number of reads of lists per second
    #[arg(long, default_value_t = 50.0)]
    list_rate: f64,
    /// The percentages of reads by write rate of their accounts: written every slot, every half minute, and never
    #[arg(long, value_delimiter = ',', default_value = "30,30,40")]
    spread: Vec<f64>,
    /// The percentage of reads at confirmed; all other reads are at finalized
    #[arg(long, default_value_t = 60)]
    confirmed: u64,
}

impl Options {
    fn spread(&self) -> Result<Spread, BoxError> {
        let [every_slot, half_minute, never] = self.spread[..] else {
            return Err("--spread takes three percentages".into());
        };
        Ok(Spread { rates: [never, half_minute, every_slot], confirmed: self.confirmed })
    }
}

/// The gateways, the cluster behind them, and the ideal caches. The gateways and the ideal caches get the same reads.
struct Replay {
    cluster: Arc<Cluster>,
    lanes: Vec<Arc<Lane>>,
    /// The two ideal caches: the first for single accounts, the second for lists.
    ideal: [IdealCache; 2],
    ideal_fetches: IdealFetches,
}

impl Replay {
    /// Sends the reads at their planned times, and waits for all answers. Returns the total time by which reads
    /// were postponed.
    async fn run(&mut self, reads: impl Iterator<Item = PlannedRead>) -> Duration {
        let (mut begun, mut put_off) = (Instant::now(), Duration::ZERO);
        let open = TaskTracker::new();
        for read in reads {
            let due = begun + read.at;
            let delay = due.elapsed();
            if delay > LATE {
                put_off += delay;
                begun += delay;
            }
            tokio::time::sleep_until(due).await;
            self.ask_ideal(&read);
            let read = Arc::new(read);
            for gateway in self.lanes.iter().filter(|lane| lane.is_list == read.is_list) {
                let (gateway, read) = (Arc::clone(gateway), Arc::clone(&read));
                open.spawn(async move { gateway.send(&read).await });
            }
        }
        open.close();
        open.wait().await;
        put_off
    }

    fn ask_ideal(&mut self, read: &PlannedRead) {
        let newest = self.cluster.slot(read.commitment);
        let written = |key| (key, self.cluster.last_write(&key, newest).unwrap_or(0));
        let accounts: Vec<_> = read.accounts.iter().copied().map(written).collect();
        let cache = &mut self.ideal[usize::from(read.is_list)];
        if cache.read(accounts, read.parsed, read.commitment) {
            *self.ideal_fetches.entry((read.is_list, read.commitment, read.rate)).or_default() += 1;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let spread = options.spread()?;
    let gateways = [
        (false, false, &options.singles_off),
        (false, true, &options.singles_on),
        (true, false, &options.lists_off),
        (true, true, &options.lists_on),
    ];
    if !options.nodes.len().is_multiple_of(gateways.len()) {
        return Err("--nodes takes equally many ports for each gateway".into());
    }
    let mut listeners = Vec::new();
    for port in &options.nodes {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await?);
    }
    let cluster = Cluster::new(Settings {
        seed: options.seed,
        nodes: options.nodes.len(),
        retained_slots: RETAINED_SLOTS,
        paced_accounts: spread.accounts(),
        ..Settings::default()
    });
    for node in cluster.nodes() {
        node.set_version(NODE_VERSION);
    }
    let reads = Reads::new(options.seed, [options.rate, options.list_rate], spread, &cluster);
    let rates = Arc::new(reads.rates().collect::<HashMap<_, _>>());
    let nodes = cluster.nodes().chunks(options.nodes.len() / gateways.len());
    let lanes = gateways.into_iter().zip(nodes).map(|((is_list, follows, target), nodes)| {
        Arc::new(Lane::new(is_list, follows, target.clone(), &cluster, nodes, &rates))
    });
    let lanes: Vec<_> = lanes.collect();
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    Arc::clone(&cluster).serve(listeners, &tasks, stop.clone()).await;
    for lane in &lanes {
        lane.ready().await?;
    }
    // The counts begin at 0, without the calls of all gateways until the last one was ready.
    for lane in &lanes {
        lane.take();
    }
    let (began, slot) = (Instant::now(), cluster.slot(Commitment::Processed));
    let mut replay = Replay {
        cluster: Arc::clone(&cluster),
        lanes,
        ideal: Default::default(),
        ideal_fetches: HashMap::new(),
    };
    let length = Duration::from_secs(options.seconds);
    let put_off = replay.run(reads.take_while(|read| read.at < length)).await;
    let (took, slots) = (began.elapsed(), cluster.slot(Commitment::Processed) - slot);
    let measured: Vec<_> =
        replay.lanes.iter().map(|lane| Measured::new(lane, &replay.ideal_fetches, took)).collect();
    stop.cancel();
    println!("The reads: {}.\n", spread.describe());
    println!(
        "Seed {}, {} single accounts and {} lists a second, {:.0} s with {slots} slots; {:.1} s of waits because the \
         machine was stalled.\n",
        options.seed,
        options.rate,
        options.list_rate,
        took.as_secs_f64(),
        put_off.as_secs_f64()
    );
    print!("{}", table::markdown(&measured));
    Ok(())
}
