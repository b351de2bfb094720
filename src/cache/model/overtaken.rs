//! Answers that are overtaken: while a node's answer is on its way, a caller gets the same account at a
//! higher slot.

use super::questions::parse_query;
use super::*;
use crate::cache::CacheStatus;
use Question::{Account, Balance, List};

const C: Commitment = Commitment::Confirmed;

/// A call during which another caller gets the same account at a higher slot.
struct SlowCall {
    name: &'static str,
    query: Query,
    /// Returns the text of a node's answer to the call at a given slot.
    result_at: fn(Slot) -> String,
    /// Another caller's question, which is answered while the call is under way. Its answer shows the same
    /// account, and cannot serve the call.
    overtaken_by: Question,
}

/// Returns four calls at commitment `c`. Each shows account 0 in another form: in a list, as a slice, parsed,
/// and as a balance.
fn slow_calls(c: Commitment) -> [SlowCall; 4] {
    let key = Pubkey([0; 32]);
    let alone = |config: &str| {
        parse_query(Method::GetAccountInfo, &format!(r#"["{key}",{{"commitment":"{c}",{config}}}]"#))
    };
    let part = r#""encoding":"base64","dataSlice":{"offset":0,"length":3}"#;
    [
        SlowCall {
            name: "list",
            query: List.at(c).query(),
            result_at: |slot| List.at(C).result_at(slot),
            overtaken_by: Balance,
        },
        SlowCall {
            name: "slice",
            query: alone(part),
            result_at: |slot| Account(0).at(C).result_at(slot).replace("AAAAAAA=", "AAAA"),
            overtaken_by: Balance,
        },
        SlowCall {
            name: "parsed",
            query: alone(r#""encoding":"jsonParsed""#),
            result_at: |slot| Account(0).at(C).result_at(slot),
            overtaken_by: Balance,
        },
        SlowCall {
            name: "balance",
            query: Balance.at(c).query(),
            result_at: |slot| Balance.at(C).result_at(slot),
            overtaken_by: Account(0),
        },
    ]
}

/// The slot and status of an answer.
type SlotAndStatus = (Slot, CacheStatus);

/// Answers the upstream call with this number with `text` at `slot`. Returns the slots and statuses of the answers
/// that callers then get.
async fn answer_call(
    cache: &mut SteppedCache<()>,
    number: usize,
    slot: Slot,
    text: String,
) -> Vec<SlotAndStatus> {
    cache.answer_call(number, NodeReply::Result(text.into()), slot);
    let answers = cache.settle().await.into_iter().map(|answered| answered.answer.unwrap());
    answers.map(|answer| (answer.meta.slot, answer.status)).collect()
}

fn slots(answers: &[SlotAndStatus]) -> Vec<Slot> {
    answers.iter().map(|(slot, _)| *slot).collect()
}

/// Returns a cache with two upstream calls, and a slot. Upstream call 0 is under way: a number of `callers` wait
/// for its answer to the query of `late`. Upstream call 1 has ended, and has shown account 0 at the returned slot.
/// `bypass` is true if the callers who wait bypass the cache.
async fn overtaken(late: &SlowCall, c: Commitment, callers: usize, bypass: bool) -> (SteppedCache<()>, Slot) {
    let mut cache = SteppedCache::new(|_| ());
    for _ in 0..callers {
        cache.ask((), late.query.clone(), options(bypass, None));
    }
    assert!(cache.settle().await.is_empty());
    assert_eq!(cache.calls_under_way(), [0]);
    let slot = cache.slot_behind(c, 0);
    show(&mut cache, late.overtaken_by.at(c), 1, slot).await;
    (cache, slot)
}

/// Shows the accounts of `query` at `slot` to a caller who bypasses the cache. `number` is the number of the
/// upstream call.
async fn show(cache: &mut SteppedCache<()>, query: TestQuery, number: usize, slot: Slot) {
    cache.ask((), query.query(), options(true, None));
    assert!(cache.settle().await.is_empty());
    let answers = answer_call(cache, number, slot, query.result_at(slot)).await;
    assert_eq!(slots(&answers), [slot]);
}

#[test]
fn overtaken_answer_is_fetched_again_with_its_floor() {
    for bypass in [false, true] {
        for slow in slow_calls(C) {
            let (name, result_at) = (slow.name, slow.result_at);
            on_a_stepped_clock(async {
                let callers = if bypass { 1 } else { 3 };
                let (mut cache, shown) = overtaken(&slow, C, callers, bypass).await;
                let answers = answer_call(&mut cache, 0, shown - 1, result_at(shown - 1)).await;
                assert!(answers.is_empty(), "{name} goes back: {answers:?}");
                assert_eq!(cache.calls_under_way(), [2], "{name}");
                assert_eq!(cache.calls[2].request.min_slot, Some(shown), "{name}");
                let answers = answer_call(&mut cache, 2, shown, result_at(shown)).await;
                assert_eq!(slots(&answers), vec![shown; callers], "{name}");
                assert_eq!((cache.calls.len(), cache.floor_resets()), (3, 0), "{name}");
            });
        }
    }
}

#[test]
fn unreachable_floor_falls_and_is_counted() {
    for slow in slow_calls(C) {
        let (name, result_at) = (slow.name, slow.result_at);
        on_a_stepped_clock(async {
            let (mut cache, shown) = overtaken(&slow, C, 2, false).await;
            assert!(answer_call(&mut cache, 0, shown - 2, result_at(shown - 2)).await.is_empty(), "{name}");
            let answers = answer_call(&mut cache, 2, shown - 1, result_at(shown - 1)).await;
            assert_eq!(slots(&answers), [shown - 1; 2], "{name}");
            assert_eq!((cache.calls.len(), cache.floor_resets()), (3, 1), "{name}");
        });
    }
}

#[test]
fn answer_overtaken_twice_is_no_error() {
    for slow in slow_calls(C) {
        let (name, result_at) = (slow.name, slow.result_at);
        on_a_stepped_clock(async {
            let (mut cache, shown) = overtaken(&slow, C, 1, false).await;
            assert!(answer_call(&mut cache, 0, shown - 1, result_at(shown - 1)).await.is_empty(), "{name}");
            cache.advance_frontier(C, 1);
            show(&mut cache, slow.overtaken_by.at(C), 3, shown + 1).await;
            let answers = answer_call(&mut cache, 2, shown, result_at(shown)).await;
            assert_eq!(slots(&answers), [shown], "{name}");
            let floor = cache.floor(&slow.query);
            assert_eq!((cache.calls.len(), floor), (4, shown + 1), "{name}: the floor stays");
        });
    }
}

#[test]
fn overtaken_list_is_assembled_of_stored_accounts() {
    on_a_stepped_clock(async {
        let [list, ..] = slow_calls(C);
        let list = SlowCall { overtaken_by: Account(0), ..list };
        let (mut cache, shown) = overtaken(&list, C, 1, false).await;
        show(&mut cache, Account(1).at(C), 2, shown).await;
        let answers = answer_call(&mut cache, 0, shown - 1, (list.result_at)(shown - 1)).await;
        assert_eq!(slots(&answers), [shown]);
        assert_eq!(cache.calls.len(), 3, "no node is asked");
    });
}

#[test]
fn overtaken_answer_at_processed_is_given() {
    for slow in slow_calls(Commitment::Processed) {
        let (name, result_at) = (slow.name, slow.result_at);
        on_a_stepped_clock(async {
            let (mut cache, shown) = overtaken(&slow, Commitment::Processed, 1, false).await;
            let answers = answer_call(&mut cache, 0, shown - 1, result_at(shown - 1)).await;
            assert_eq!(slots(&answers), [shown - 1], "{name}");
            assert_eq!(cache.calls.len(), 2, "{name}");
        });
    }
}

#[test]
fn vote_account_is_not_derived_from_older_list() {
    on_a_stepped_clock(async {
        let c = Commitment::Finalized;
        let votes =
            |only: &str| parse_query(Method::GetVoteAccounts, &format!(r#"[{{"commitment":"{c}"{only}}}]"#));
        let one = votes(&format!(r#","votePubkey":"{}""#, Pubkey([1; 32])));
        let text = format!(r#"{{"current":[{{"votePubkey":"{}"}}],"delinquent":[]}}"#, Pubkey([1; 32]));
        let mut cache = SteppedCache::new(|_| ());
        let newest = cache.slot_behind(c, 0);
        for (number, query, slot) in [(0, &one, newest), (1, &votes(""), newest - 5)] {
            if number > 0 {
                // When the second call is answered, the first call's entry may be served only if no node
                // answers.
                advance(AnswerBounds::of_vote_accounts(c).past_stretched_ttl()).await;
            }
            cache.ask((), query.clone(), options(false, None));
            assert!(cache.settle().await.is_empty());
            assert_eq!(answer_call(&mut cache, number, slot, text.clone()).await.len(), 1);
        }
        cache.ask((), one, options(false, None));
        assert!(
            cache.settle().await.is_empty(),
            "a node is asked, because the fresh list is older than the stored account"
        );
        let answers = answer_call(&mut cache, 2, newest - 5, text).await;
        let is_stored = matches!(answers[..], [(slot, CacheStatus::StaleIfError { .. })] if slot == newest);
        assert!(is_stored, "{answers:?}");
    });
}
