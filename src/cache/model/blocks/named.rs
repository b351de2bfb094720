//! Tests with fixed sequences of steps. Some of these sequences have revealed a fault. Random tests rarely
//! generate the others.

use super::*;
use BlockDetails::{Full, Signatures};
use BlockEncoding::{Base64, Json, JsonParsed};
use Commitment::{Confirmed, Finalized};

fn block(slot: Slot, details: BlockDetails, encoding: BlockEncoding, commitment: Commitment) -> BlockQuery {
    BlockQuery { slot, details, encoding, rewards: true, max_version: None, commitment }
}

/// Returns the step in which a caller asks for a block.
fn ask(query: BlockQuery) -> ModelStep {
    ModelStep::Ask { query, bypass: false }
}

/// Returns the step in which a node answers the oldest call under way.
fn reply(answer: TestAnswer) -> ModelStep {
    ModelStep::NodeReply { choice: 0, answer }
}

fn wait(time: Duration) -> ModelStep {
    ModelStep::Wait { ms: bounds::millis(time) }
}

#[test]
fn missing_block_is_fetched_once_the_frontier_arrives() {
    let query = block(CONFIRMED + 1, Full, Json, Confirmed);
    let arrives = ModelStep::AdvanceFrontier { commitment: Confirmed, slots: 1 };
    let not_yet = reply(TestAnswer::Error(NOT_YET));
    run(vec![ask(query), not_yet, ask(query), arrives, ask(query)]).unwrap();
}

#[test]
fn derived_block_is_as_old_as_its_source() {
    let life = EntryLife::of_confirmed_block().fresh;
    let derived = || ask(block(CONFIRMED, Signatures, Json, Confirmed));
    let steps = vec![
        ask(block(CONFIRMED, Full, Json, Confirmed)),
        reply(TestAnswer::Block),
        wait(life.mul_f64(0.6)),
        derived(),
        // The stored block from which the second block was derived has expired by now. The derived block must
        // expire with it, although it was made later.
        wait(life.mul_f64(0.5)),
        derived(),
    ];
    run(steps).unwrap();
}

#[test]
fn stored_block_comes_before_its_absence() {
    let in_base64 = || ask(block(FINAL, Full, Base64, Finalized));
    let steps = vec![
        in_base64(),
        reply(TestAnswer::Block),
        // jsonParsed cannot be made from the stored base64 block, and the node that is asked for it has lost the
        // block.
        ask(block(FINAL, Full, JsonParsed, Finalized)),
        reply(TestAnswer::Error(SKIPPED)),
        in_base64(),
    ];
    run(steps).unwrap();
}
