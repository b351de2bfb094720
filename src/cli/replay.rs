//! `slotfront replay`: sends recorded calls to slotfront and to a node, and compares the answers.

mod judge;
mod recorded;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;

use super::table::TextTable;
use super::{Failure, World};
use crate::app::{App, Listeners};
use crate::config::{Config, Secret, Upstream, defaults};
use crate::frontier::ASSUMED_SLOT_TIME;
use crate::gateway::Gateway;
use crate::http::shutdown::GracePeriods;
use crate::node::{BufferBudget, Client, Fault, NodeReply};
use crate::pool::probe;
use crate::telemetry::VerifyResult;
use judge::SideAnswer;
use recorded::Recorded;

/// The longest pause between two tries of the same call. A pause usually lasts one slot, so that slotfront and the
/// node may both have a newer answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The maximum number of differing or failed calls that are printed.
const MAX_PRINTED: usize = 10;

/// Send recorded calls to slotfront and to a node, and compare the answers
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Send recorded calls to slotfront and to a node, compare the answers, and print a table.\n\
                  A call whose answers differ is sent to both again a few times. Only contradictory answers are a mismatch.",
    after_help = "Examples:\n    \
                  slotfront replay --requests calls.jsonl --against http://10.0.0.1:8899\n    \
                  slotfront replay --requests calls.jsonl --against http://10.0.0.1:8899 \\\n        \
                  --through http://127.0.0.1:8080/v3/API_KEY\n\n\
                  A line of the file is one call: {\"method\":\"getAccountInfo\",\"params\":[\"...\"]}; jsonrpc and id are optional.\n\
                  Exit codes: 0 no mismatch and no failure, 1 otherwise, 2 wrong usage or an invalid file."
)]
pub(super) struct Args {
    /// The file of recorded calls, one JSON object a line; - is standard input
    #[arg(long, value_name = "FILE")]
    requests: PathBuf,
    /// The node to compare with
    #[arg(long, value_name = "URL", value_parser = url)]
    against: Secret,
    /// The URL of a running slotfront, with the API key [default: a temporary one with default settings in
    /// front of the node]
    #[arg(long, value_name = "URL", value_parser = url)]
    through: Option<Secret>,
    /// The maximum number of tries for a call whose answers differ
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// The maximum number of calls in flight
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
}

/// Parses a URL, which may contain an API key. The error does not quote the URL.
fn url(text: &str) -> Result<Secret, &'static str> {
    let url = Secret::new(text);
    match crate::config::url_fault(&url) {
        None => Ok(url),
        Some(_) => Err("expected a URL with http or https and a host"),
    }
}

pub(super) async fn run(args: Args, world: &mut World<'_>) -> Result<(), Failure> {
    let name = args.requests.display().to_string();
    let text = if name == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(&args.requests)
    };
    let text = text.map_err(|e| Failure::usage(format!("--requests {name}: {e}")))?;
    let calls = recorded::read(&text).map_err(|e| Failure::usage(format!("--requests {name}: {e}")))?;
    let own = match &args.through {
        Some(_) => None,
        None => Some(start(args.against.clone()).await?),
    };
    let through = args.through.clone().or_else(|| own.as_ref().map(|(_, url)| url.clone()));
    let sides = Sides::new(through.unwrap_or_else(|| args.against.clone()), args.against).await?;
    let asked = &sides;
    let outcomes: Vec<(&Recorded, Comparison)> = stream::iter(&calls)
        .map(|call| async move { (call, asked.ask(call, args.tries).await) })
        .buffered(usize::from(args.in_flight))
        .collect()
        .await;
    if let Some((app, _)) = own {
        app.stop().await;
    }
    writeln!(world.out, "{}", report(&outcomes))?;
    let differing: Vec<String> =
        outcomes.iter().filter_map(|(call, outcome)| describe_difference(call, outcome)).collect();
    if differing.is_empty() {
        return Ok(());
    }
    for line in differing.iter().take(MAX_PRINTED) {
        writeln!(world.out, "{line}")?;
    }
    Err(Failure::Runtime(format!("{} of {} calls differ or failed", differing.len(), outcomes.len())))
}

/// Starts a temporary gateway with default settings in front of `node`. Returns the gateway and its URL.
async fn start(node: Secret) -> Result<(App, Secret), Failure> {
    let any = ([127, 0, 0, 1], 0).into();
    let config = Config::dev(any, any, vec![Upstream::plain("node", node)]);
    let gateway = Gateway::new(&config).map_err(Failure::runtime)?;
    let listeners = Listeners::bind(&config).await.map_err(Failure::runtime)?;
    // The only client waits for its answers, so a shutdown needs no grace periods.
    let app =
        App::start_with(config, gateway, listeners, GracePeriods::default()).map_err(Failure::runtime)?;
    // Waits for the first probe of the node. Before it, the pool does not know the node's slots.
    let deadline = Instant::now() + Duration::from_secs(5);
    let known = || app.front().frontier.slot(crate::methods::Commitment::Finalized) > 0;
    while !known() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let url = Secret::new(format!("http://{}/v3/{}", app.public, defaults::DEV_KEY));
    Ok((app, url))
}

/// The result of comparing the answers to one call.
struct Comparison {
    /// The result of the comparison, slotfront's answer, and the node's answer. The error says which of the two gave
    /// no valid answer, and why.
    verdict: Result<(VerifyResult, SideAnswer, SideAnswer), String>,
    /// True if slotfront answered the first try of the call from its cache.
    hit: bool,
    /// The time that slotfront took for its first answer, and the time that the node took for its first
    /// answer.
    took: [Duration; 2],
}

struct Sides {
    slotfront: Client,
    node: Client,
    timeout: Duration,
    pause: Duration,
}

impl Sides {
    async fn new(slotfront: Secret, node: Secret) -> Result<Self, Failure> {
        let any = ([127, 0, 0, 1], 0).into();
        let config = Config::dev(any, any, Vec::new());
        let budget = Arc::new(BufferBudget::new(config.pool.max_buffered));
        let client = |name: &str, url| {
            Client::new(&Upstream::plain(name, url), &config.pool, Arc::clone(&budget))
                .map_err(Failure::usage)
        };
        let node = client("node", node)?;
        let slot_time = probe::slot_time(&node).await.ok().flatten().unwrap_or(ASSUMED_SLOT_TIME);
        Ok(Self {
            slotfront: client("slotfront", slotfront)?,
            node,
            timeout: config.server.request_timeout,
            pause: slot_time.min(LONGEST_PAUSE),
        })
    }

    /// Asks slotfront and the node until their answers agree or contradict each other, or until one of them fails.
    /// Asks at most `tries` times.
    async fn ask(&self, call: &Recorded, tries: u32) -> Comparison {
        let mut outcome = self.ask_once(call).await;
        for _ in 1..tries {
            if !matches!(outcome.verdict, Ok((VerifyResult::Moved, ..))) {
                break;
            }
            tokio::time::sleep(self.pause).await;
            let first = std::mem::replace(&mut outcome, self.ask_once(call).await);
            // The durations of the first try count, because later tries may hit the cache.
            (outcome.hit, outcome.took) = (first.hit, first.took);
        }
        outcome
    }

    async fn ask_once(&self, call: &Recorded) -> Comparison {
        let timed = async |client: &Client| {
            let sent = Instant::now();
            let answer = client.post_for_header(call.body(), self.timeout, "cache-status").await;
            (answer, sent.elapsed())
        };
        // slotfront and the node are asked one after the other. Otherwise, on a miss, slotfront's call to the
        // node would compete with this one.
        let (ours, our_time) = timed(&self.slotfront).await;
        let (theirs, their_time) = timed(&self.node).await;
        let hit = matches!(&ours, Ok((_, Some(status))) if status.starts_with("slotfront; hit"));
        let took = [our_time, their_time];
        let verdict = parse_answer("slotfront", ours).and_then(|ours| {
            let theirs = parse_answer("the node", theirs)?;
            Ok((judge::compare_answers(call.query.as_ref(), &ours, &theirs), ours, theirs))
        });
        Comparison { verdict, hit, took }
    }
}

/// Parses an answer of slotfront or of the node. `who` names which of the two.
///
/// # Errors
/// The answer is not valid. The text has `who` and the reason.
fn parse_answer(
    who: &str,
    answer: Result<(bytes::Bytes, Option<String>), Fault>,
) -> Result<SideAnswer, String> {
    let reply = answer.and_then(|(body, _)| NodeReply::parse(&body, recorded::ID));
    reply.map(SideAnswer::new).map_err(|fault| format!("{who}: {fault}"))
}

/// One row of the table of results: the counts and durations of one method's calls.
#[derive(Default)]
struct MethodRow {
    sent: usize,
    verdicts: [usize; 3],
    at_equal_slots: usize,
    failed: usize,
    hits: usize,
    took: [Vec<Duration>; 2],
}

impl MethodRow {
    fn add(&mut self, outcome: &Comparison) {
        self.sent += 1;
        self.hits += usize::from(outcome.hit);
        for (all, took) in self.took.iter_mut().zip(outcome.took) {
            all.push(took);
        }
        match &outcome.verdict {
            Ok((verdict, ours, theirs)) => {
                self.verdicts[*verdict as usize] += 1;
                self.at_equal_slots += usize::from(ours.slot.is_some() && ours.slot == theirs.slot);
            }
            Err(_) => self.failed += 1,
        }
    }

    fn cells(&self, name: &str) -> Vec<String> {
        let [equal, moved, mismatch] = self.verdicts;
        let median = |took: &[Duration]| {
            let mut took = took.to_vec();
            took.sort_unstable();
            took.get(took.len() / 2)
                .map_or("-".to_owned(), |p50| format!("{:.1} ms", p50.as_secs_f64() * 1000.0))
        };
        let counts = [self.sent, equal, self.at_equal_slots, moved, mismatch, self.failed, self.hits];
        let mut cells = vec![name.to_owned()];
        cells.extend(counts.map(|count| count.to_string()));
        cells.extend(self.took.iter().map(|took| median(took)));
        cells
    }
}

fn report(outcomes: &[(&Recorded, Comparison)]) -> String {
    let (mut rows, mut all) = (BTreeMap::<&str, MethodRow>::new(), MethodRow::default());
    for (call, outcome) in outcomes {
        rows.entry(&call.method).or_default().add(outcome);
        all.add(outcome);
    }
    let mut table = TextTable::new([
        "method",
        "calls",
        "equal",
        "equal slots",
        "moved",
        "mismatch",
        "failed",
        "hits",
        "slotfront p50",
        "node p50",
    ]);
    for (name, row) in &rows {
        table.row(row.cells(name));
    }
    table.row(all.cells("all"));
    table.to_string()
}

/// Describes a call whose answers contradict each other, or that slotfront or the node failed to answer. `None` for
/// other calls.
fn describe_difference(call: &Recorded, outcome: &Comparison) -> Option<String> {
    let slot = |answer: &SideAnswer| {
        answer.slot.map_or("names no slot".to_owned(), |slot| format!("is of slot {slot}"))
    };
    let what = match &outcome.verdict {
        Ok((VerifyResult::Mismatch, ours, theirs)) => {
            format!("mismatch: slotfront's answer {}, the node's answer {}", slot(ours), slot(theirs))
        }
        Ok(_) => return None,
        Err(why) => format!("no answer from {why}"),
    };
    Some(format!("line {}: {} {}: {what}", call.line, call.method, call.shown()))
}
