//! Answers that are overtaken by a newer one, on their way from a node or by an entry in another form.

use super::scene::{SteppedCache, on_a_stepped_clock, options};
use super::*;
use crate::cache::CacheStatus;

const C: Commitment = Commitment::Confirmed;

/// A call that is overtaken, the text of its answer at a slot, and a question whose answer cannot serve it.
type Slow = (&'static str, Query, fn(Slot) -> String, Question);

fn parsed(method: Method, params: &str) -> Query {
    Query::parse(method, &Params::Array(Bytes::from(params.to_owned())), Profile::Node).unwrap()
}

/// The forms in which the first account is shown.
fn forms(c: Commitment) -> Vec<Slow> {
    let key = Pubkey([0; 32]);
    let alone = |config: &str| {
        parsed(Method::GetAccountInfo, &format!(r#"["{key}",{{"commitment":"{c}",{config}}}]"#))
    };
    let part = r#""encoding":"base64","dataSlice":{"offset":0,"length":3}"#;
    let sliced = |slot| truth(Account(0), C, slot).replace("AAAAAAA=", "AAAA");
    vec![
        ("list", query(List, c), |slot| truth(List, C, slot), Balance),
        ("slice", alone(part), sliced, Balance),
        ("parsed", alone(r#""encoding":"jsonParsed""#), |slot| truth(Account(0), C, slot), Balance),
        ("balance", query(Balance, c), |slot| truth(Balance, C, slot), Account(0)),
    ]
}

type Told = (Slot, CacheStatus);

/// Lands the call of this number at `slot`, and returns the answers that callers get.
async fn lands(scene: &mut SteppedCache<()>, number: usize, slot: Slot, text: String) -> Vec<Told> {
    scene.lands(number, Some((NodeReply::Result(text.into()), slot)), true);
    let answered = scene.settles().await.into_iter();
    answered.map(|(_, told)| told.map(|told| (told.meta.slot, told.status)).unwrap()).collect()
}

/// Returns a scene in which `late` is under way as call 0 for `callers`. Call 1 has shown the first account
/// at the slot that is returned.
async fn overtaken(
    late: &Query,
    by: Question,
    c: Commitment,
    callers: usize,
    bypass: bool,
) -> (SteppedCache<()>, Slot) {
    let mut scene = SteppedCache::new(|_| ());
    for _ in 0..callers {
        scene.ask((), late.clone(), options(bypass, None));
    }
    assert!(scene.settles().await.is_empty());
    assert_eq!(scene.under_way(), [0]);
    let slot = scene.at(c, 0);
    shows(&mut scene, by, c, 1, slot).await;
    (scene, slot)
}

/// Shows the first account at `slot`, by a call of this number past the cache.
async fn shows(scene: &mut SteppedCache<()>, by: Question, c: Commitment, number: usize, slot: Slot) {
    scene.ask((), query(by, c), options(true, None));
    assert!(scene.settles().await.is_empty());
    let told = lands(scene, number, slot, truth(by, c, slot)).await;
    assert_eq!(told.iter().map(|told| told.0).collect::<Vec<_>>(), [slot]);
}

#[test]
fn overtaken_answer_is_fetched_again_with_its_floor() {
    for bypass in [false, true] {
        for (name, slow, at, by) in forms(C) {
            on_a_stepped_clock(async {
                let callers = if bypass { 1 } else { 3 };
                let (mut scene, shown) = overtaken(&slow, by, C, callers, bypass).await;
                let told = lands(&mut scene, 0, shown - 1, at(shown - 1)).await;
                assert!(told.is_empty(), "{name} goes back: {told:?}");
                assert_eq!(scene.under_way(), [2], "{name}");
                assert_eq!(scene.calls[2].ask.floor, Some(shown), "{name}");
                let told = lands(&mut scene, 2, shown, at(shown)).await;
                assert_eq!(
                    told.iter().map(|told| told.0).collect::<Vec<_>>(),
                    vec![shown; callers],
                    "{name}"
                );
                assert_eq!((scene.calls.len(), scene.floor_resets()), (3, 0), "{name}");
            });
        }
    }
}

#[test]
fn unreachable_floor_falls_and_is_counted() {
    for (name, slow, at, by) in forms(C) {
        on_a_stepped_clock(async {
            let (mut scene, shown) = overtaken(&slow, by, C, 2, false).await;
            assert!(lands(&mut scene, 0, shown - 2, at(shown - 2)).await.is_empty(), "{name}");
            let told = lands(&mut scene, 2, shown - 1, at(shown - 1)).await;
            assert_eq!(told.iter().map(|told| told.0).collect::<Vec<_>>(), [shown - 1; 2], "{name}");
            assert_eq!((scene.calls.len(), scene.floor_resets()), (3, 1), "{name}");
        });
    }
}

#[test]
fn answer_overtaken_twice_is_no_error() {
    for (name, slow, at, by) in forms(C) {
        on_a_stepped_clock(async {
            let (mut scene, shown) = overtaken(&slow, by, C, 1, false).await;
            assert!(lands(&mut scene, 0, shown - 1, at(shown - 1)).await.is_empty(), "{name}");
            scene.moves_on(C, 1);
            shows(&mut scene, by, C, 3, shown + 1).await;
            let told = lands(&mut scene, 2, shown, at(shown)).await;
            assert_eq!(told.iter().map(|told| told.0).collect::<Vec<_>>(), [shown], "{name}");
            assert_eq!(
                (scene.calls.len(), scene.shown(&slow)),
                (4, shown + 1),
                "{name}: others are not shown it"
            );
        });
    }
}

#[test]
fn overtaken_list_is_assembled_of_held_accounts() {
    on_a_stepped_clock(async {
        let (mut scene, shown) = overtaken(&query(List, C), Account(0), C, 1, false).await;
        scene.ask((), query(Account(1), C), options(true, None));
        assert!(scene.settles().await.is_empty());
        lands(&mut scene, 2, shown, truth(Account(1), C, shown)).await;
        let told = lands(&mut scene, 0, shown - 1, truth(List, C, shown - 1)).await;
        assert_eq!(told.iter().map(|told| told.0).collect::<Vec<_>>(), [shown]);
        assert_eq!(scene.calls.len(), 3, "no node is asked");
    });
}

#[test]
fn overtaken_answer_at_processed_is_given() {
    for (name, slow, at, by) in forms(Commitment::Processed) {
        on_a_stepped_clock(async {
            let (mut scene, shown) = overtaken(&slow, by, Commitment::Processed, 1, false).await;
            let told = lands(&mut scene, 0, shown - 1, at(shown - 1)).await;
            assert_eq!(told.iter().map(|told| told.0).collect::<Vec<_>>(), [shown - 1], "{name}");
            assert_eq!(scene.calls.len(), 2, "{name}");
        });
    }
}

#[test]
fn vote_account_is_not_derived_from_older_list() {
    on_a_stepped_clock(async {
        let c = Commitment::Finalized;
        let votes =
            |only: &str| parsed(Method::GetVoteAccounts, &format!(r#"[{{"commitment":"{c}"{only}}}]"#));
        let one = votes(&format!(r#","votePubkey":"{}""#, Pubkey([1; 32])));
        let text = format!(r#"{{"current":[{{"votePubkey":"{}"}}],"delinquent":[]}}"#, Pubkey([1; 32]));
        let mut scene = SteppedCache::new(|_| ());
        let newest = scene.at(c, 0);
        for (number, query, slot) in [(0, &one, newest), (1, &votes(""), newest - 5)] {
            scene.ask((), query.clone(), options(false, None));
            assert!(scene.settles().await.is_empty());
            assert_eq!(lands(&mut scene, number, slot, text.clone()).await.len(), 1);
            // The entry of the first call is past its life when the second call lands.
            advance(Duration::from_secs(if number == 0 { 16 } else { 0 })).await;
        }
        scene.ask((), one, options(false, None));
        assert!(scene.settles().await.is_empty(), "the list is fresh, and older than what is held");
        let told = lands(&mut scene, 2, newest - 5, text).await;
        assert!(matches!(told[..], [(slot, CacheStatus::StaleIfError { .. })] if slot == newest), "{told:?}");
    });
}
