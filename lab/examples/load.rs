//! The load that fills a cache before it is measured: `fill` with so many accounts, `churn` with answers of all sizes.
//!
//! Both ask a yardstick node's accounts, whose addresses say how long their data is. The same seed asks the same calls,
//! though connections may be ahead of each other. What was done goes to the standard output, as `name value` lines.

#![expect(clippy::print_stdout, reason = "its output is how its caller knows what it did")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use slotfront_lab::dice::Dice;
use slotfront_lab::sized;
use slotfront_lab::wire::{Connection, Fault, Target};
use tokio::time::Instant;

/// The usual length of a list, which fills the entries of all its accounts.
const LIST: u64 = 100;
/// Calls of `churn` that ask again what was asked before, of a hundred; and how long before, at most.
const AGAIN: u64 = 20;
const BACK: u64 = 2_000;

#[derive(Parser)]
struct Options {
    /// The URL to ask: `http://host:port/v3/KEY`
    target: Target,
    #[arg(long, default_value_t = 8)]
    connections: u64,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Asks for accounts 0 to N - 1, each `size` bytes long, in lists
    Fill {
        #[arg(long)]
        entries: u64,
        #[arg(long, default_value_t = 3)]
        size: usize,
        /// Accounts of one list; 1 asks for each alone
        #[arg(long, default_value_t = LIST)]
        list: u64,
    },
    /// Asks for accounts and blocks of all sizes, until there were so many bytes of answers, or so many seconds are over
    Churn {
        #[arg(long, default_value_t = u64::MAX)]
        bytes: u64,
        #[arg(long)]
        seconds: Option<u64>,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The number of the first call: what an earlier churn did not ask begins where that ended
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// Asks over a new connection after so many calls
        #[arg(long, default_value_t = u64::MAX)]
        reconnect: u64,
    },
}

fn one(size: usize, number: u64) -> String {
    let address = sized::address(size, number);
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":["{address}",{{"encoding":"base64","commitment":"finalized"}}]}}"#
    )
}

fn list(sizes: impl Iterator<Item = (usize, u64)>) -> String {
    let addresses: Vec<String> =
        sizes.map(|(size, number)| format!("\"{}\"", sized::address(size, number))).collect();
    let addresses = addresses.join(",");
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"getMultipleAccounts","params":[[{addresses}],{{"encoding":"base64","commitment":"finalized"}}]}}"#
    )
}

/// Call number `number` of a churn: mostly small accounts, some of them in lists, some large ones, and few blocks,
/// which make about half of the bytes.
fn churned(seed: u64, number: u64) -> String {
    let mut dice = Dice::new(seed, number);
    let mut size = |low: u64, high: u64| usize::try_from(dice.range(low, high)).unwrap_or(0);
    match Dice::new(!seed, number).below(1_000) {
        0..3 => {
            let slot = size(100_000, 5_000_000);
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"getBlock","params":[{slot},{{"maxSupportedTransactionVersion":0}}]}}"#
            )
        }
        3..50 => list((0..20).map(|at| (size(0, 400), number * 20 + at))),
        50..100 => one(size(16_000, 60_000), number),
        100..400 => one(size(1_000, 16_000), number),
        _ => one(size(0, 1_000), number),
    }
}

/// The sums of a run.
#[derive(Default)]
struct Done {
    next: AtomicU64,
    calls: AtomicU64,
    bytes: AtomicU64,
    timed_out: AtomicU64,
}

impl Done {
    fn note(&self, bytes: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Asks on one connection until `call` has no more to ask. A time-out is counted and no more: a machine may stand still
/// for longer than slotfront's deadline.
async fn ask(
    target: Target,
    done: Arc<Done>,
    reconnect: u64,
    call: impl Fn(&Done) -> Option<String>,
) -> Result<(), Fault> {
    let (mut connection, mut asked) = (Connection::open(&target).await?, 0);
    while let Some(body) = call(&done) {
        if asked == reconnect {
            (connection, asked) = (Connection::open(&target).await?, 0);
        }
        asked += 1;
        let answer = connection.post(&body).await?;
        if answer.status == 504 {
            done.timed_out.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if answer.status != 200 || !answer.body.starts_with(br#"{"jsonrpc":"2.0","result""#) {
            let text = String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]).into_owned();
            return Err(format!("{} to {body}: {text}", answer.status).into());
        }
        done.note(answer.body.len());
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Fault> {
    let options = Options::parse();
    let (done, begun) = (Arc::new(Done::default()), Instant::now());
    if let What::Churn { first, .. } = options.what {
        done.next.store(first, Ordering::Relaxed);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..options.connections {
        let (target, done) = (options.target.clone(), Arc::clone(&done));
        match options.what {
            What::Fill { entries, size, list: 1 } => tasks.spawn(ask(target, done, u64::MAX, move |done| {
                let number = done.next.fetch_add(1, Ordering::Relaxed);
                (number < entries).then(|| one(size, number))
            })),
            What::Fill { entries, size, list: length } => {
                tasks.spawn(ask(target, done, u64::MAX, move |done| {
                    let from = done.next.fetch_add(length, Ordering::Relaxed);
                    let numbers = from..entries.min(from + length);
                    (from < entries).then(|| list(numbers.map(|number| (size, number))))
                }))
            }
            What::Churn { bytes, seconds, seed, reconnect, .. } => {
                let until = seconds.map(|seconds| begun + Duration::from_secs(seconds));
                tasks.spawn(ask(target, done, reconnect, move |done| {
                    let over = until.is_some_and(|until| Instant::now() >= until);
                    if over || done.bytes.load(Ordering::Relaxed) >= bytes {
                        return None;
                    }
                    let number = done.next.fetch_add(1, Ordering::Relaxed);
                    let mut dice = Dice::new(seed ^ 1, number);
                    let again = dice.below(100) < AGAIN;
                    let back = if again { dice.below(BACK) } else { 0 };
                    Some(churned(seed, number.saturating_sub(back)))
                }))
            }
        };
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    println!("calls {}", done.calls.load(Ordering::Relaxed));
    println!("bytes {}", done.bytes.load(Ordering::Relaxed));
    println!("timed_out {}", done.timed_out.load(Ordering::Relaxed));
    println!("next {}", done.next.load(Ordering::Relaxed));
    println!("seconds {:.1}", begun.elapsed().as_secs_f64());
    Ok(())
}
