//! The accounts that a block may write, read from its JSON text without building a tree.
//!
//! The text is the result of `getBlock` with `transactionDetails: "accounts"` and rewards. The accounts are
//! every writable account of every transaction, and every account that got a reward. A block need not have
//! changed each of these accounts.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::last_writes::Fingerprint;
use super::state::{FollowEnd, PauseReason};
use crate::methods::{Pubkey, Slot};

/// The parts of a block that the follower needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockWrites {
    pub(super) blockhash: String,
    pub(super) previous_blockhash: String,
    pub(super) parent_slot: Slot,
    /// True if the block begins a distribution of staking rewards. Only the first block of an epoch does.
    pub(super) begins_rewards: bool,
    /// True if the block has transactions but no reward of type `Fee`. The node may have answered before it
    /// knew the block's rewards.
    pub(super) lacks_fee_reward: bool,
    /// The fingerprints (64-bit hashes) of the accounts that the block may write, in ascending order and
    /// without repetitions.
    pub(super) writes: Vec<Fingerprint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block<'a> {
    #[serde(borrow)]
    blockhash: Cow<'a, str>,
    #[serde(borrow)]
    previous_blockhash: Cow<'a, str>,
    parent_slot: Slot,
    num_reward_partitions: Option<u64>,
    #[serde(borrow)]
    transactions: Vec<Transaction<'a>>,
    #[serde(borrow)]
    rewards: Vec<Reward<'a>>,
}

#[derive(Deserialize)]
struct Transaction<'a> {
    meta: Option<IgnoredAny>,
    #[serde(borrow)]
    transaction: AccountKeys<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccountKeys<'a> {
    #[serde(borrow)]
    account_keys: Vec<AccountKey<'a>>,
}

/// One account of a transaction. Unknown members are refused, because they could change the meaning of `writable`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountKey<'a> {
    #[serde(borrow)]
    pubkey: Cow<'a, str>,
    writable: bool,
    #[serde(rename = "signer")]
    _signer: IgnoredAny,
    #[serde(rename = "source", default)]
    _source: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reward<'a> {
    #[serde(borrow)]
    pubkey: Cow<'a, str>,
    #[serde(borrow)]
    reward_type: Option<Cow<'a, str>>,
}

impl BlockWrites {
    /// Reads a block from its JSON text.
    ///
    /// # Errors
    /// The accounts that the block writes cannot be known: the text is not a block with accounts and rewards, an account
    /// of a transaction has an unknown member, or an address is invalid. Without its `meta`, the accounts of a
    /// transaction from lookup tables may be missing.
    pub(super) fn parse(result: &[u8]) -> Result<Self, FollowEnd> {
        let block: Block = serde_json::from_slice(result).map_err(|_| PauseReason::UnknownForm)?;
        let mut writes = Vec::new();
        let mut add = |text: &str| {
            let address = Pubkey::parse(text).map_err(|_| FollowEnd::GAP)?;
            writes.push(Fingerprint::of(&address));
            Ok::<_, FollowEnd>(())
        };
        for transaction in &block.transactions {
            if transaction.meta.is_none() {
                return Err(FollowEnd::GAP);
            }
            let keys = transaction.transaction.account_keys.iter();
            keys.filter(|key| key.writable).try_for_each(|key| add(&key.pubkey))?;
        }
        block.rewards.iter().try_for_each(|reward| add(&reward.pubkey))?;
        // Many transactions of a block list the same payers and the same accounts of programs.
        writes.sort_unstable();
        writes.dedup();
        let has_fee_reward = block.rewards.iter().any(|reward| reward.reward_type.as_deref() == Some("Fee"));
        Ok(Self {
            blockhash: block.blockhash.into_owned(),
            previous_blockhash: block.previous_blockhash.into_owned(),
            parent_slot: block.parent_slot,
            begins_rewards: block.num_reward_partitions.is_some(),
            lacks_fee_reward: !block.transactions.is_empty() && !has_fee_reward,
            writes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> Pubkey {
        Pubkey([n; 32])
    }

    fn account(n: u8, writable: bool) -> String {
        format!(r#"{{"pubkey":"{}","signer":false,"source":"transaction","writable":{writable}}}"#, key(n))
    }

    fn transaction(meta: &str, accounts: &[String]) -> String {
        format!(
            r#"{{"meta":{meta},"transaction":{{"accountKeys":[{}],"signatures":["s"]}},"version":0}}"#,
            accounts.join(",")
        )
    }

    fn block(transactions: &[String], rewards: &str, more: &str) -> String {
        format!(
            r#"{{"blockHeight":5,"blockTime":null,"blockhash":"b","parentSlot":6,"previousBlockhash":"a","rewards":[{rewards}],"transactions":[{}]{more}}}"#,
            transactions.join(",")
        )
    }

    fn reward(n: u8, kind: &str) -> String {
        format!(
            r#"{{"commission":null,"lamports":1,"postBalance":2,"pubkey":"{}","rewardType":{kind}}}"#,
            key(n)
        )
    }

    const META: &str = r#"{"err":null,"fee":5000,"postBalances":[],"preBalances":[]}"#;

    fn parse(text: &str) -> Result<BlockWrites, FollowEnd> {
        BlockWrites::parse(text.as_bytes())
    }

    #[test]
    fn writable_accounts_and_rewards_are_writes() {
        let transactions = [
            transaction(META, &[account(1, true), account(2, false), account(3, true)]),
            transaction(META, &[account(1, true)]),
        ];
        let text = block(&transactions, &reward(4, r#""Fee""#), "");
        let mut writes = [1, 3, 4].map(|n| Fingerprint::of(&key(n)));
        writes.sort_unstable();
        let expected = BlockWrites {
            blockhash: "b".into(),
            previous_blockhash: "a".into(),
            parent_slot: 6,
            begins_rewards: false,
            lacks_fee_reward: false,
            writes: writes.into(),
        };
        assert_eq!(parse(&text), Ok(expected));
    }

    #[test]
    fn block_may_lack_its_fee_reward() {
        let transactions = [transaction(META, &[account(1, true)])];
        for (transactions, rewards, lacks) in [
            (&transactions[..], String::new(), true),
            (&transactions, reward(4, r#""Voting""#), true),
            (&transactions, reward(4, "null"), true),
            (&transactions, reward(4, r#""Fee""#), false),
            (&[], String::new(), false),
        ] {
            let text = block(transactions, &rewards, "");
            assert_eq!(parse(&text).unwrap().lacks_fee_reward, lacks, "{rewards}");
        }
    }

    #[test]
    fn reward_partitions_are_noticed() {
        for (more, begins) in
            [(r#","numRewardPartitions":2"#, true), (r#","numRewardPartitions":null"#, false), ("", false)]
        {
            let text = block(&[], "", more);
            assert_eq!(parse(&text).unwrap().begins_rewards, begins, "{more}");
        }
    }

    #[test]
    fn unknown_forms_are_unreadable() {
        let unknown = FollowEnd::Pause(PauseReason::UnknownForm);
        let bad_key = account(1, true).replace(&key(1).to_string(), "1");
        let member = account(1, false).replace("\"signer\"", "\"delayed\":true,\"signer\"");
        let whole = block(&[transaction(META, &[account(1, true)])], &reward(4, r#""Fee""#), "");
        for (text, expected) in [
            (block(&[transaction("null", &[account(1, true)])], "", ""), FollowEnd::GAP),
            (block(&[transaction(META, &[bad_key])], "", ""), FollowEnd::GAP),
            (block(&[transaction(META, &[member])], "", ""), unknown),
            (whole.replace("\"rewards\"", "\"prizes\""), unknown),
            (whole.replace("\"transactions\"", "\"signatures\""), unknown),
            (whole.replace("\"accountKeys\"", "\"message\""), unknown),
            (whole.replace(",\"writable\":true", ""), unknown),
            (whole[..whole.len() - 1].to_owned(), unknown),
            ("null".to_owned(), unknown),
        ] {
            assert_eq!(parse(&text), Err(expected), "{text}");
        }
    }
}
