//! Answers that take long to write wait for a permit, while time and slots pass.

use super::scene::{SteppedCache, on_a_stepped_clock, options};
use super::*;
use crate::cache::{CacheAnswer, CacheStatus};
use crate::error::Error;

/// The bytes of each account. Each is fetched whole, and together they are too long for an async worker.
const SPACE: usize = 64 * 1024;
const ACCOUNTS: u8 = 8;

/// Returns a call of `method` with these params, at a commitment.
fn call(method: Method, params: &str, config: &str, commitment: Commitment) -> Query {
    let params = format!(r#"[{params}{{"commitment":"{commitment}"{config}}}]"#);
    Query::parse(method, &Params::Array(Bytes::from(params)), Profile::Node).unwrap()
}

/// Returns the call for a long list.
fn list(encoding: &str, commitment: Commitment) -> Query {
    let keys: Vec<_> = (0..ACCOUNTS).map(|n| format!("\"{}\"", Pubkey([n; 32]))).collect();
    let params = format!("[{}],", keys.join(","));
    call(Method::GetMultipleAccounts, &params, &format!(r#","encoding":"{encoding}""#), commitment)
}

fn list_at(slot: Slot) -> NodeReply {
    let data = BASE64.encode(vec![7; SPACE]);
    let value = format!(
        r#"{{"data":["{data}","base64"],"executable":false,"lamports":1,"owner":"{}","rentEpoch":0,"space":{SPACE}}}"#,
        Pubkey([0; 32])
    );
    let values = vec![value; ACCOUNTS.into()].join(",");
    NodeReply::Result(format!(r#"{{"context":{{"slot":{slot}}},"value":[{values}]}}"#).into())
}

type Told = Result<CacheAnswer, Error>;

/// Returns the one answer that a caller got by now.
async fn answer(scene: &mut SteppedCache<()>) -> Option<Told> {
    let mut answered = scene.settles().await;
    // Work beside the async workers takes real time, while the test's clock stands still.
    for _ in 0..1000 {
        if !answered.is_empty() {
            break;
        }
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1))).await.unwrap();
        answered = scene.settles().await;
    }
    assert!(answered.len() <= 1);
    answered.pop().map(|(_, answer)| answer)
}

/// Returns a scene in which the long list is held at the newest slot.
async fn with_a_long_list(commitment: Commitment) -> SteppedCache<()> {
    let mut scene = SteppedCache::new(|_| ());
    scene.ask((), list("base64", commitment), options(false, None));
    lands(&mut scene, commitment, 0).await;
    scene
}

/// Lands the call of this number at the newest slot.
async fn lands(scene: &mut SteppedCache<()>, commitment: Commitment, number: usize) -> Slot {
    assert!(scene.settles().await.is_empty());
    let slot = scene.at(commitment, 0);
    scene.lands(number, Some((list_at(slot), slot)), true);
    let told = answer(scene).await.unwrap().unwrap();
    assert_eq!(told.meta.slot, slot);
    slot
}

#[test]
fn hit_is_checked_again_after_its_wait() {
    for (name, wait, slots) in [("time", 401, 0), ("slots", 1, 2)] {
        on_a_stepped_clock(async {
            let mut scene = with_a_long_list(Commitment::Processed).await;
            let turns = scene.takes_all_turns().await;
            scene.ask((), list("base64+zstd", Commitment::Processed), options(false, None));
            assert!(scene.settles().await.is_empty(), "{name}");
            advance(Duration::from_millis(wait)).await;
            scene.moves_on(Commitment::Processed, slots);
            drop(turns);
            // The entry is too old by then, so a node is asked, and the caller gets its answer.
            assert!(answer_or_call(&mut scene, 1).await.is_none(), "{name}");
            assert_eq!(scene.under_way(), [1], "{name}");
            let slot = lands(&mut scene, Commitment::Processed, 1).await;
            assert_eq!(slot, FIRST + slots, "{name}");
        });
    }
}

/// Returns the caller's answer, unless more than `calls` calls are sent first.
async fn answer_or_call(scene: &mut SteppedCache<()>, calls: usize) -> Option<Told> {
    for _ in 0..1000 {
        let answered = scene.settles().await.pop();
        if answered.is_some() || scene.calls.len() > calls {
            return answered.map(|(_, answer)| answer);
        }
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1))).await.unwrap();
    }
    None
}

#[test]
fn deadline_ends_the_wait_for_a_permit() {
    for commitment in [Commitment::Processed, Commitment::Finalized] {
        on_a_stepped_clock(async {
            let mut scene = with_a_long_list(commitment).await;
            let turns = scene.takes_all_turns().await;
            scene.ask((), list("base64+zstd", commitment), options(false, None));
            assert!(scene.settles().await.is_empty());
            advance(Duration::from_secs(31)).await;
            let told = scene.settles().await.pop().map(|(_, told)| told.map(|_| ()));
            assert!(matches!(told, Some(Err(Error::TimedOut(_)))), "{commitment}: {told:?}");
            drop(turns);
        });
    }
}

#[test]
fn stale_hit_is_refetched_while_it_waits() {
    on_a_stepped_clock(async {
        let mut scene = with_a_long_list(Commitment::Confirmed).await;
        scene.moves_on(Commitment::Confirmed, 3);
        let turns = scene.takes_all_turns().await;
        scene.ask((), list("base64+zstd", Commitment::Confirmed), options(false, None));
        assert!(scene.settles().await.is_empty());
        assert_eq!(scene.under_way(), [1]);
        drop(turns);
    });
}

#[test]
fn waiting_hit_is_not_behind_a_newer_answer() {
    on_a_stepped_clock(async {
        let mut scene = with_a_long_list(Commitment::Confirmed).await;
        let turns = scene.takes_all_turns().await;
        scene.ask((), list("base64+zstd", Commitment::Confirmed), options(false, None));
        assert!(scene.settles().await.is_empty());
        scene.moves_on(Commitment::Confirmed, 1);
        scene.ask((), list("base64", Commitment::Confirmed), options(true, None));
        let newer = lands(&mut scene, Commitment::Confirmed, 1).await;
        drop(turns);
        assert_eq!(answer(&mut scene).await.unwrap().unwrap().meta.slot, newer);
        assert_eq!(scene.calls.len(), 2, "what is kept serves");
    });
}

/// Returns a scene in which all vote accounts are held as one long text, and the call for one of them.
async fn with_vote_accounts() -> (SteppedCache<()>, Query) {
    let mut scene = SteppedCache::new(|_| ());
    let more = "x".repeat(usize::from(ACCOUNTS) * SPACE);
    let vote = format!(r#"{{"votePubkey":"{}","more":"{more}"}}"#, Pubkey([1; 32]));
    let all = NodeReply::Result(format!(r#"{{"current":[{vote}],"delinquent":[]}}"#).into());
    scene.ask((), call(Method::GetVoteAccounts, "", "", Commitment::Processed), options(false, None));
    assert!(scene.settles().await.is_empty());
    scene.lands(0, Some((all, FIRST)), true);
    assert!(answer(&mut scene).await.unwrap().is_ok());
    let config = format!(r#","votePubkey":"{}""#, Pubkey([1; 32]));
    (scene, call(Method::GetVoteAccounts, "", &config, Commitment::Processed))
}

#[test]
fn derivation_is_checked_again_after_its_wait() {
    on_a_stepped_clock(async {
        let (mut scene, only) = with_vote_accounts().await;
        advance(Duration::from_millis(970)).await;
        let turns = scene.takes_all_turns().await;
        scene.ask((), only, options(false, None));
        assert!(scene.settles().await.is_empty());
        assert!(scene.under_way().is_empty(), "it waits for its turn");
        advance(Duration::from_millis(40)).await;
        drop(turns);
        assert!(answer_or_call(&mut scene, 1).await.is_none());
        assert_eq!(scene.under_way(), [1], "a node is asked");
    });
}

#[test]
fn flight_without_a_permit_asks_a_node() {
    on_a_stepped_clock(async {
        let (mut scene, only) = with_vote_accounts().await;
        let turns = scene.takes_all_turns().await;
        scene.ask((), only, options(false, None));
        assert!(scene.settles().await.is_empty());
        assert!(scene.under_way().is_empty(), "it waits for its turn");
        advance(Duration::from_millis(101)).await;
        assert!(scene.settles().await.is_empty());
        assert_eq!(scene.under_way(), [1]);
        drop(turns);
    });
}

/// Checks that an answer that came too late is fetched a second time, and never a third time.
#[test]
fn late_answer_is_fetched_once_more() {
    for (commitment, over) in [(Commitment::Processed, 401), (Commitment::Finalized, 8_000)] {
        on_a_stepped_clock(async {
            let mut scene = SteppedCache::new(|_| ());
            // Parsed accounts are fetched whole, and sliced by the cache.
            let parts = r#"jsonParsed","dataSlice":{"offset":1,"length":60000},"unknown":""#;
            scene.ask((), list(parts, commitment), options(false, None));
            for number in 0..2 {
                assert!(answer_or_call(&mut scene, number).await.is_none(), "{commitment}: {number}");
                assert_eq!(scene.under_way(), [number], "{commitment}");
                scene.moves_on(commitment, 1);
                let slot = scene.at(commitment, 0);
                let turns = scene.takes_all_turns().await;
                scene.lands(number, Some((list_at(slot), slot)), true);
                while scene.shown(&list(parts, commitment)) < slot {
                    scene.settles().await;
                    tokio::task::spawn_blocking(|| ()).await.unwrap();
                }
                assert!(scene.settles().await.is_empty(), "{commitment}: it waits for its turn");
                advance(Duration::from_millis(over)).await;
                drop(turns);
            }
            let told = answer_or_call(&mut scene, 2).await;
            assert_eq!(scene.calls.len(), 2, "{commitment}: {}", told.is_some());
            match told.unwrap() {
                Err(Error::Overloaded) => assert_eq!(commitment, Commitment::Processed),
                told => {
                    let status = told.unwrap().status;
                    assert!(matches!(status, CacheStatus::StaleIfError { .. }), "{commitment}: {status:?}");
                }
            }
        });
    }
}
