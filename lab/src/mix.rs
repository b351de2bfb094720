//! The calls of a replay: drawn by a seed, their subjects by Zipf's law, their shares as `Mix` says.
//!
//! A twin of the simulated chain runs along with the calls' planned time, so that blocks and blockhashes are those of the
//! moment, and the calls still depend on nothing but the seed.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use slotfront_rpc::methods::{Commitment, Pubkey};
use slotfront_sim::{Cluster, SLOT_TIME, Settings};

use crate::dice::Dice;

/// Shares in a hundred calls.
const METHODS: [(&str, u64); 8] = [
    ("getAccountInfo", 46),
    ("getTokenAccountBalance", 16),
    ("getMultipleAccounts", 10),
    ("getFeeForMessage", 8),
    ("getRecentPerformanceSamples", 7),
    ("getBlock", 5),
    ("getVoteAccounts", 5),
    ("getClusterNodes", 3),
];
/// A finalized one is named in half of its calls, and left out in the others.
const COMMITMENTS: [(&str, u64); 3] = [("processed", 10), ("confirmed", 50), ("finalized", 40)];
const ENCODINGS: [(&str, u64); 4] = [("base64", 60), ("jsonParsed", 28), ("base64+zstd", 8), ("base58", 4)];
const DETAILS: [(&str, u64); 3] = [("full", 60), ("signatures", 25), ("none", 15)];
/// The number of batches among a hundred requests. A batch has 2 to 8 calls.
const BATCHES: u64 = 5;
/// The number of calls with a dataSlice among a hundred account calls, and with a minContextSlot among those that may have one.
const SLICES: u64 = 10;
const MINIMA: u64 = 3;
/// Addresses that are asked for. Those that exist in the simulation, some 150, are the most popular ones.
const ADDRESSES: usize = 10_000;
/// Different lists of addresses, of 2 to 50 each.
const LISTS: u64 = 200;
/// How many slots back blocks and messages are asked for.
const BACK: usize = 64;

/// A request: one call, or a batch.
pub struct Request {
    /// When it is to be sent, from the beginning.
    pub at: Duration,
    /// Its method, or `batch`.
    pub method: &'static str,
    /// Its commitment; `-` where it has none, or several.
    pub commitment: &'static str,
    /// The text that is posted.
    pub body: String,
}

/// Popularity: rank r is asked for in proportion to 1/r.
struct Zipf(Vec<f64>);

impl Zipf {
    #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
    fn new(ranks: usize) -> Self {
        let sums = (1..=ranks).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        Self(sums.collect())
    }

    /// A rank, from 0.
    fn draw(&self, dice: &mut Dice) -> usize {
        let total = self.0.last().copied().unwrap_or(0.0);
        let drawn = dice.part() * total;
        self.0.partition_point(|sum| *sum <= drawn).min(self.0.len() - 1)
    }
}

/// One of the choices, by their shares.
fn choose(dice: &mut Dice, choices: &[(&'static str, u64)]) -> &'static str {
    let mut drawn = dice.below(choices.iter().map(|(_, share)| share).sum());
    for (choice, share) in choices {
        if drawn < *share {
            return choice;
        }
        drawn -= share;
    }
    choices[0].0
}

/// The calls, in order.
pub struct Mix {
    seed: u64,
    rate: f64,
    number: u64,
    at: Duration,
    twin: Arc<Cluster>,
    /// The slots that have passed on the twin since the beginning.
    steps: u32,
    addresses: Vec<String>,
    tokens: Vec<String>,
    votes: Vec<String>,
    popular: Zipf,
    popular_token: Zipf,
    popular_list: Zipf,
    recent: Zipf,
    /// The newest first.
    messages: VecDeque<String>,
}

impl Mix {
    /// The calls of `seed`, on average `rate` in a second, about a cluster of the usual settings and that many nodes.
    pub fn new(seed: u64, rate: f64, nodes: usize) -> Self {
        let twin = Cluster::new(Settings { seed, nodes, slot_time: None, ..Settings::default() });
        let examples = twin.examples();
        let text = |keys: &[Pubkey]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        let tokens = text(&[&examples.token_accounts[..], &examples.token_account_of_mint].concat());
        let votes = text(&examples.vote_accounts);
        let mut addresses = tokens.clone();
        addresses.extend(text(&examples.wallets));
        addresses.extend(text(&examples.mints));
        addresses.extend(text(&[&examples.stake_accounts[..], &examples.lookup_tables].concat()));
        addresses.extend(text(&examples.passing_accounts));
        addresses.extend(votes.clone());
        // Which of those that exist is how popular is decided by the seed, too.
        for at in (1..addresses.len()).rev() {
            let other = Dice::new(seed ^ 2, at as u64).below(at as u64 + 1);
            addresses.swap(at, usize::try_from(other).unwrap_or(0));
        }
        let existing = addresses.len();
        addresses.extend((existing..ADDRESSES).map(|number| absent(seed, number as u64)));
        let mut mix = Self {
            seed,
            rate,
            number: 0,
            at: Duration::ZERO,
            twin,
            steps: 0,
            popular: Zipf::new(addresses.len()),
            popular_token: Zipf::new(tokens.len()),
            popular_list: Zipf::new(usize::try_from(LISTS).unwrap_or(1)),
            recent: Zipf::new(BACK),
            addresses,
            tokens,
            votes,
            messages: VecDeque::new(),
        };
        mix.note_messages();
        mix
    }

    /// The mix in words.
    pub fn describe(&self) -> String {
        let shares = |choices: &[(&str, u64)]| {
            choices.iter().map(|(name, share)| format!("{name} {share}")).collect::<Vec<_>>().join(", ")
        };
        format!(
            "of 100 calls: {}; commitments: {}; encodings of accounts: {}; blocks: {}; {BATCHES} of 100 requests are \
             batches of 2 to 8; {SLICES} of 100 account calls take a slice, {MINIMA} of 100 that may name a minContextSlot; \
             {} addresses, {} token accounts, {LISTS} lists of 2 to 50, the newest {BACK} slots' blocks and messages, all \
             by Zipf's law with exponent 1",
            shares(&METHODS),
            shares(&COMMITMENTS),
            shares(&ENCODINGS),
            shares(&DETAILS),
            self.addresses.len(),
            self.tokens.len(),
        )
    }

    fn note_messages(&mut self) {
        let examples = self.twin.examples();
        for message in [examples.fee_message_v0, examples.fee_message] {
            if !self.messages.contains(&message) {
                self.messages.push_front(message);
            }
        }
        self.messages.truncate(BACK);
    }

    fn next_request(&mut self) -> Request {
        let mut dice = Dice::new(self.seed, self.number);
        self.number += 1;
        // Calls come by themselves: the time between two of them is distributed exponentially.
        self.at += Duration::from_secs_f64(-(1.0 - dice.part()).ln() / self.rate);
        let slots = u32::try_from(self.at.as_millis() / SLOT_TIME.as_millis()).unwrap_or(u32::MAX);
        while self.steps < slots {
            self.twin.step();
            self.steps += 1;
            self.note_messages();
        }
        let at = self.at;
        if dice.below(100) < BATCHES {
            let count = dice.range(2, 8);
            let calls: Vec<String> = (0..count).map(|id| self.call(&mut dice, id).2).collect();
            return Request { at, method: "batch", commitment: "-", body: format!("[{}]", calls.join(",")) };
        }
        let (method, commitment, body) = self.call(&mut dice, 1);
        Request { at, method, commitment, body }
    }

    /// One call: its method, its commitment, its text.
    fn call(&self, dice: &mut Dice, id: u64) -> (&'static str, &'static str, String) {
        let method = choose(dice, &METHODS);
        let mut commitment = choose(dice, &COMMITMENTS);
        if method == "getBlock" && commitment == "processed" {
            commitment = "confirmed";
        }
        let mut config: Vec<String> = Vec::new();
        if commitment != "finalized" || dice.below(2) == 0 {
            config.push(format!(r#""commitment":"{commitment}""#));
        }
        let mut first = String::new();
        match method {
            "getAccountInfo" => {
                let _ = write!(first, "\"{}\"", self.addresses[self.popular.draw(dice)]);
                self.form(dice, commitment, &mut config);
            }
            "getMultipleAccounts" => {
                let list = self.list(self.popular_list.draw(dice));
                let _ = write!(first, "[\"{}\"]", list.join("\",\""));
                self.form(dice, commitment, &mut config);
            }
            "getTokenAccountBalance" => {
                let _ = write!(first, "\"{}\"", self.tokens[self.popular_token.draw(dice)]);
            }
            "getFeeForMessage" => {
                let message = &self.messages[self.recent.draw(dice).min(self.messages.len() - 1)];
                let _ = write!(first, "\"{message}\"");
            }
            "getBlock" => {
                let newest =
                    self.twin.slot(Commitment::from_name(commitment).unwrap_or(Commitment::Finalized));
                let _ = write!(first, "{}", newest - self.recent.draw(dice) as u64);
                let details = choose(dice, &DETAILS);
                config
                    .push(format!(r#""transactionDetails":"{details}","maxSupportedTransactionVersion":0"#));
                if dice.below(2) == 0 {
                    config.push(r#""rewards":false"#.to_owned());
                }
            }
            "getVoteAccounts" => {
                if dice.below(3) == 0 {
                    let at = usize::try_from(dice.below(self.votes.len() as u64)).unwrap_or(0);
                    config.push(format!(r#""votePubkey":"{}""#, self.votes[at]));
                }
            }
            "getRecentPerformanceSamples" => {
                let params = format!("[{}]", [1, 4, 60, 720][usize::try_from(dice.below(4)).unwrap_or(0)]);
                return (method, "-", envelope(id, method, &params));
            }
            _ => return (method, "-", envelope(id, method, "[]")),
        }
        let config = if config.is_empty() { String::new() } else { format!("{{{}}}", config.join(",")) };
        let params: Vec<String> = [first, config].into_iter().filter(|param| !param.is_empty()).collect();
        (method, commitment, envelope(id, method, &format!("[{}]", params.join(","))))
    }

    /// The form of accounts.
    fn form(&self, dice: &mut Dice, commitment: &str, config: &mut Vec<String>) {
        let encoding = choose(dice, &ENCODINGS);
        config.push(format!(r#""encoding":"{encoding}""#));
        if encoding != "jsonParsed" && dice.below(100) < SLICES {
            config.push(r#""dataSlice":{"offset":0,"length":32}"#.to_owned());
        }
        if dice.below(100) < MINIMA {
            let slot = self.twin.slot(Commitment::from_name(commitment).unwrap_or(Commitment::Finalized));
            config.push(format!(r#""minContextSlot":{slot}"#));
        }
    }

    /// A list's addresses, which are always the same.
    fn list(&self, number: usize) -> Vec<&str> {
        let mut dice = Dice::new(self.seed ^ 3, number as u64);
        let count = dice.range(2, 50);
        (0..count).map(|_| &*self.addresses[self.popular.draw(&mut dice)]).collect()
    }
}

impl Iterator for Mix {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        Some(self.next_request())
    }
}

/// An address of which no node knows anything.
fn absent(seed: u64, number: u64) -> String {
    let mut dice = Dice::new(!seed, number);
    let mut bytes = [0; 32];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&dice.bits().to_le_bytes()));
    Pubkey(bytes).to_string()
}

fn envelope(id: u64, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}
