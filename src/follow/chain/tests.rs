use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::last_writes::Buckets;
use super::*;
use crate::methods::Pubkey;

const FIRST: Slot = 1_000;
const ACCOUNTS: u8 = 6;

fn new_chain() -> ChainWriter {
    ChainWriter::new(1, FIRST, Instant::now())
}

fn address(n: u8) -> Pubkey {
    Pubkey([n; 32])
}

/// One change to the chain, in a random sequence of changes.
#[derive(Debug, Clone)]
enum ChainStep {
    /// A block follows after `skipped` slots without a block, and writes these accounts.
    Block { skipped: u64, writes: Vec<u8> },
    /// The block that is `behind` blocks below the newest block becomes final.
    Finalize { behind: usize },
}

fn steps() -> impl Strategy<Value = Vec<ChainStep>> {
    let writes = proptest::collection::vec(0..ACCOUNTS, 0..3);
    let step = prop_oneof![
        5 => (prop_oneof![4 => Just(0), 1 => 1..4_u64], writes)
            .prop_map(|(skipped, writes)| ChainStep::Block { skipped, writes }),
        2 => (0..12_usize).prop_map(|behind| ChainStep::Finalize { behind }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A model of the chain. `versions` maps the slot of each block to the slots at which the accounts were last
/// written.
#[derive(Default)]
struct ChainModel {
    versions: BTreeMap<Slot, [Slot; ACCOUNTS as usize]>,
    target: Option<Slot>,
}

impl ChainModel {
    fn tip(&self) -> Slot {
        *self.versions.last_key_value().expect("the chain has a first block").0
    }

    /// Checks the result of [`Chain::unchanged_until`] for answers about every account. The answers were read
    /// at each slot of the chain, at the slot before the chain, and at the slot after it.
    fn check(&self, chain: &Chain, buckets: &Buckets) -> Result<(), TestCaseError> {
        for slot in FIRST - 1..=self.tip() + 1 {
            for n in 0..ACCOUNTS {
                let at = |slot: Slot| self.versions[&slot][usize::from(n)];
                for carry in [Carry::ToTip, Carry::ToTarget { may_be_newer: false }] {
                    let carried =
                        chain.unchanged_until(buckets.of(&address(n)), slot, carry).map(|tip| tip.slot);
                    let to = if carry == Carry::ToTip { Some(self.tip()) } else { self.target };
                    // An account may be read above the finalized target. It is known to be the same at the target
                    // only if no block above the target wrote it.
                    let unchanged = to.filter(|to| {
                        let until = if slot > *to { self.tip() } else { slot };
                        self.versions.contains_key(&slot) && at(until) == at(*to)
                    });
                    prop_assert_eq!(carried, unchanged, "account {} read at {}, {:?}", n, slot, carry);
                }
            }
        }
        Ok(())
    }
}

proptest! {
    // A few cases suffice, because each of them checks the chain after every change.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn carried_accounts_equal_the_chains_state(steps in steps()) {
        let (buckets, mut writer) = (Buckets::default(), new_chain());
        let mut model = ChainModel { versions: BTreeMap::from([(FIRST, [0; 6])]), target: None };
        for step in steps {
            match step {
                ChainStep::Block { skipped, writes } => {
                    let (slot, mut versions) = (model.tip() + 1 + skipped, model.versions[&model.tip()]);
                    for n in &writes {
                        versions[usize::from(*n)] = slot;
                    }
                    model.versions.insert(slot, versions);
                    let written = writes.iter().map(|n| buckets.of(&address(*n))).collect();
                    prop_assert_eq!(writer.add(slot, written), Ok(()));
                }
                ChainStep::Finalize { behind } => {
                    let Some(slot) = model.versions.keys().rev().nth(behind).copied() else { continue };
                    prop_assert_eq!(writer.finalize(slot), Ok(()));
                    model.target = model.target.max(Some(slot));
                }
            }
            model.check(writer.chain(), &buckets)?;
        }
    }
}

fn bucket(n: u8, buckets: &Buckets) -> Bucket {
    buckets.of(&address(n))
}

#[test]
fn finalized_slot_outside_the_chain_is_a_fork() {
    let mut writer = new_chain();
    writer.add(FIRST + 2, Vec::new()).unwrap();
    assert_eq!(writer.finalize(FIRST - 1), Ok(()), "from before the chain");
    assert_eq!(writer.finalize(FIRST + 3), Ok(()), "the chain has not reached it");
    assert_eq!(writer.chain().target(), None);
    assert_eq!(writer.finalize(FIRST + 1), Err(RestartReason::Fork));
}

#[test]
fn possibly_newer_answers_are_carried_without_writes() {
    let (buckets, mut writer) = (Buckets::default(), new_chain());
    let account = bucket(1, &buckets);
    writer.add(FIRST + 1, Vec::new()).unwrap();
    writer.finalize(FIRST + 1).unwrap();
    writer.add(FIRST + 2, vec![account]).unwrap();
    let carried = |may_be_newer| {
        writer.chain().unchanged_until(account, FIRST, Carry::ToTarget { may_be_newer }).map(|tip| tip.slot)
    };
    assert_eq!((carried(false), carried(true)), (Some(FIRST + 1), None));
}

#[test]
fn late_finality_pauses_carrying_to_the_target() {
    let (buckets, mut writer) = (Buckets::default(), new_chain());
    let (written, other) = (bucket(1, &buckets), bucket(2, &buckets));
    writer.add(FIRST + 1, vec![written]).unwrap();
    writer.finalize(FIRST).unwrap();
    let blocks = MAX_PENDING_BLOCKS as u64;
    for slot in FIRST + 2..=FIRST + 1 + blocks {
        writer.add(slot, Vec::new()).unwrap();
    }
    let carry = Carry::ToTarget { may_be_newer: false };
    let carried = |writer: &ChainWriter, bucket, read| {
        writer.chain().unchanged_until(bucket, read, carry).map(|tip| tip.slot)
    };
    assert_eq!(carried(&writer, other, FIRST), None);
    writer.finalize(FIRST + 3).unwrap();
    // The write of the dropped block is not recorded as final, so answers from before this block are not
    // carried.
    assert_eq!(carried(&writer, written, FIRST), None);
    assert_eq!(carried(&writer, written, FIRST + 1), Some(FIRST + 3));
}

#[test]
fn full_chain_ends() {
    let mut writer = new_chain();
    assert_eq!(writer.add(FIRST + MAX_SLOTS - 1, Vec::new()), Ok(()));
    assert_eq!(writer.add(FIRST + MAX_SLOTS, Vec::new()), Err(RestartReason::Full));
}
