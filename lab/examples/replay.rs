//! Replays a seeded mix of calls through a gateway in front of a simulated cluster, in real time.
//!
//! Each request is sent at its planned time, even while earlier requests are open. Its latency runs from the
//! planned time to the last byte of the answer, so it includes the wait for a connection.
//!
//! Each line of the output is one request: its method, its commitment, the source of the answer, its latency in
//! microseconds and its lag in slots. The lag is the number of slots by which the answer was behind the cluster when it
//! arrived, at the request's commitment. A field without a value is `-`. Lines that begin with `#` describe the run.

#![expect(clippy::print_stdout, reason = "the caller reads the output")]

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use serde_json::Value;
use slotfront_lab::mix::{Mix, PlannedRequest};
use slotfront_lab::wire::{BoxError, Connection, Connections, HttpResponse, Target};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// The interval between two reads of the cluster's newest slots.
const LOOK: Duration = Duration::from_millis(20);
/// The maximum delay of a request. A longer delay means that the machine and the cluster have stalled. All later
/// requests are then postponed.
const LATE: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Options {
    /// The URL of the gateway: `http://host:port/v3/KEY`
    target: Target,
    /// The URL of the node from which the newest slots are read
    #[arg(long)]
    node: Target,
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The average number of requests per second
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    #[arg(long, default_value_t = 256)]
    connections: usize,
    /// Takes the published shares of more methods instead of the eight methods
    #[arg(long)]
    published: bool,
    /// Prints the requests without sending them
    #[arg(long)]
    print: bool,
}

/// The cluster's newest slots, by commitment.
#[derive(Default)]
struct Newest([AtomicU64; 3]);

const COMMITMENTS: [&str; 3] = ["processed", "confirmed", "finalized"];

impl Newest {
    /// Reads the newest slots of the node at intervals of [`LOOK`].
    async fn watch(&self, node: Target) -> Result<(), BoxError> {
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

/// Returns the source of an answer as one word, for example `hit` or `miss`. The word depends on the HTTP status
/// and the `Cache-Status` header.
fn outcome(answer: &HttpResponse, method: &str) -> &'static str {
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
    connections: Connections,
    newest: Newest,
    lines: mpsc::UnboundedSender<String>,
}

impl Run {
    async fn send(&self, request: PlannedRequest) {
        let due = Instant::now();
        let result = self.connections.post(&request.body).await;
        let micros = due.elapsed().as_micros();
        let (method, commitment) = (request.method, request.commitment);
        let line = match result {
            Ok(answer) => {
                let outcome = outcome(&answer, method);
                let behind = self
                    .behind(method, &answer, commitment)
                    .map_or("-".to_owned(), |slots| slots.to_string());
                format!("{method} {commitment} {outcome} {micros} {behind}")
            }
            Err(_) => format!("{method} {commitment} failed {micros} -"),
        };
        // The send fails only if the writer has stopped, and `main` reports that.
        let _ = self.lines.send(line);
    }

    /// Returns the number of slots by which an answer is behind the cluster's newest slot at `commitment`: its context
    /// slot, or the answer to getSlot itself.
    fn behind(&self, method: &str, answer: &HttpResponse, commitment: &str) -> Option<u64> {
        let newest = self.newest.at(commitment)?;
        // The context is at the beginning. The rest of the body may be long.
        let text = std::str::from_utf8(&answer.body[..answer.body.len().min(200)]).ok()?;
        let (_, rest) = match method {
            "getSlot" => text.split_once(r#""result":"#)?,
            _ => text.split_once(r#""context":{"#)?.1.split_once(r#""slot":"#)?,
        };
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        Some(newest.saturating_sub(rest[..digits].parse().ok()?))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let mix = Mix::new(options.seed, options.rate, options.nodes, options.published);
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
        connections: Connections::new(options.target, options.connections),
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
            // Lets the tasks of earlier requests read their answers, even if the next request is already due.
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
    // The writer ends once all owners have dropped `run`, which holds the sender. The watch task is one of the owners.
    let _ = watch.await;
    drop(run);
    writer.await??;
    println!("# put off {:.1}", put_off.as_secs_f64());
    Ok(())
}
