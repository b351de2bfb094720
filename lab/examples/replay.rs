//! Replays a seeded mix of calls through a gateway in front of a simulated cluster, in real time.
//!
//! Requests are sent when they are due, however long others take; a request's time counts from then to its last byte, so
//! waiting for a connection counts, too. Each line of the output is one request: its method, its commitment, where the
//! answer came from, microseconds, and how many slots it was behind the cluster's newest at its commitment as known when
//! it arrived; `-` where there is nothing to say. Lines that begin with `#` describe the run.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Parser;
use serde_json::Value;
use slotfront_lab::mix::{Mix, Request};
use slotfront_lab::wire::{Answer, Connection, Fault, Target};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Between two looks at the cluster's newest slots.
const LOOK: Duration = Duration::from_millis(20);
/// Behind its plan by more than this, the plan is put off: the machine stood still, and the cluster did so, too.
const LATE: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Options {
    /// The URL to ask: `http://host:port/v3/KEY`
    target: Target,
    /// A node of the cluster, to know its newest slots by
    #[arg(long)]
    node: Target,
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests a second
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Only prints the requests
    #[arg(long)]
    print: bool,
}

/// The cluster's newest slots, by commitment.
#[derive(Default)]
struct Newest([AtomicU64; 3]);

const COMMITMENTS: [&str; 3] = ["processed", "confirmed", "finalized"];

impl Newest {
    /// Asks the node again and again.
    async fn watch(&self, node: Target) -> Result<(), Fault> {
        let mut connection = Connection::open(&node).await?;
        let calls = COMMITMENTS.map(|commitment| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"getSlot","params":[{{"commitment":"{commitment}"}}]}}"#
            )
        });
        let body = format!("[{}]", calls.join(","));
        loop {
            let answers: Vec<Value> = serde_json::from_slice(&connection.post(&body).await?.body)?;
            for (newest, answer) in self.0.iter().zip(&answers) {
                newest
                    .fetch_max(answer["result"].as_u64().ok_or("a node without a slot")?, Ordering::Relaxed);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn at(&self, commitment: &str) -> Option<u64> {
        let at = COMMITMENTS.iter().position(|name| *name == commitment)?;
        Some(self.0[at].load(Ordering::Relaxed))
    }
}

/// Returns the source of an answer, by its status and its headers.
fn outcome(answer: &Answer, method: &str) -> &'static str {
    let status = answer.cache_status.strip_prefix("slotfront; ").unwrap_or("");
    let has = |word: &str| status.contains(word);
    match (answer.status, method) {
        (429, _) => "limited",
        (status, _) if status != 200 => "error",
        (_, "batch") if status == "hit" => "batch:hit",
        (_, "batch") => "batch:asked",
        _ if has("detail=stale-if-error") => "stale-if-error",
        _ if has("ttl=-") || has("detail=stale") => "stale",
        _ if has("detail=derived") => "derived",
        _ if status.starts_with("hit") => "hit",
        _ if has("collapsed") => "collapsed",
        _ if has("fwd=stale") => "expired",
        _ if has("fwd=") => "miss",
        _ => "refused",
    }
}

/// The state that all requests share.
struct Run {
    target: Target,
    idle: Mutex<Vec<Connection>>,
    places: Semaphore,
    newest: Newest,
    lines: mpsc::UnboundedSender<String>,
}

impl Run {
    async fn send(&self, request: Request) {
        let due = Instant::now();
        let asked = self.asked(&request).await;
        let micros = due.elapsed().as_micros();
        let (method, commitment) = (request.method, request.commitment);
        let line = match asked {
            Ok(answer) => {
                let outcome = outcome(&answer, method);
                let behind =
                    self.behind(&answer, commitment).map_or("-".to_owned(), |slots| slots.to_string());
                format!("{method} {commitment} {outcome} {micros} {behind}")
            }
            Err(_) => format!("{method} {commitment} failed {micros} -"),
        };
        // Whoever read them has ended with the run.
        let _ = self.lines.send(line);
    }

    async fn asked(&self, request: &Request) -> Result<Answer, Fault> {
        let _place = self.places.acquire().await?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(&self.target).await?,
        };
        let answer = connection.post(&request.body).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(answer)
    }

    /// Slots that an answer's context is behind the cluster.
    fn behind(&self, answer: &Answer, commitment: &str) -> Option<u64> {
        let newest = self.newest.at(commitment)?;
        // The context comes first, and an account's data may be long.
        let text = std::str::from_utf8(&answer.body[..answer.body.len().min(200)]).ok()?;
        let (_, rest) = text.split_once(r#""context":{"#)?;
        let (_, rest) = rest.split_once(r#""slot":"#)?;
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        Some(newest.saturating_sub(rest[..digits].parse().ok()?))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Fault> {
    let options = Options::parse();
    let mix = Mix::new(options.seed, options.rate, options.nodes);
    println!("# {}", mix.describe());
    let length = Duration::from_secs(options.seconds);
    let plan = mix.take_while(|request| request.at < length);
    let mut out = std::io::BufWriter::new(std::io::stdout());
    if options.print {
        for request in plan {
            writeln!(out, "{} {}", request.at.as_micros(), request.body)?;
        }
        return Ok(out.flush()?);
    }
    let (lines, mut written) = mpsc::unbounded_channel();
    let run = Arc::new(Run {
        target: options.target,
        idle: Mutex::default(),
        places: Semaphore::new(options.connections),
        newest: Newest::default(),
        lines,
    });
    let watching = Arc::clone(&run);
    let tasks = TaskTracker::new();
    let mut watch = tasks.spawn(async move { watching.newest.watch(options.node).await });
    let writer = tasks.spawn(async move {
        while let Some(line) = written.recv().await {
            writeln!(out, "{line}")?;
        }
        out.flush()
    });
    let (mut begun, mut put_off) = (Instant::now(), Duration::ZERO);
    let mut sent = tokio::task::JoinSet::new();
    for request in plan {
        let due = begun + request.at;
        let late = due.elapsed();
        if late > LATE {
            put_off += late;
            begun += late;
        }
        if late.is_zero() {
            tokio::time::sleep_until(due).await;
        } else {
            // Answers are read between two requests, even when both are due.
            tokio::task::yield_now().await;
        }
        let run = Arc::clone(&run);
        sent.spawn(async move { run.send(request).await });
        while sent.try_join_next().is_some() {}
        if watch.is_finished() {
            return (&mut watch).await?;
        }
    }
    while sent.join_next().await.is_some() {}
    watch.abort();
    // The watch has the other hold of the run, and with it of the lines.
    let _ = watch.await;
    drop(run);
    writer.await??;
    println!("# put off {:.1}", put_off.as_secs_f64());
    Ok(())
}
