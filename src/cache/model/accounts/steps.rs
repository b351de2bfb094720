//! The random steps of the model-based test.

use super::*;

/// An event in a generated test case. After each event, all tasks run until they wait for time or a node.
#[derive(Debug, Clone)]
pub(super) enum ModelStep {
    /// Time passes.
    Wait { ms: u64 },
    /// The newest known slot of a commitment rises by `slots`.
    AdvanceFrontier { commitment: Commitment, slots: Slot },
    /// A caller asks.
    Ask { call: TestCall, conditions: Conditions },
    /// A node answers a call under way, at the slot `behind` slots below the newest known one. `choice` picks
    /// the call.
    NodeReply { choice: usize, behind: i64 },
    /// A node fails to answer a call under way. `choice` picks the call.
    NodeFailure { choice: usize },
    /// All entries are purged.
    PurgeAll,
    /// The entries of one account are purged.
    PurgeAccount { account: u8 },
}

/// The conditions that a caller sets for its answer. Slots are given as distances below the newest known slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Conditions {
    /// The caller's minContextSlot, in slots below the newest known slot.
    pub(super) min_behind: Option<i64>,
    /// The highest slot that was shown to the caller's key, in slots below the newest known slot.
    pub(super) floor_behind: Option<i64>,
    /// True if the caller bypasses the cache.
    pub(super) bypass: bool,
}

/// The cache settings of a generated test case.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) assemble: Assemble,
}

pub(super) fn settings() -> impl Strategy<Value = Settings> {
    let assemble = prop_oneof![
        3 => Just(Assemble::SameSlot),
        1 => Just(Assemble::Off),
    ];
    assemble.prop_map(|assemble| Settings { assemble })
}

/// Returns a generator of random steps. Each sequence uses few forms and commitments, so that later calls find
/// entries that earlier calls have stored.
pub(super) fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let slice = |offset, length| DataSlice { offset, length };
    let slices = vec![slice(1, 3), slice(0, 200), slice(150, u64::MAX)];
    let form = (
        proptest::sample::select(AccountEncoding::ALL.to_vec()),
        proptest::option::weighted(0.4, proptest::sample::select(slices)),
    );
    let form = form.prop_map(|(encoding, slice)| AccountForm { encoding, slice });
    let commitment = proptest::sample::select(Commitment::ALL.to_vec());
    let about = (proptest::collection::vec(form, 1..4), proptest::collection::vec(commitment, 1..3));
    about.prop_flat_map(|(forms, commitments)| steps_about(&forms, &commitments))
}

fn steps_about(
    forms: &[AccountForm],
    commitments: &[Commitment],
) -> impl Strategy<Value = Vec<ModelStep>> + use<> {
    let (form, commitments) = (proptest::sample::select(forms.to_vec()), commitments.to_vec());
    let commitment = || proptest::sample::select(commitments.clone());
    let accounts = prop_oneof![
        3 => (0..ACCOUNTS).prop_map(|n| (vec![n], false)),
        2 => proptest::sample::select(LISTS.to_vec()).prop_map(|list| (list.to_vec(), true)),
    ];
    let call = (accounts, form, commitment()).prop_map(|((accounts, list), form, commitment)| TestCall {
        accounts,
        list,
        form,
        commitment,
    });
    let slot = |from: i64| proptest::option::weighted(0.1, from..16);
    // The slot of `floor_behind` was shown to the caller's key before, so it is never above the newest known
    // slot.
    let conditions = (slot(-6), slot(0), proptest::bool::weighted(0.05))
        .prop_map(|(min_behind, floor_behind, bypass)| Conditions { min_behind, floor_behind, bypass });
    let behind = prop_oneof![12 => -2..6_i64, 2 => 6..40_i64, 1 => -80..-60_i64];
    let reply = (any::<usize>(), proptest::option::weighted(0.85, behind));
    let step = prop_oneof![
        3 => prop_oneof![0..300_u64, 0..1_000_u64, 0..6_000_u64, 0..70_000_u64]
            .prop_map(|ms| ModelStep::Wait { ms }),
        2 => (commitment(), 0..4_u64)
            .prop_map(|(commitment, slots)| ModelStep::AdvanceFrontier { commitment, slots }),
        8 => (call, conditions).prop_map(|(call, conditions)| ModelStep::Ask { call, conditions }),
        7 => reply.prop_map(|(choice, behind)| match behind {
            Some(behind) => ModelStep::NodeReply { choice, behind },
            None => ModelStep::NodeFailure { choice },
        }),
        1 => Just(ModelStep::PurgeAll),
        1 => (0..ACCOUNTS).prop_map(|account| ModelStep::PurgeAccount { account }),
    ];
    proptest::collection::vec(step, 1..60)
}
