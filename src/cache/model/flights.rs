//! The most flights that one call needs.

use super::*;
use Question::Account;

const C: Commitment = Commitment::Confirmed;

/// Longer than an account at confirmed may be served, also during a refetch.
const TOO_LONG: Duration = Duration::from_millis(1_300);

#[test]
fn fourth_flight_begins_after_a_caller_who_joined_three() {
    on_a_stepped_clock(async {
        let mut cache = SteppedCache::new(|_| ());
        let slot = cache.slot_behind(C, 0) + 3;
        let question = |min_slot| Account(0).at(C).query().with_min_context_slot(min_slot);
        macro_rules! ask {
            ($name:literal, $min_slot:expr, $under_way:expr) => {
                cache.ask($name, question($min_slot), options(false, None));
                assert!(cache.settle().await.is_empty(), "{}", $name);
                assert_eq!(cache.calls_under_way(), $under_way, "{}", $name);
            };
        }
        macro_rules! answer {
            ($number:literal, $answered:literal, $under_way:expr) => {
                advance(TOO_LONG).await;
                let text = Account(0).at(C).result_at(slot);
                cache.answer_call($number, NodeReply::Result(text.into()), slot);
                let answered = cache.settle().await;
                let names: Vec<_> = answered.iter().map(|answered| answered.caller.call).collect();
                assert_eq!(names, [$answered]);
                let sent_at = answered[0].answer.as_ref().unwrap().meta.sent_at;
                assert!(sent_at >= answered[0].caller.asked_at, "{}: a node was asked before", $answered);
                assert_eq!(cache.calls_under_way(), $under_way, "after {}", $answered);
            };
        }
        // No node has reached the slot, so the node is asked with it.
        ask!("early", Some(slot), [0]);
        cache.advance_frontier(C, 3);
        ask!("first", None, [0, 1]);
        advance(Duration::from_millis(1)).await;
        // Joins the flight of the first caller. Its answer is too old then, so this caller starts a second flight.
        ask!("second", Some(slot), [0, 1]);
        answer!(1, "first", [0, 2]);
        advance(TOO_LONG).await;
        ask!("third", None, [0, 2, 3]);
        advance(Duration::from_millis(1)).await;
        // Joins the flights of the third, the second and the early caller, which all began before.
        ask!("last", Some(slot), [0, 2, 3]);
        answer!(3, "third", [0, 2]);
        answer!(2, "second", [0]);
        answer!(0, "early", [4]);
        answer!(4, "last", [0_usize; 0]);
    });
}
