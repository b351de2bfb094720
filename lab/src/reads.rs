//! The reads of the example `savings`, which counts the calls that following the chain saves. A seed determines the
//! reads.
//!
//! The accounts are token accounts of a simulated cluster, each written at a known rate. The popularity of
//! accounts and of lists follows Zipf's law. Each write rate has its share of the reads.

use std::time::Duration;

use slotfront_rpc::methods::{Commitment, MAX_KEYS, Pubkey};
use slotfront_sim::{Cluster, PacedAccounts};

use crate::dice::Dice;
use crate::zipf::Zipf;

const ADDRESSES: usize = 2_000;
const LISTS: usize = 200;
/// The number of slots in half a minute, at four slots a second.
const HALF_MINUTE: u64 = 120;
/// The encodings in reads of single accounts, with the number of reads in a hundred that request each encoding.
/// Sliced reads request only the 8 bytes of the token amount.
const ENCODINGS: [(&str, u64); 5] =
    [("base64", 60), ("base64+zstd", 10), ("jsonParsed", 10), ("base64 sliced", 10), ("base58 sliced", 10)];

/// The rate at which blocks write an account. A list has the rate of its most often written account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteRate {
    /// No block writes the account.
    Never,
    HalfMinute,
    /// Every block writes the account.
    EverySlot,
}

impl WriteRate {
    /// All rates, the slowest first.
    const ALL: [Self; 3] = [Self::Never, Self::HalfMinute, Self::EverySlot];

    fn every_slots(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::HalfMinute => Some(HALF_MINUTE),
            Self::EverySlot => Some(1),
        }
    }
}

/// The shares of reads by write rate and by commitment.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// The percentages of reads by the write rate of their accounts: first never, then every half minute, then
    /// every slot.
    pub rates: [f64; 3],
    /// The percentage of reads at confirmed. The others are at finalized.
    pub confirmed: u64,
}

impl Spread {
    /// Returns, for each write rate, the number of accounts that the simulated cluster must have.
    pub fn accounts(&self) -> Vec<PacedAccounts> {
        let rates = self.split(ADDRESSES);
        let group = |rate: WriteRate| PacedAccounts {
            accounts: rates.iter().filter(|of_rank| **of_rank == rate).count() as u64,
            every_slots: rate.every_slots(),
        };
        WriteRate::ALL.map(group).to_vec()
    }

    /// Returns the write rate for each rank of popularity, the most popular first.
    fn split(&self, ranks: usize) -> Vec<WriteRate> {
        Zipf::new(ranks).split(&self.rates).into_iter().map(|class| WriteRate::ALL[class]).collect()
    }

    pub fn describe(&self) -> String {
        let [never, half_minute, every_slot] = self.rates;
        let encodings = ENCODINGS.map(|(name, share)| format!("{name} {share}")).join(", ");
        format!(
            "of 100 reads, {every_slot} are of accounts that are written every slot, {half_minute} every half minute, \
             {never} never; {} at confirmed, the others at finalized; encodings of single accounts: {encodings}; of \
             lists: base64; {ADDRESSES} addresses and {LISTS} lists of 2 to {MAX_KEYS}, all by Zipf's law with exponent 1",
            self.confirmed
        )
    }
}

/// A read: one call for an account or for a list.
#[derive(Clone)]
pub struct PlannedRead {
    /// The planned time, relative to the beginning of the run.
    pub at: Duration,
    pub accounts: Vec<Pubkey>,
    /// True for getMultipleAccounts.
    pub is_list: bool,
    pub commitment: Commitment,
    /// True if the read requests the encoding `jsonParsed`.
    pub parsed: bool,
    /// The write rate of the most often written account among `accounts`.
    pub rate: WriteRate,
    pub body: String,
}

/// An iterator over the reads, in the order of their planned times.
pub struct Reads {
    seed: u64,
    /// The average number of reads per second: first of single accounts, then of lists.
    per_second: [f64; 2],
    spread: Spread,
    number: u64,
    at: Duration,
    /// The addresses with their rates, the most popular first.
    addresses: Vec<(Pubkey, WriteRate)>,
    popular: Zipf,
    lists: Vec<(Vec<Pubkey>, WriteRate)>,
    popular_list: Zipf,
}

impl Reads {
    /// Returns the reads for `seed`. `per_second` has the average number of reads per second: first of single accounts,
    /// then of lists. `cluster` must have been created with the accounts that [`Spread::accounts`] returns.
    pub fn new(seed: u64, per_second: [f64; 2], spread: Spread, cluster: &Cluster) -> Self {
        let mut groups = cluster.paced_accounts();
        let rated = |rate: WriteRate| Some((groups.get_mut(rate as usize)?.pop()?, rate));
        let addresses: Vec<_> = spread.split(ADDRESSES).into_iter().filter_map(rated).collect();
        let popular = Zipf::new(addresses.len());
        let list = |(number, rate)| {
            let mut dice = Dice::new(seed ^ 3, number);
            let mut draw = |allowed: &dyn Fn(WriteRate) -> bool| loop {
                let (account, of_account) = addresses[popular.draw(&mut dice)];
                if allowed(of_account) {
                    return account;
                }
            };
            let first = draw(&|of_account| of_account == rate);
            let count = Dice::new(seed ^ 4, number).range(2, MAX_KEYS as u64);
            let rest = (1..count).map(|_| draw(&|of_account| of_account <= rate));
            (std::iter::once(first).chain(rest).collect(), rate)
        };
        let lists = (0..).zip(spread.split(LISTS)).map(list).collect();
        Self {
            seed,
            per_second,
            spread,
            number: 0,
            at: Duration::ZERO,
            popular,
            lists,
            popular_list: Zipf::new(LISTS),
            addresses,
        }
    }

    pub fn rates(&self) -> impl Iterator<Item = (Pubkey, WriteRate)> {
        self.addresses.iter().copied()
    }

    fn next_read(&mut self) -> PlannedRead {
        let mut dice = Dice::new(self.seed, self.number);
        self.number += 1;
        let [singles, lists] = self.per_second;
        // Reads are independent of each other, so the time from one read to the next is exponentially distributed.
        self.at += Duration::from_secs_f64(-(1.0 - dice.fraction()).ln() / (singles + lists));
        let is_list = dice.fraction() * (singles + lists) >= singles;
        let is_confirmed = dice.below(100) < self.spread.confirmed;
        let commitment = if is_confirmed { Commitment::Confirmed } else { Commitment::Finalized };
        let (accounts, rate, encoding) = if is_list {
            let (accounts, rate) = self.lists[self.popular_list.draw(&mut dice)].clone();
            (accounts, rate, "base64")
        } else {
            let (account, rate) = self.addresses[self.popular.draw(&mut dice)];
            (vec![account], rate, dice.choose(&ENCODINGS))
        };
        let body = body(&accounts, is_list, commitment, encoding);
        let parsed = encoding == "jsonParsed";
        PlannedRead { at: self.at, accounts, is_list, commitment, parsed, rate, body }
    }
}

/// Returns the JSON text of a read's call.
fn body(accounts: &[Pubkey], is_list: bool, commitment: Commitment, encoding: &str) -> String {
    let accounts = accounts.iter().map(|account| format!("\"{account}\"")).collect::<Vec<_>>().join(",");
    let (method, first) =
        if is_list { ("getMultipleAccounts", format!("[{accounts}]")) } else { ("getAccountInfo", accounts) };
    // The slice is the amount in the data of a token account.
    let slice = r#","dataSlice":{"offset":64,"length":8}"#;
    let (encoding, slice) = match encoding.strip_suffix(" sliced") {
        Some(encoding) => (encoding, slice),
        None => (encoding, ""),
    };
    let commitment = commitment.as_str();
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":[{first},{{"commitment":"{commitment}","encoding":"{encoding}"{slice}}}]}}"#
    )
}

impl Iterator for Reads {
    type Item = PlannedRead;

    fn next(&mut self) -> Option<PlannedRead> {
        Some(self.next_read())
    }
}

#[cfg(test)]
mod tests {
    use slotfront_sim::Settings;

    use super::*;

    #[test]
    fn reads_have_the_spread_of_the_seed() {
        let spread = Spread { rates: [40.0, 30.0, 30.0], confirmed: 60 };
        let settings = Settings { slot_time: None, paced_accounts: spread.accounts(), ..Settings::default() };
        let cluster = Cluster::new(Settings { history_slots: 40, ..settings });
        let reads = |seed| Reads::new(seed, [90.0, 10.0], spread, &cluster).take(4_000).collect::<Vec<_>>();
        let (all, again, other) = (reads(1), reads(1), reads(2));
        let bodies = |reads: &[PlannedRead]| reads.iter().map(|read| read.body.clone()).collect::<Vec<_>>();
        assert_eq!(bodies(&all), bodies(&again));
        assert_ne!(bodies(&all), bodies(&other));
        for (is_list, number) in [(false, 3_600), (true, 400)] {
            let of_kind: Vec<_> = all.iter().filter(|read| read.is_list == is_list).collect();
            assert!(of_kind.len().abs_diff(number) < number / 5, "{} reads", of_kind.len());
            for (rate, percent) in WriteRate::ALL.into_iter().zip([40, 30, 30]) {
                let part = of_kind.iter().filter(|read| read.rate == rate).count();
                assert!((part * 100 / of_kind.len()).abs_diff(percent) < 9, "{rate:?}: {part}");
            }
        }
        let seconds = all.last().unwrap().at.as_secs();
        assert!((36..=44).contains(&seconds), "4,000 reads take {seconds} s");
    }
}
