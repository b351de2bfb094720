//! The table of the gateways' counts, in Markdown.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use slotfront_lab::reads::WriteRate;
use slotfront_rpc::methods::{Commitment, Method};

use crate::lane::{Lane, Tally};
use crate::upstream::UpstreamCalls;

/// The numbers of fetches that ideal caches would make. The key says which reads are counted: true for lists and
/// false for single accounts, then the commitment, then how often the accounts are written.
pub(crate) type IdealFetches = HashMap<(bool, Commitment, WriteRate), u64>;

/// The counts of one gateway, beside those of the ideal caches.
pub(crate) struct Measured {
    follows: bool,
    is_list: bool,
    tally: Tally,
    upstream: UpstreamCalls,
    ideal: IdealFetches,
    took: Duration,
}

const HITS: [&str; 4] = ["carried", "hit", "derived", "stale"];
/// The methods that a gateway in these runs calls only to follow the chain.
const FOLLOWING: [&str; 3] = ["getBlocks", "getBlock", "getEpochSchedule"];

impl Measured {
    /// Takes the counts out of `lane`, and so resets them to zero. `took` is the duration of the run.
    pub(crate) fn new(lane: &Lane, ideal: &IdealFetches, took: Duration) -> Self {
        let (mut tally, upstream) = lane.take();
        tally.micros.sort_unstable();
        Self { follows: lane.follows, is_list: lane.is_list, tally, upstream, ideal: ideal.clone(), took }
    }

    fn reads(&self) -> u64 {
        self.tally.micros.len() as u64
    }

    fn fetches(&self) -> u64 {
        self.upstream.sum(|_| true)
    }

    fn follower_calls(&self) -> u64 {
        FOLLOWING.iter().map(|method| self.upstream.other(method)).sum()
    }

    /// Returns the number of correct answers from these sources.
    fn answers_from(&self, sources: &[&str]) -> u64 {
        let of_source = self.tally.behind.iter().filter(|((_, source), _)| sources.contains(source));
        of_source.map(|(_, behind)| behind.len() as u64).sum()
    }

    /// Returns the number of the ideal cache's fetches. Only fetches for which `choose` returns true are counted.
    fn ideal(&self, choose: impl Fn(Commitment, WriteRate) -> bool) -> u64 {
        let chosen = |(is_list, commitment, rate): &(bool, Commitment, WriteRate)| {
            *is_list == self.is_list && choose(*commitment, *rate)
        };
        self.ideal.iter().filter(|(kind, _)| chosen(kind)).map(|(_, number)| number).sum()
    }

    /// Returns three numbers as text: the gateway's fetches, the ideal cache's fetches, and the ratio of the two.
    /// Only fetches for which `choose` returns true are counted.
    fn ratio(&self, choose: impl Fn(Commitment, WriteRate) -> bool) -> String {
        let fetches = self.upstream.sum(|(_, commitment, rate)| choose(*commitment, *rate));
        let ideal = self.ideal(choose);
        format!("{fetches} : {ideal} = {:.2}", fraction(fetches, ideal))
    }

    /// Returns the median and the p99 of the number of slots by which answers are behind the cluster. Only correct
    /// answers for which `choose` returns true are counted.
    fn behind(&self, choose: impl Fn(Commitment, &str) -> bool) -> String {
        let chosen = self.tally.behind.iter().filter(|((commitment, source), _)| choose(*commitment, source));
        let mut slots: Vec<_> = chosen.flat_map(|(_, behind)| behind).copied().collect();
        slots.sort_unstable();
        if slots.is_empty() {
            return "–".to_owned();
        }
        format!("{} / {}", percentile(&slots, 50), percentile(&slots, 99))
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn fraction(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * fraction(part, whole))
}

fn percentile(sorted: &[u64], part: usize) -> u64 {
    sorted.get(sorted.len() * part / 100).copied().unwrap_or(0)
}

pub(crate) fn markdown(gateways: &[Measured]) -> String {
    let mut text = String::new();
    let mut row = |name: &str, column: &dyn Fn(&Measured) -> String| {
        let columns: Vec<_> = gateways.iter().map(column).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {name} | {} |", columns.join(" | "));
    };
    row("", &|of| {
        let kind = if of.is_list { "lists" } else { "single accounts" };
        format!("{kind}, `\"{}\"`", if of.follows { "on" } else { "off" })
    });
    row("---", &|_| "---:".to_owned());
    row("reads", &|of| of.reads().to_string());
    for method in [Method::GetAccountInfo, Method::GetMultipleAccounts] {
        let name = format!("upstream calls of {}", method.as_str());
        row(&name, &|of| of.upstream.sum(|(of_fetch, ..)| *of_fetch == method).to_string());
    }
    for method in FOLLOWING {
        row(&format!("upstream calls of {method}, by the follower"), &|of| {
            of.upstream.other(method).to_string()
        });
    }
    row("calls of the follower, per second", &|of| {
        let seconds = of.took.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let calls = of.follower_calls() as f64;
        format!("{:.1}", calls / seconds)
    });
    row("**calls saved**, the follower's counted", &|of| {
        let sent = of.fetches() + of.follower_calls();
        format!("**{:.1} %**", 100.0 * (1.0 - fraction(sent, of.reads())))
    });
    row("answers from the cache", &|of| percent(of.answers_from(&HITS), of.reads()));
    row("of them carried", &|of| percent(of.answers_from(&["carried"]), of.answers_from(&HITS)));
    row("**fetches : ideal cache**", &|of| format!("**{}**", of.ratio(|_, _| true)));
    for (name, rate) in [
        ("accounts that are never written", WriteRate::Never),
        ("written every half minute", WriteRate::HalfMinute),
        ("written every slot", WriteRate::EverySlot),
    ] {
        for commitment in [Commitment::Confirmed, Commitment::Finalized] {
            let name = format!("{name}, at {}", commitment.as_str());
            row(&name, &|of| of.ratio(|at, of_fetch| at == commitment && of_fetch == rate));
        }
    }
    row("slots behind the cluster at confirmed, median / p99", &|of| {
        of.behind(|at, _| at == Commitment::Confirmed)
    });
    row("of carried answers", &|of| {
        of.behind(|at, source| at == Commitment::Confirmed && source == "carried")
    });
    row("of fetched answers", &|of| {
        of.behind(|at, source| at == Commitment::Confirmed && source == "fetched")
    });
    row("at finalized, median / p99", &|of| of.behind(|at, _| at == Commitment::Finalized));
    row("latency, p50 / p99", &|of| {
        let milliseconds = |part| {
            #[expect(clippy::cast_precision_loss, reason = "times are short")]
            let micros = percentile(&of.tally.micros, part) as f64;
            micros / 1_000.0
        };
        format!("{:.2} / {:.2} ms", milliseconds(50), milliseconds(99))
    });
    row("wrong answers", &|of| of.tally.wrong.to_string());
    row("failed calls", &|of| of.tally.failed.to_string());
    for of in gateways {
        if let Some(remark) = &of.tally.remark {
            let _ = writeln!(text, "\nThe first wrong or failed answer of a gateway: {remark}");
        }
    }
    text
}
