//! The random steps of the model-based test.

use super::*;

/// An event in a generated test case. After each event, all tasks run until they wait for time or a node.
#[derive(Debug, Clone)]
pub(super) enum ModelStep {
    /// Time passes.
    Wait { ms: u64 },
    /// The newest known slot of a commitment rises by `slots`.
    AdvanceFrontier { commitment: Commitment, slots: Slot },
    /// A caller asks for a block, through the cache or past it.
    Ask { query: BlockQuery, bypass: bool },
    /// An upstream call ends. `choice` picks it among the calls under way.
    NodeReply { choice: usize, answer: TestAnswer },
    /// All entries are purged.
    PurgeAll,
}

/// The outcome of an upstream call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TestAnswer {
    Block,
    Null,
    Error(i32),
    /// The node fails.
    Fault,
}

pub(super) fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    use BlockDetails::{Accounts, Full, None as Nothing, Signatures};
    use BlockEncoding::{Base64, Json, JsonParsed};
    let shapes = vec![
        (Full, Json, Some(0)),
        (Full, Json, None),
        (Full, JsonParsed, Some(0)),
        (Full, Base64, Some(0)),
        (Full, BlockEncoding::Base58, None),
        (Accounts, Json, Some(0)),
        (Signatures, Json, None),
        (Nothing, Json, None),
    ];
    let commitment = || prop_oneof![Just(Commitment::Confirmed), Just(Commitment::Finalized)];
    let around = prop_oneof![3 => Just(FINAL), 1 => Just(CONFIRMED)];
    let query = (around, -AROUND..AROUND, proptest::sample::select(shapes), any::<bool>(), commitment());
    let query = query.prop_map(|(around, offset, (details, encoding, max_version), rewards, commitment)| {
        BlockQuery {
            slot: around.saturating_add_signed(offset),
            details,
            encoding,
            rewards,
            max_version,
            commitment,
        }
    });
    let errors = vec![-32001, NOT_YET, SKIPPED, NOT_IN_STORAGE, -32014, VERSION];
    let answer = prop_oneof![
        6 => Just(TestAnswer::Block),
        4 => proptest::sample::select(errors).prop_map(TestAnswer::Error),
        1 => Just(TestAnswer::Null),
        2 => Just(TestAnswer::Fault),
    ];
    let wait = prop_oneof![3 => 0..400_u64, 3 => 0..12_000_u64, 1 => 0..70_000_u64, 1 => 0..90_000_000_u64];
    let step = prop_oneof![
        2 => wait.prop_map(|ms| ModelStep::Wait { ms }),
        2 => (commitment(), 0..4_u64)
            .prop_map(|(commitment, slots)| ModelStep::AdvanceFrontier { commitment, slots }),
        8 => (query, proptest::bool::weighted(0.03))
            .prop_map(|(query, bypass)| ModelStep::Ask { query, bypass }),
        7 => (any::<usize>(), answer).prop_map(|(choice, answer)| ModelStep::NodeReply { choice, answer }),
        1 => Just(ModelStep::PurgeAll),
    ];
    proptest::collection::vec(step, 1..60)
}
