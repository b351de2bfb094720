//! A made-up chain with blocks as large as those of mainnet. Only the current time determines the chain's newest
//! slot.
//!
//! Each block has the transactions of one of [`TEMPLATES`] templates. The blocks use the templates in turn, so the
//! slot of the last write of each requested account is known. The account's balance is that slot.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slotfront_rpc::methods::Pubkey;

use crate::dice::Dice;

/// The number of templates. A template is the list of transactions that every block made from it contains.
pub const TEMPLATES: u64 = 32;
/// The number of slots in an epoch.
pub const EPOCH: u64 = 432_000;
/// The first slot of the chain. The next epoch begins 431,000 slots later, long after the end of a usual run.
const FIRST: u64 = 900 * EPOCH + 1000;
/// The number of requested accounts for each variant of [`Writes`].
const ASKED: u64 = 70;
/// The number of slots after which a block is confirmed.
const CONFIRMED_AFTER: u64 = 2;
/// The number of slots after which a block is final.
const FINAL_AFTER: u64 = 32;
/// The number of validators that transactions name.
const VALIDATORS: u64 = 800;
/// The number of programs that transactions name.
const PROGRAMS: u64 = 40;
/// The number of liquidity pools that transactions name.
const POOLS: u64 = 600;
/// The number of wallets that transactions name.
const WALLETS: u64 = 200_000;
/// The number of transactions in a group. A block consists of such groups: first [`VOTES`] votes, then calls of
/// programs.
const VOTES_OF: usize = 3;
/// The number of votes at the beginning of each group of [`VOTES_OF`] transactions.
const VOTES: usize = 2;

/// The clock of the chain.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// The time of the first slot, in milliseconds since 1970.
    pub began_ms: u64,
    /// The duration of a slot in milliseconds.
    pub slot_ms: u64,
}

impl Clock {
    /// Returns the newest slot at a commitment. Any word but `processed` and `confirmed` stands for finalized.
    pub fn newest(&self, commitment: &str, now_ms: u64) -> u64 {
        let passed = now_ms.saturating_sub(self.began_ms) / self.slot_ms;
        let after = match commitment {
            "confirmed" => CONFIRMED_AFTER,
            "processed" => 0,
            _ => FINAL_AFTER,
        };
        FIRST + passed - after
    }

    /// Returns the milliseconds since `slot` was confirmed, or 0 if `slot` is not confirmed yet.
    pub fn ms_since_confirmed(&self, slot: u64, now_ms: u64) -> u64 {
        let confirmed_ms = self.began_ms + (slot + CONFIRMED_AFTER).saturating_sub(FIRST) * self.slot_ms;
        now_ms.saturating_sub(confirmed_ms)
    }
}

/// Returns the milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The blocks that write an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// Every block.
    Always,
    /// The blocks of one template.
    Sometimes(u64),
    /// No block.
    Never,
}

impl Writes {
    /// Returns the slot of the last write up to `slot`, or 0 if no block writes the account.
    pub fn last(self, slot: u64) -> u64 {
        match self {
            Self::Always => slot,
            Self::Sometimes(template) => slot - (slot + TEMPLATES - template) % TEMPLATES,
            Self::Never => 0,
        }
    }
}

/// Returns the addresses of the accounts that callers request, and the blocks that write each account.
pub fn asked() -> Vec<(String, Writes)> {
    let of_kind = |kind: u64| {
        (0..ASKED).map(move |number| {
            let writes = match kind {
                0 => Writes::Always,
                1 => Writes::Sometimes(number % TEMPLATES),
                _ => Writes::Never,
            };
            (address(kind, number), writes)
        })
    };
    (0..3).flat_map(of_kind).collect()
}

/// Returns 32 random bytes in base58, to be used as an address or a hash. Equal arguments give equal texts.
fn address(kind: u64, number: u64) -> String {
    let mut dice = Dice::new(kind, number);
    let mut bytes = [0; 32];
    bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&dice.bits().to_le_bytes()));
    Pubkey(bytes).to_string()
}

/// Returns the hash of the block at `slot`.
pub fn blockhash(slot: u64) -> String {
    address(9, slot)
}

/// Returns the JSON text of the block at `slot`, from its beginning to just before its first transaction.
pub fn head(slot: u64) -> String {
    let (hash, parent, previous) = (blockhash(slot), slot - 1, blockhash(slot - 1));
    let leader = address(4, slot / 4 % VALIDATORS);
    let height = slot - 20_000_000;
    format!(
        r#"{{"blockHeight":{height},"blockTime":1790000000,"blockhash":"{hash}","parentSlot":{parent},"previousBlockhash":"{previous}","rewards":[{{"commission":null,"lamports":21870000,"postBalance":988112345678,"pubkey":"{leader}","rewardType":"Fee"}}],"transactions":["#
    )
}

/// Returns the transactions of a template as JSON elements, as in a block with `transactionDetails: "accounts"`.
/// The text has at least `length` bytes, and all accounts that the template must write.
pub fn transactions(template: u64, length: usize) -> String {
    let mut dice = Dice::new(11, template);
    // The first transactions other than votes write the requested accounts of this template, a few in each
    // transaction.
    let written =
        asked().into_iter().filter(|(_, writes)| writes.last(template + TEMPLATES) == template + TEMPLATES);
    let mut written: Vec<String> = written.map(|(address, _)| address).collect();
    let mut text = String::with_capacity(length + 8192);
    for number in 0.. {
        if text.len() >= length && written.is_empty() {
            break;
        }
        if number > 0 {
            text.push(',');
        }
        if number % VOTES_OF < VOTES {
            vote(&mut text, &mut dice);
        } else {
            let first = written.len().saturating_sub(4);
            call(&mut text, &mut dice, written.drain(first..).collect());
        }
    }
    text
}

/// Appends a vote transaction to `text`.
fn vote(text: &mut String, dice: &mut Dice) {
    let validator = dice.below(VALIDATORS);
    let keys = [
        (address(4, validator), true, true),
        (address(5, validator), true, false),
        ("Vote111111111111111111111111111111111111111".to_owned(), false, false),
    ];
    transaction(text, dice, &keys, "");
}

/// Appends a transaction that calls programs. It writes about ten accounts, and all accounts in `written` are
/// among them.
fn call(text: &mut String, dice: &mut Dice, written: Vec<String>) {
    let mut keys = vec![(address(6, dice.below(WALLETS)), true, true)];
    keys.extend(written.into_iter().map(|address| (address, true, false)));
    keys.extend((0..dice.range(1, 4)).map(|_| (address(7, dice.below(POOLS)), true, false)));
    keys.extend((0..dice.range(2, 8)).map(|_| (address(6, dice.below(WALLETS)), true, false)));
    keys.extend((0..dice.range(3, 9)).map(|_| (address(8, dice.below(PROGRAMS)), false, false)));
    let balances: Vec<String> = (1..dice.range(3, 7)).map(|index| token_balance(dice, index)).collect();
    transaction(text, dice, &keys, &balances.join(","));
}

fn token_balance(dice: &mut Dice, index: u64) -> String {
    let (mint, owner, amount) =
        (address(7, dice.below(POOLS)), address(6, dice.below(WALLETS)), dice.below(1_000_000_000_000));
    let (whole, part) = (amount / 1_000_000, amount % 1_000_000);
    format!(
        r#"{{"accountIndex":{index},"mint":"{mint}","owner":"{owner}","programId":"TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA","uiTokenAmount":{{"amount":"{amount}","decimals":6,"uiAmount":{whole}.{part:06},"uiAmountString":"{whole}.{part:06}"}}}}"#
    )
}

/// Appends a transaction with the accounts `keys`. Beside each address are two flags: true if the account is
/// writable, and true if it is a signer.
fn transaction(text: &mut String, dice: &mut Dice, keys: &[(String, bool, bool)], token_balances: &str) {
    let mut balances = || {
        let all = keys.iter().map(|_| (dice.bits() >> dice.range(20, 44)).to_string());
        all.collect::<Vec<_>>().join(",")
    };
    let (before, after) = (balances(), balances());
    let keys: Vec<String> = keys
        .iter()
        .map(|(pubkey, writable, signer)| {
            format!(
                r#"{{"pubkey":"{pubkey}","signer":{signer},"source":"transaction","writable":{writable}}}"#
            )
        })
        .collect();
    let _ = write!(
        text,
        r#"{{"meta":{{"err":null,"fee":5000,"postBalances":[{after}],"postTokenBalances":[{token_balances}],"preBalances":[{before}],"preTokenBalances":[{token_balances}],"status":{{"Ok":null}}}},"transaction":{{"accountKeys":[{}],"signatures":["{}{}"]}},"version":0}}"#,
        keys.join(","),
        address(12, dice.bits()),
        address(13, dice.bits()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_write_the_accounts_they_name() {
        let text = transactions(3, 200_000);
        assert!((200_000..220_000).contains(&text.len()));
        for (address, writes) in asked() {
            let is_written = writes.last(TEMPLATES * 5 + 3) == TEMPLATES * 5 + 3;
            let named = format!(r#""{address}","signer":false,"source":"transaction","writable":true"#);
            assert_eq!(text.contains(&named), is_written, "{writes:?}");
        }
    }

    #[test]
    fn last_write_is_the_templates_newest_block() {
        for (slot, last) in [(64, 35), (66, 35), (67, 67), (98, 67)] {
            assert_eq!(Writes::Sometimes(3).last(slot), last);
        }
    }
}
