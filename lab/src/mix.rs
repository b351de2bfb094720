//! The calls of a replay. A seed determines the random choice of the calls. The popularity of accounts, blocks and
//! messages follows Zipf's law.
//!
//! A second instance of the simulated chain advances with the planned times of the calls, and not with the clock.
//! Calls therefore request recent blocks and messages, and still depend only on the seed.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use slotfront_rpc::methods::{Commitment, Pubkey};
use slotfront_sim::{Cluster, SLOT_TIME, Settings};

use crate::dice::Dice;
use crate::zipf::Zipf;

/// The methods of a mix, with their shares of a hundred calls.
type Shares = &'static [(&'static str, u64)];

const EIGHT: Shares = &[
    ("getAccountInfo", 46),
    ("getTokenAccountBalance", 16),
    ("getMultipleAccounts", 10),
    ("getFeeForMessage", 8),
    ("getRecentPerformanceSamples", 7),
    ("getBlock", 5),
    ("getVoteAccounts", 5),
    ("getClusterNodes", 3),
];
/// Half of the calls are of the eight methods, as in `EIGHT`. The others have shares within those that an EVM on
/// Solana has published of its calls: getSlot 18 to 20 %, getBlocks 7 to 26 %, getTransaction 6 to 10 %, getBlockTime 4 %.
const PUBLISHED: Shares = &[
    ("getAccountInfo", 23),
    ("getTokenAccountBalance", 8),
    ("getMultipleAccounts", 5),
    ("getFeeForMessage", 4),
    ("getRecentPerformanceSamples", 4),
    ("getBlock", 2),
    ("getVoteAccounts", 2),
    ("getClusterNodes", 2),
    ("getSlot", 19),
    ("getBlocks", 12),
    ("getTransaction", 8),
    ("getBlockTime", 4),
    ("getBalance", 7),
];
/// The commitments, with their shares of a hundred calls. Half of the calls at finalized name no commitment,
/// because finalized is the default.
const COMMITMENTS: [(&str, u64); 3] = [("processed", 10), ("confirmed", 50), ("finalized", 40)];
const ENCODINGS: [(&str, u64); 4] = [("base64", 60), ("jsonParsed", 28), ("base64+zstd", 8), ("base58", 4)];
const DETAILS: [(&str, u64); 3] = [("full", 60), ("signatures", 25), ("none", 15)];
/// The number of batches in a hundred requests. A batch has 2 to 8 calls.
const BATCHES: u64 = 5;
/// The number of calls with a dataSlice in a hundred calls for accounts or lists whose encoding is not jsonParsed.
const SLICES: u64 = 10;
/// The number of calls with a minContextSlot in a hundred calls for accounts or lists.
const MINIMA: u64 = 3;
/// The number of addresses. About 150 of them have an account in the simulation. These are the most popular.
const ADDRESSES: usize = 10_000;
/// The number of different lists of addresses. A list has 2 to 50 addresses.
const LISTS: u64 = 200;
const TRANSACTIONS: [(&str, u64); 3] = [("json", 60), ("jsonParsed", 25), ("base64", 15)];
/// The number of newest slots whose blocks are requested. Fees are requested for the same number of newest
/// messages, and transactions for that of newest signatures at the asked commitment.
const BACK: usize = 64;

pub struct PlannedRequest {
    /// The planned time, relative to the beginning of the replay.
    pub at: Duration,
    /// The method, or `batch`.
    pub method: &'static str,
    /// The commitment. `-` for a method without one, and for a batch.
    pub commitment: &'static str,
    pub body: String,
}

/// An iterator over the requests, in the order of their planned times.
pub struct Mix {
    methods: Shares,
    seed: u64,
    rate: f64,
    number: u64,
    at: Duration,
    twin: Arc<Cluster>,
    /// The number of slots by which `twin`, the second instance of the chain, has advanced since the beginning.
    steps: u32,
    addresses: Vec<String>,
    tokens: Vec<String>,
    votes: Vec<String>,
    popular: Zipf,
    popular_token: Zipf,
    popular_list: Zipf,
    recent: Zipf,
    /// The messages for getFeeForMessage, newest first.
    messages: VecDeque<String>,
    /// The signatures for getTransaction with their slots, newest first.
    signatures: VecDeque<(u64, String)>,
    /// The newest confirmed slot whose block has been read.
    read_slot: u64,
}

impl Mix {
    /// Returns the requests for `seed`, on average `rate` per second, to a cluster with default settings and `nodes`
    /// nodes. They are of the eight methods, or have the `published` shares of more methods.
    pub fn new(seed: u64, rate: f64, nodes: usize, published: bool) -> Self {
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
        // Shuffles the existing addresses, so that the seed also determines their popularity.
        for at in (1..addresses.len()).rev() {
            let other = Dice::new(seed ^ 2, at as u64).below(at as u64 + 1);
            addresses.swap(at, usize::try_from(other).unwrap_or(0));
        }
        let existing = addresses.len();
        addresses.extend((existing..ADDRESSES).map(|number| absent(seed, number as u64)));
        let mut mix = Self {
            methods: if published { PUBLISHED } else { EIGHT },
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
            signatures: VecDeque::new(),
            read_slot: 0,
        };
        // There are signatures of final blocks from the beginning.
        mix.read_slot = mix.twin.slot(Commitment::Finalized).saturating_sub(BACK as u64);
        mix.note_block();
        mix
    }

    pub fn describe(&self) -> String {
        let shares = |choices: &[(&str, u64)]| {
            choices.iter().map(|(name, share)| format!("{name} {share}")).collect::<Vec<_>>().join(", ")
        };
        format!(
            "of 100 calls: {}; commitments: {}; encodings of accounts: {}; blocks: {}; {BATCHES} of 100 requests are \
             batches of 2 to 8; {SLICES} of 100 account calls take a slice, {MINIMA} of 100 that may name a minContextSlot; \
             {} addresses, {} token accounts, {LISTS} lists of 2 to 50, the blocks of the newest {BACK} slots and the newest {BACK} messages, all \
             by Zipf's law with exponent 1",
            shares(self.methods),
            shares(&COMMITMENTS),
            shares(&ENCODINGS),
            shares(&DETAILS),
            self.addresses.len(),
            self.tokens.len(),
        )
    }

    /// Notes the newest messages, and the signatures of the confirmed blocks that have not been read.
    fn note_block(&mut self) {
        let examples = self.twin.examples();
        for message in [examples.fee_message_v0, examples.fee_message] {
            if !self.messages.contains(&message) {
                self.messages.push_front(message);
            }
        }
        self.messages.truncate(BACK);
        let newest = self.twin.slot(Commitment::Confirmed);
        for slot in self.read_slot + 1..=newest {
            let config = r#"{"commitment":"confirmed","transactionDetails":"signatures","rewards":false,"maxSupportedTransactionVersion":0}"#;
            let call = envelope(1, "getBlock", &format!("[{slot},{config}]"));
            let block = String::from_utf8(self.twin.node(0).answer(call.as_bytes())).unwrap_or_default();
            let list = block.split_once(r#""signatures":["#).and_then(|(_, rest)| rest.split_once(']'));
            for signature in list.map_or("", |(list, _)| list).split(',').filter(|text| !text.is_empty()) {
                self.signatures.push_front((slot, signature.trim_matches('"').to_owned()));
            }
        }
        self.read_slot = newest;
        let first_final = self.first_signature_at(Commitment::Finalized);
        self.signatures.truncate(first_final + BACK);
    }

    /// Returns the place of the newest signature whose slot has reached `commitment`.
    fn first_signature_at(&self, commitment: Commitment) -> usize {
        let newest = self.twin.slot(commitment);
        self.signatures.partition_point(|(slot, _)| *slot > newest)
    }

    fn next_request(&mut self) -> PlannedRequest {
        let mut dice = Dice::new(self.seed, self.number);
        self.number += 1;
        // Requests are independent of each other, so the time from one request to the next is exponentially
        // distributed.
        self.at += Duration::from_secs_f64(-(1.0 - dice.fraction()).ln() / self.rate);
        let slots = u32::try_from(self.at.as_millis() / SLOT_TIME.as_millis()).unwrap_or(u32::MAX);
        while self.steps < slots {
            self.twin.step();
            self.steps += 1;
            self.note_block();
        }
        let at = self.at;
        if dice.below(100) < BATCHES {
            let count = dice.range(2, 8);
            let calls: Vec<String> = (0..count).map(|id| self.call(&mut dice, id).2).collect();
            return PlannedRequest {
                at,
                method: "batch",
                commitment: "-",
                body: format!("[{}]", calls.join(",")),
            };
        }
        let (method, commitment, body) = self.call(&mut dice, 1);
        PlannedRequest { at, method, commitment, body }
    }

    /// Returns a random call in three values: its method, its commitment and its JSON text.
    fn call(&self, dice: &mut Dice, id: u64) -> (&'static str, &'static str, String) {
        let method = dice.choose(self.methods);
        let mut commitment = dice.choose(&COMMITMENTS);
        if matches!(method, "getBlock" | "getBlocks" | "getTransaction") && commitment == "processed" {
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
                let details = dice.choose(&DETAILS);
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
            "getSlot" => {}
            "getBalance" => {
                let _ = write!(first, "\"{}\"", self.addresses[self.popular.draw(dice)]);
            }
            "getBlocks" => {
                let newest =
                    self.twin.slot(Commitment::from_name(commitment).unwrap_or(Commitment::Finalized));
                let _ = write!(first, "{},{newest}", newest - self.recent.draw(dice) as u64);
            }
            "getBlockTime" => {
                let slot = self.twin.slot(Commitment::Confirmed) - self.recent.draw(dice) as u64;
                return (method, "-", envelope(id, method, &format!("[{slot}]")));
            }
            "getTransaction" => {
                // A caller asks at a commitment at which the signature has been seen.
                let newest = self
                    .first_signature_at(Commitment::from_name(commitment).unwrap_or(Commitment::Finalized));
                let at = (newest + self.recent.draw(dice)).min(self.signatures.len().saturating_sub(1));
                let _ = write!(first, "\"{}\"", self.signatures.get(at).map_or("", |(_, text)| text));
                let encoding = dice.choose(&TRANSACTIONS);
                config.push(format!(r#""encoding":"{encoding}","maxSupportedTransactionVersion":0"#));
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

    /// Adds a random encoding to `config`, and sometimes a slice. Sometimes also adds the newest slot at `commitment`
    /// as `minContextSlot`.
    fn form(&self, dice: &mut Dice, commitment: &str, config: &mut Vec<String>) {
        let encoding = dice.choose(&ENCODINGS);
        config.push(format!(r#""encoding":"{encoding}""#));
        if encoding != "jsonParsed" && dice.below(100) < SLICES {
            config.push(r#""dataSlice":{"offset":0,"length":32}"#.to_owned());
        }
        if dice.below(100) < MINIMA {
            let slot = self.twin.slot(Commitment::from_name(commitment).unwrap_or(Commitment::Finalized));
            config.push(format!(r#""minContextSlot":{slot}"#));
        }
    }

    /// Returns the addresses of list number `number`. Equal numbers give equal lists.
    fn list(&self, number: usize) -> Vec<&str> {
        let mut dice = Dice::new(self.seed ^ 3, number as u64);
        let count = dice.range(2, 50);
        (0..count).map(|_| &*self.addresses[self.popular.draw(&mut dice)]).collect()
    }
}

impl Iterator for Mix {
    type Item = PlannedRequest;

    fn next(&mut self) -> Option<PlannedRequest> {
        Some(self.next_request())
    }
}

/// Returns an address at which no account exists.
fn absent(seed: u64, number: u64) -> String {
    let mut dice = Dice::new(!seed, number);
    let mut bytes = [0; 32];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&dice.bits().to_le_bytes()));
    Pubkey(bytes).to_string()
}

fn envelope(id: u64, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}
