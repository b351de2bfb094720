//! Tests of carried accounts with fixed sequences of steps.

use super::*;

/// Asks the cache, and returns the answer's status and slot. A call that goes to a node is answered from the
/// newest block.
async fn ask(
    model: &mut CarryModel,
    question: AccountQuestion,
    commitment: Commitment,
) -> (CacheStatus, Slot) {
    let query = question.query(commitment, None);
    model.cache.ask(TestCall { question, commitment }, query, options(false, None));
    let mut answered = model.cache.settle().await;
    while answered.is_empty() {
        for number in model.cache.calls_under_way() {
            model.answer(number, 0, false);
        }
        answered = model.cache.settle().await;
    }
    let answer = answered.remove(0).answer.unwrap();
    (answer.status, answer.meta.slot)
}

fn block(writes: &[u8]) -> ModelStep {
    ModelStep::Block { skipped: 0, writes: writes.to_vec() }
}

#[test]
fn unwritten_account_is_carried_for_minutes() {
    on_a_stepped_clock(async {
        let mut model = CarryModel::new();
        let question = Single { account: TOKEN, parsed: false };
        let (first, _) = ask(&mut model, question, Commitment::Confirmed).await;
        assert!(matches!(first, CacheStatus::Forwarded { .. }), "{first:?}");
        for _ in 0..400 {
            model.apply(block(&[CLOCKED]));
            model.follow(1);
            advance(Duration::from_millis(400)).await;
            let newest = model.newest_slot(Commitment::Confirmed);
            let answer = ask(&mut model, question, Commitment::Confirmed).await;
            assert_eq!(answer, (CacheStatus::Carried, newest));
        }
        assert_eq!(model.cache.calls.len(), 1);
        model.apply(block(&[TOKEN]));
        model.follow(1);
        advance(Duration::from_secs(2)).await;
        let (written, _) = ask(&mut model, question, Commitment::Confirmed).await;
        assert!(matches!(written, CacheStatus::Forwarded { .. }), "{written:?}");
    });
}

#[test]
fn carried_account_is_fetched_again_after_max_carry() {
    on_a_stepped_clock(async {
        let mut model = CarryModel::new();
        let question = Single { account: TOKEN, parsed: false };
        for (minutes, commitment, is_carried) in [
            (0, Commitment::Confirmed, false),
            (9, Commitment::Confirmed, true),
            // The other commitment's entry is no younger.
            (2, Commitment::Finalized, false),
            (0, Commitment::Confirmed, true),
            (11, Commitment::Confirmed, false),
        ] {
            advance(Duration::from_mins(minutes)).await;
            for _ in 0..3 {
                model.apply(block(&[]));
            }
            model.apply(ModelStep::Finalize { behind: 1 });
            model.follow(usize::MAX);
            let (status, _) = ask(&mut model, question, commitment).await;
            assert_eq!(status == CacheStatus::Carried, is_carried, "{minutes} min, {commitment}: {status:?}");
        }
    });
}

#[test]
fn answer_at_confirmed_serves_finalized_once_final() {
    for question in [List { list: 0, parsed: false }, Single { account: TOKEN, parsed: true }] {
        on_a_stepped_clock(async {
            let mut model = CarryModel::new();
            let (_, read) = ask(&mut model, question, Commitment::Confirmed).await;
            for _ in 0..9 {
                model.apply(block(&[]));
            }
            model.apply(ModelStep::Finalize { behind: 3 });
            model.follow(usize::MAX);
            let finalized = model.newest_slot(Commitment::Finalized);
            assert!(finalized > read);
            let answer = ask(&mut model, question, Commitment::Finalized).await;
            assert_eq!(answer, (CacheStatus::Carried, finalized), "{question:?}");
            assert_eq!(model.cache.calls.len(), 1);
        });
    }
}

#[test]
fn accounts_that_change_unseen_are_not_carried() {
    for question in [
        Single { account: UNSEEN, parsed: false },
        Single { account: CLOCKED, parsed: true },
        List { list: 2, parsed: false },
        Balance { account: CLOCKED },
        // A balance does not show the account's owner, so the account could be one of Token-2022.
        Balance { account: TOKEN },
    ] {
        on_a_stepped_clock(async {
            let mut model = CarryModel::new();
            ask(&mut model, question, Commitment::Confirmed).await;
            model.apply(block(&[]));
            model.follow(1);
            advance(Duration::from_secs(2)).await;
            model.chain.renew();
            let (status, _) = ask(&mut model, question, Commitment::Confirmed).await;
            assert!(matches!(status, CacheStatus::Forwarded { .. }), "{question:?}: {status:?}");
        });
    }
}

#[test]
fn balance_is_carried_once_its_owner_is_known() {
    on_a_stepped_clock(async {
        let mut model = CarryModel::new();
        ask(&mut model, Balance { account: TOKEN }, Commitment::Confirmed).await;
        ask(&mut model, Single { account: TOKEN, parsed: true }, Commitment::Confirmed).await;
        model.apply(block(&[]));
        model.follow(1);
        advance(Duration::from_secs(2)).await;
        model.chain.renew();
        let (status, _) = ask(&mut model, Balance { account: TOKEN }, Commitment::Confirmed).await;
        assert_eq!(status, CacheStatus::Carried);
    });
}

#[test]
fn carried_accounts_are_not_mixed_into_lower_lists() {
    on_a_stepped_clock(async {
        let mut model = CarryModel::new();
        let token = Single { account: TOKEN, parsed: false };
        ask(&mut model, token, Commitment::Confirmed).await;
        model.apply(block(&[CLOCKED]));
        model.follow(1);
        // A node that lags behind answers with the account from before the write.
        let clocked = Single { account: CLOCKED, parsed: false };
        let query = clocked.query(Commitment::Confirmed, None);
        let call = TestCall { question: clocked, commitment: Commitment::Confirmed };
        model.cache.ask(call, query, options(false, None));
        model.cache.settle().await;
        model.answer(model.cache.calls_under_way()[0], 1, false);
        model.cache.settle().await;
        let (status, carried_to) = ask(&mut model, token, Commitment::Confirmed).await;
        assert_eq!(status, CacheStatus::Carried);
        let list = List { list: 4, parsed: false };
        let (status, slot) = ask(&mut model, list, Commitment::Confirmed).await;
        assert!(matches!(status, CacheStatus::Forwarded { .. }), "{status:?}");
        assert_eq!(slot, carried_to);
    });
}

#[test]
fn purged_account_is_not_carried() {
    on_a_stepped_clock(async {
        let mut model = CarryModel::new();
        let question = Single { account: TOKEN, parsed: false };
        ask(&mut model, question, Commitment::Confirmed).await;
        model.apply(ModelStep::Purge { account: TOKEN });
        let (status, _) = ask(&mut model, question, Commitment::Finalized).await;
        assert!(matches!(status, CacheStatus::Forwarded { .. }), "{status:?}");
    });
}

#[test]
fn lists_wait_for_a_tip_that_is_near() {
    for (behind, arrives) in [(2, true), (2, false), (3, false)] {
        on_a_stepped_clock(async {
            let mut model = CarryModel::new();
            let (list, other) = (List { list: 0, parsed: false }, List { list: 4, parsed: false });
            ask(&mut model, list, Commitment::Confirmed).await;
            // The follower has not read these blocks yet. A node's answer to `other` shows `TOKEN`, which `list`
            // also contains, at the newest of these blocks.
            for _ in 0..behind {
                model.apply(block(&[CLOCKED]));
            }
            let newest = model.newest_slot(Commitment::Confirmed);
            let (_, shown) = ask(&mut model, other, Commitment::Confirmed).await;
            assert_eq!(shown, newest);
            let call = TestCall { question: list, commitment: Commitment::Confirmed };
            model.cache.ask(call, list.query(Commitment::Confirmed, None), options(false, None));
            assert!(model.cache.settle().await.is_empty());
            assert_eq!(
                model.cache.calls.len(),
                if behind > 2 { 3 } else { 2 },
                "a far tip is not waited for"
            );
            if arrives {
                model.follow(usize::MAX);
                let answer = model.cache.settle().await.remove(0).answer.unwrap();
                assert_eq!((answer.status, answer.meta.slot), (CacheStatus::Carried, newest));
            } else {
                advance(Duration::from_millis(201)).await;
                assert!(model.cache.settle().await.is_empty());
            }
            assert_eq!(model.cache.calls.len(), if arrives { 2 } else { 3 });
        });
    }
}

#[test]
fn written_accounts_are_not_waited_for() {
    on_a_stepped_clock(async {
        let mut model = CarryModel::new();
        let (list, other) = (List { list: 0, parsed: false }, List { list: 4, parsed: false });
        ask(&mut model, list, Commitment::Confirmed).await;
        model.apply(block(&[PLAIN]));
        model.follow(1);
        // The follower has not read this block yet. A node's answer to `other` shows `TOKEN`, which `list` also
        // contains, at the slot of this block.
        model.apply(block(&[]));
        ask(&mut model, other, Commitment::Confirmed).await;
        let call = TestCall { question: list, commitment: Commitment::Confirmed };
        model.cache.ask(call, list.query(Commitment::Confirmed, None), options(false, None));
        assert!(model.cache.settle().await.is_empty());
        assert_eq!(model.cache.calls.len(), 3, "the tip would not help");
    });
}

#[test]
fn refetch_prefers_nodes_past_the_last_write() {
    for commitment in [Commitment::Confirmed, Commitment::Finalized] {
        on_a_stepped_clock(async {
            let mut model = CarryModel::new();
            let question = Single { account: TOKEN, parsed: false };
            ask(&mut model, question, commitment).await;
            model.apply(block(&[TOKEN]));
            let written = model.newest_slot(Commitment::Confirmed);
            model.apply(block(&[]));
            model.follow(2);
            advance(Duration::from_mins(1)).await;
            model.cache.ask(
                TestCall { question, commitment },
                question.query(commitment, None),
                options(false, None),
            );
            model.cache.settle().await;
            let expected = (commitment == Commitment::Confirmed).then_some(written);
            assert_eq!(model.cache.calls[1].request.prefer, expected, "{commitment:?}");
        });
    }
}

#[test]
fn shadow_mode_counts_what_it_would_carry() {
    on_a_stepped_clock(async {
        let mut model = CarryModel::in_mode(FollowMode::Shadow);
        let question = Single { account: TOKEN, parsed: false };
        for (writes, expected) in [(&[][..], 0), (&[], 1), (&[TOKEN], 1), (&[CLOCKED], 2)] {
            model.apply(block(writes));
            model.follow(1);
            advance(Duration::from_mins(1)).await;
            model.chain.renew();
            let (status, _) = ask(&mut model, question, Commitment::Confirmed).await;
            assert!(matches!(status, CacheStatus::Forwarded { .. }), "{status:?}");
            assert_eq!(model.cache.carried_accounts(), expected, "after a write of {writes:?}");
        }
    });
}
