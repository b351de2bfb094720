//! The invariants of the chain: determinism, commitments, and balances that agree with blocks.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::chain::block::RewardKind;
use crate::chain::layout::Clock;
use crate::chain::token::TokenAccount;

fn genesis(seed: u64) -> GenesisConfig {
    GenesisConfig {
        seed,
        nodes: 3,
        first_slot: 6_400 - 60,
        epochs: Epochs::new(64, false),
        slot_ms: 400,
        skipped_per_mille: 45,
        retained_slots: 2_000,
        unix_time: 1_790_000_000,
        paced: vec![PacedAccounts { accounts: 30, every_slots: Some(1) }],
    }
}

fn chain(seed: u64, slots: u64) -> Chain {
    let mut chain = Chain::new(genesis(seed));
    (0..slots).for_each(|_| chain.step());
    chain
}

/// Creates a chain into whose blocks clients send transactions.
fn busy_chain(seed: u64, slots: u64) -> Chain {
    let mut chain = chain(seed, 0);
    for n in 0..slots {
        let to = Pubkey(Draw::new(seed, "client", n / 2).bytes());
        // The first transfers to an account are too small for its rent, so they fail.
        chain.airdrop(to, 600_000 * (n % 3), chain.tip_at(chain.slot())).unwrap();
        chain.step();
    }
    chain
}

/// Returns the accounts that blocks write without naming them in a transaction or a reward.
fn hidden_addresses(chain: &Chain) -> BTreeSet<Pubkey> {
    hidden::all(&chain.addresses).iter().map(|write| write.address).collect()
}

/// Returns every account that exists at `slot`: lamports by address.
fn balances(chain: &Chain, slot: Slot) -> BTreeMap<Pubkey, u64> {
    chain.accounts.all_at(slot).map(|(key, account)| (*key, account.lamports)).collect()
}

#[test]
fn equal_seeds_make_equal_chains() {
    let (a, b, other) = (busy_chain(7, 120), busy_chain(7, 120), chain(8, 120));
    assert_eq!(format!("{:?}", a.blocks), format!("{:?}", b.blocks));
    assert_ne!(a.tip_at(a.slot()).hash, other.tip_at(other.slot()).hash);
    let all =
        |chain: &Chain| chain.accounts.all_at(chain.slot).map(|(k, a)| (*k, a.clone())).collect::<Vec<_>>();
    assert_eq!(all(&a), all(&b));
}

#[test]
fn commitments_keep_their_distances_and_never_go_back() {
    let mut chain = chain(1, 60);
    let (mut skipped, mut before) = (0, (0, 0, 0));
    for _ in 0..250 {
        chain.step();
        let tip = chain.tip_at(chain.slot());
        skipped += u64::from(tip.slot != chain.slot());
        let depth = |slot| chain.blocks_back_from(tip.slot).position(|block| block.slot == slot);
        assert!(matches!(depth(tip.confirmed), Some(1..=4)), "confirmed {:?} back", depth(tip.confirmed));
        assert_eq!(depth(tip.finalized), Some(FINAL_DEPTH));
        let now = (tip.slot, tip.confirmed, tip.finalized);
        assert!(before.0 <= now.0 && before.1 <= now.1 && before.2 <= now.2);
        before = now;
    }
    assert!((3..=30).contains(&skipped), "{skipped} of 250 slots skipped");
}

#[test]
fn blocks_link_up_and_heights_count_blocks() {
    let chain = chain(2, 100);
    for (parent, block) in chain.blocks.iter().zip(chain.blocks.iter().skip(1)) {
        assert_eq!(block.parent_slot, parent.slot);
        assert_eq!(block.previous_hash, parent.hash);
        assert_eq!(block.height, parent.height + 1);
        assert!(block.time >= parent.time);
    }
}

/// Replays every block, transaction by transaction and reward by reward, and compares the result with the accounts.
#[test]
fn balances_follow_from_blocks() {
    let chain = busy_chain(3, 140);
    let first = chain.first_block().slot;
    let hidden = hidden_addresses(&chain);
    let mut ledger = balances(&chain, first);
    let mut failed = 0;
    for block in chain.blocks.iter().skip(1) {
        // An epoch's rewards are paid before the transactions of the block, and fees after them.
        let (fees, epoch): (Vec<_>, Vec<_>) = block.rewards.iter().partition(|r| r.kind == RewardKind::Fee);
        let pay = |ledger: &mut BTreeMap<Pubkey, u64>, rewards: &[&block::Reward]| {
            for reward in rewards {
                let balance = ledger.entry(reward.pubkey).or_default();
                *balance += reward.lamports;
                assert_eq!(*balance, reward.post_balance);
            }
        };
        pay(&mut ledger, &epoch);
        for transaction in &block.transactions {
            let [before, after] = &transaction.balances;
            for ((key, before), after) in transaction.accounts().zip(before).zip(after) {
                assert_eq!(ledger.get(key).copied().unwrap_or(0), *before, "{key} in {}", block.slot);
                ledger.insert(*key, *after);
            }
            let paid = before.iter().sum::<u64>() - after.iter().sum::<u64>();
            assert_eq!(paid, transaction.fee.total());
            failed += u64::from(transaction.failure.is_some());
        }
        pay(&mut ledger, &fees);
        ledger.retain(|_, lamports| *lamports > 0);
        let named = |all: &BTreeMap<Pubkey, u64>| {
            all.iter().filter(|(key, _)| !hidden.contains(*key)).map(|(k, n)| (*k, *n)).collect::<Vec<_>>()
        };
        assert_eq!(named(&ledger), named(&balances(&chain, block.slot)), "after {}", block.slot);
    }
    assert!(failed > 10, "only {failed} transactions failed");
}

#[test]
fn lamports_change_only_by_rewards_and_fees() {
    let chain = busy_chain(4, 140);
    // The sum leaves out the accounts that blocks change without naming them. Their lamports come from nowhere.
    let hidden = hidden_addresses(&chain);
    let total = |slot| {
        let all = chain.accounts.all_at(slot).filter(|(key, _)| !hidden.contains(*key));
        all.map(|(_, account)| u128::from(account.lamports)).sum::<u128>()
    };
    let first = chain.first_block().slot;
    let (mut expected, mut kinds) = (total(first), BTreeMap::<&str, u64>::new());
    for block in chain.blocks.iter().skip(1) {
        let fees: u64 = block.transactions.iter().map(|t| t.fee.total()).sum();
        let rewards: u64 = block.rewards.iter().map(|reward| reward.lamports).sum();
        expected = expected + u128::from(rewards) - u128::from(fees);
        assert_eq!(total(block.slot), expected, "after {}", block.slot);
        block.rewards.iter().for_each(|reward| *kinds.entry(reward.kind.as_str()).or_default() += 1);
        let leader = block.rewards.iter().find(|reward| reward.kind == RewardKind::Fee);
        let burned = fees - leader.map_or(0, |reward| reward.lamports);
        assert_eq!(burned, block.transactions.iter().map(|t| t.fee.base / 2).sum::<u64>());
    }
    assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), ["Fee", "Staking", "Voting"]);
}

#[test]
fn token_balances_follow_from_blocks_and_supplies_stay() {
    let chain = chain(5, 140);
    let mut moved = 0;
    for block in chain.blocks.iter().skip(1) {
        for transaction in &block.transactions {
            let [before, after] = &transaction.tokens;
            let sum = |balances: &[transaction::TokenBalance]| {
                balances.iter().map(|b| u128::from(b.amount)).sum::<u128>()
            };
            assert_eq!(sum(before), sum(after));
            moved += u64::from(before != after);
        }
        let last = block.transactions.iter().flat_map(|t| t.tokens[1].iter().map(move |b| (t, b)));
        let last: BTreeMap<Pubkey, u64> =
            last.map(|(t, b)| (*t.accounts().nth(b.index).unwrap(), b.amount)).collect();
        for (key, amount) in last {
            let account = chain.account(&key, block.slot).unwrap();
            assert_eq!(TokenAccount::decode(&account.data).unwrap().amount, amount);
        }
    }
    assert!(moved > 100, "only {moved} transactions moved tokens");
}

#[test]
fn sysvars_have_their_blocks_slot_and_hashes() {
    let chain = chain(6, 80);
    for block in chain.blocks.iter().skip(1) {
        let data = |key| &chain.account(&key, block.slot).unwrap().data;
        let clock = Clock::decode(data(address::CLOCK)).unwrap();
        assert_eq!((clock.slot, clock.now, clock.epoch), (block.slot, block.time, block.slot / 64));
        assert_eq!(data(address::SLOT_HASHES)[8..16], block.parent_slot.to_le_bytes());
        assert_eq!(data(address::SLOT_HASHES).len(), 20_488);
        assert_eq!(data(address::RECENT_BLOCKHASHES)[8..40], block.hash);
    }
}

#[test]
fn epoch_pays_voting_rewards_before_stakes() {
    let chain = chain(9, 200);
    let opening: Vec<_> = chain.blocks.iter().filter(|block| block.reward_partitions.is_some()).collect();
    assert!(opening.len() >= 3);
    for block in opening {
        assert!(chain.epoch(block.slot) > chain.epoch(block.parent_slot));
        let voting = block.rewards.iter().filter(|reward| reward.kind == RewardKind::Voting).count();
        assert_eq!(voting, chain.addresses.voting().count());
        let next = chain.blocks.iter().find(|next| next.parent_slot == block.slot).unwrap();
        let staking = next.rewards.iter().filter(|reward| reward.kind == RewardKind::Staking).count();
        assert_eq!(staking, voting);
    }
}

#[test]
fn transactions_wait_their_turn_and_too_many_are_refused() {
    let mut chain = chain(12, 0);
    let send = |chain: &Chain| chain.airdrop(Pubkey([1; 32]), 1_000_000, chain.tip_at(chain.slot()));
    let waiting: Vec<_> = std::iter::from_fn(|| send(&chain).ok()).collect();
    assert_eq!(send(&chain), Err(mempool::Full));
    (0..20).for_each(|_| chain.step());
    let landed = |signature| chain.landed(signature, chain.slot()).map(|(block, _)| block.slot);
    let slots: Vec<Slot> = waiting.iter().map(|signature| landed(signature).unwrap()).collect();
    assert!(slots.is_sorted(), "the oldest first");
    assert!(slots.chunk_by(|a, b| a == b).count() > 4, "in several blocks");
    assert!(send(&chain).is_ok());
}

#[test]
fn blocks_with_too_many_transactions_are_dropped_early() {
    let mut chain = chain(13, 0);
    chain.mempool.most_landed = 8_000;
    let mut first = None;
    for _ in 0..450 {
        for _ in 0..10 {
            let sent = chain.airdrop(Pubkey([1; 32]), 1_000_000, chain.tip_at(chain.slot()));
            first.get_or_insert(sent.unwrap());
        }
        chain.step();
    }
    let kept: usize = chain.blocks.iter().map(|block| block.transactions.len()).sum();
    assert!((7_000..9_000).contains(&kept), "{kept} transactions in {} blocks", chain.blocks.len());
    assert!(chain.landed(&first.unwrap(), chain.slot()).is_none());
}

#[test]
fn old_blocks_and_states_are_dropped() {
    let mut chain = Chain::new(GenesisConfig { retained_slots: 400, ..genesis(10) });
    (0..800).for_each(|_| chain.step());
    assert!(chain.blocks.len() < 450, "{} blocks", chain.blocks.len());
    assert!(chain.first_block().slot + 440 > chain.slot());
    let versions =
        |key: &Pubkey| (0..STATE_SLOTS).filter(|n| chain.account(key, chain.slot() - n).is_some()).count();
    assert_eq!(versions(&address::CLOCK) as u64, STATE_SLOTS);
    assert!(chain.account(&address::CLOCK, chain.slot() - STATE_SLOTS - 100).is_none());
}

#[test]
fn signatures_of_all_transactions_verify() {
    let chain = chain(11, 60);
    let mut kinds = BTreeSet::new();
    for transaction in chain.blocks.iter().flat_map(|block| &block.transactions) {
        let message = transaction.message.encode();
        assert_eq!(transaction.signatures.len(), transaction.message.signers().len());
        for (signer, signature) in transaction.message.signers().iter().zip(&transaction.signatures) {
            assert!(keyring::verifies(signer, &message, signature), "{signer} in {transaction:?}");
            assert!(!keyring::verifies(signer, &message[1..], signature), "it signs the whole message");
        }
        let kind = |i| format!("{:?}", std::mem::discriminant(i));
        kinds.extend(transaction.instructions.iter().map(kind));
        kinds.insert(format!("{} {}", transaction.message.v0, transaction.signatures.len()));
    }
    assert!(kinds.len() >= 6 + 3, "votes, transfers of both kinds, memos and budgets: {kinds:?}");
}
