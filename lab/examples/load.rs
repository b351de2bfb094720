//! A load for a cache. The command `fill` requests a number of accounts once. The command `churn` requests answers
//! of all sizes.
//!
//! The node behind the gateway must be `node` of the example `yardsticks`. The address of each requested account
//! encodes the length of its data. Equal seeds give equal calls, but their order may differ between connections. The
//! results go to the standard output as lines `name value`.

#![expect(clippy::print_stdout, reason = "the caller reads the output")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use slotfront_lab::dice::Dice;
use slotfront_lab::sized;
use slotfront_lab::wire::{BoxError, Connection, Target};
use tokio::time::Instant;

/// The bytes of data of an account that the command `fill` requests.
const SMALL: usize = 3;
/// The number of calls in a hundred calls of `churn` that repeat an earlier call.
const AGAIN: u64 = 20;
/// The number of the newest calls among which the call to repeat is chosen.
const BACK: u64 = 2_000;

#[derive(Parser)]
struct Options {
    /// The URL of the gateway: `http://host:port/v3/KEY`
    target: Target,
    #[arg(long, default_value_t = 8)]
    connections: u64,
    #[command(subcommand)]
    load: LoadKind,
}

#[derive(clap::Subcommand)]
enum LoadKind {
    /// Requests `--entries` accounts
    Fill {
        /// The number of accounts
        #[arg(long)]
        entries: u64,
    },
    /// Requests accounts and blocks of all sizes, until `--bytes` or `--seconds` is reached
    Churn {
        /// The number of bytes of answers after which the churn ends
        #[arg(long, default_value_t = u64::MAX)]
        bytes: u64,
        /// The number of seconds after which the churn ends
        #[arg(long)]
        seconds: Option<u64>,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The number of the first call; to continue an earlier churn, use the value `next` from its output
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// The number of calls after which a connection is replaced
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

/// Returns call number `number` of a churn. Most calls are for small accounts, some for lists or large accounts,
/// and few for blocks. Blocks make up about half of the bytes.
fn churn_call(seed: u64, number: u64) -> String {
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

/// The totals of a run.
#[derive(Default)]
struct Done {
    next: AtomicU64,
    calls: AtomicU64,
    bytes: AtomicU64,
    timed_out: AtomicU64,
}

impl Done {
    fn add(&self, bytes: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Sends calls on one connection until `call` returns `None`. A timeout is counted and is not an error, because a
/// busy machine may stall for longer than slotfront's deadline.
async fn ask(
    target: Target,
    done: Arc<Done>,
    reconnect: u64,
    call: impl Fn(&Done) -> Option<String>,
) -> Result<(), BoxError> {
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
        done.add(answer.body.len());
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let (done, begun) = (Arc::new(Done::default()), Instant::now());
    if let LoadKind::Churn { first, .. } = options.load {
        done.next.store(first, Ordering::Relaxed);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..options.connections {
        let (target, done) = (options.target.clone(), Arc::clone(&done));
        match options.load {
            LoadKind::Fill { entries } => tasks.spawn(ask(target, done, u64::MAX, move |done| {
                let number = done.next.fetch_add(1, Ordering::Relaxed);
                (number < entries).then(|| one(SMALL, number))
            })),
            LoadKind::Churn { bytes, seconds, seed, reconnect, .. } => {
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
                    Some(churn_call(seed, number.saturating_sub(back)))
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
