//! Tests of long answers that must wait for a permit before they are written, while time and slots pass.

use super::questions::parse_query;
use super::*;
use crate::cache::CacheStatus;
use crate::error::Error;

/// The size of each account in bytes. An account of that size is fetched whole, and the list of all accounts
/// is too long to be written on an async worker.
const SPACE: usize = 64 * 1024;
const ACCOUNTS: u8 = 8;

/// Returns a query of `method` at a commitment. `params` is the JSON text of the parameters before the
/// configuration object, and `config` is JSON text to add to the members of that object.
fn call(method: Method, params: &str, config: &str, commitment: Commitment) -> Query {
    parse_query(method, &format!(r#"[{params}{{"commitment":"{commitment}"{config}}}]"#))
}

/// Returns the query for the list of all accounts.
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

/// The outcome of a caller's call.
type CallResult = Result<CacheAnswer, Error>;

/// Waits for a caller's call to end, and returns its outcome.
async fn result(cache: &mut SteppedCache<()>) -> CallResult {
    result_or_call(cache, usize::MAX).await.expect("no number of upstream calls ends this wait")
}

/// Returns a cache that holds the list of all accounts, a long text, at the newest known slot.
async fn with_a_long_list(commitment: Commitment) -> SteppedCache<()> {
    let mut cache = SteppedCache::new(|_| ());
    cache.ask((), list("base64", commitment), options(false, None));
    answer_call(&mut cache, commitment, 0).await;
    cache
}

/// Answers the upstream call of this number at the newest known slot, and returns that slot.
async fn answer_call(cache: &mut SteppedCache<()>, commitment: Commitment, number: usize) -> Slot {
    assert!(cache.settle().await.is_empty());
    let slot = cache.slot_behind(commitment, 0);
    cache.answer_call(number, list_at(slot), slot);
    let answer = result(cache).await.unwrap();
    assert_eq!(answer.meta.slot, slot);
    slot
}

#[test]
fn hit_is_checked_again_after_its_wait() {
    let processed = AnswerBounds::of_accounts(Commitment::Processed);
    let moment = Duration::from_millis(1);
    for (name, wait, slots) in
        [("time", processed.past_ttl(), 0), ("slots", moment, processed.past_max_lag())]
    {
        on_a_stepped_clock(async {
            let mut cache = with_a_long_list(Commitment::Processed).await;
            let permits = cache.take_render_permits().await;
            cache.ask((), list("base64+zstd", Commitment::Processed), options(false, None));
            assert!(cache.settle().await.is_empty(), "{name}");
            advance(wait).await;
            cache.advance_frontier(Commitment::Processed, slots);
            drop(permits);
            // The entry is too old by then, so a node is asked and the caller gets its answer.
            assert!(result_or_call(&mut cache, 1).await.is_none(), "{name}");
            assert_eq!(cache.calls_under_way(), [1], "{name}");
            let slot = answer_call(&mut cache, Commitment::Processed, 1).await;
            assert_eq!(slot, FIRST + slots, "{name}");
        });
    }
}

/// Waits for a caller's call to end, and returns its outcome. `None` if more than `calls` upstream calls are sent
/// before.
async fn result_or_call(cache: &mut SteppedCache<()>, calls: usize) -> Option<CallResult> {
    // Blocking tasks take real time, while the test's clock stands still. A minute ends only a hang.
    for _ in 0..60_000 {
        let mut answered = cache.settle().await;
        assert!(answered.len() <= 1);
        if !answered.is_empty() || cache.calls.len() > calls {
            return answered.pop().map(|answered| answered.answer);
        }
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1))).await.unwrap();
    }
    panic!("no call ends")
}

#[test]
fn deadline_ends_the_wait_for_a_permit() {
    for commitment in [Commitment::Processed, Commitment::Finalized] {
        on_a_stepped_clock(async {
            let mut cache = with_a_long_list(commitment).await;
            let permits = cache.take_render_permits().await;
            cache.ask((), list("base64+zstd", commitment), options(false, None));
            assert!(cache.settle().await.is_empty());
            advance(bounds::request_timeout() + Duration::from_secs(1)).await;
            let ended = cache.settle().await.pop().map(|answered| answered.answer.map(|_| ()));
            assert!(matches!(ended, Some(Err(Error::TimedOut(_)))), "{commitment}: {ended:?}");
            drop(permits);
        });
    }
}

#[test]
fn stale_hit_is_refetched_while_it_waits() {
    on_a_stepped_clock(async {
        let mut cache = with_a_long_list(Commitment::Confirmed).await;
        let past_max_lag = AnswerBounds::of_accounts(Commitment::Confirmed).past_max_lag();
        cache.advance_frontier(Commitment::Confirmed, past_max_lag);
        let permits = cache.take_render_permits().await;
        cache.ask((), list("base64+zstd", Commitment::Confirmed), options(false, None));
        assert!(cache.settle().await.is_empty());
        assert_eq!(cache.calls_under_way(), [1]);
        let background: Vec<_> = cache.calls.iter().map(|call| call.request.context.is_background).collect();
        assert_eq!(background, [false, true], "no caller waits for the refetch");
        drop(permits);
    });
}

#[test]
fn waiting_hit_is_not_behind_a_newer_answer() {
    on_a_stepped_clock(async {
        let mut cache = with_a_long_list(Commitment::Confirmed).await;
        let permits = cache.take_render_permits().await;
        cache.ask((), list("base64+zstd", Commitment::Confirmed), options(false, None));
        assert!(cache.settle().await.is_empty());
        cache.advance_frontier(Commitment::Confirmed, 1);
        cache.ask((), list("base64", Commitment::Confirmed), options(true, None));
        let newer = answer_call(&mut cache, Commitment::Confirmed, 1).await;
        drop(permits);
        assert_eq!(result(&mut cache).await.unwrap().meta.slot, newer);
        assert_eq!(cache.calls.len(), 2, "the stored list serves");
    });
}

/// Returns a cache that holds the list of all vote accounts as one long text, and the query for one of them.
async fn with_vote_accounts() -> (SteppedCache<()>, Query) {
    let mut cache = SteppedCache::new(|_| ());
    let more = "x".repeat(usize::from(ACCOUNTS) * SPACE);
    let vote = format!(r#"{{"votePubkey":"{}","more":"{more}"}}"#, Pubkey([1; 32]));
    let all = NodeReply::Result(format!(r#"{{"current":[{vote}],"delinquent":[]}}"#).into());
    cache.ask((), call(Method::GetVoteAccounts, "", "", Commitment::Processed), options(false, None));
    assert!(cache.settle().await.is_empty());
    cache.answer_call(0, all, FIRST);
    assert!(result(&mut cache).await.is_ok());
    let config = format!(r#","votePubkey":"{}""#, Pubkey([1; 32]));
    (cache, call(Method::GetVoteAccounts, "", &config, Commitment::Processed))
}

#[test]
fn derivation_is_checked_again_after_its_wait() {
    on_a_stepped_clock(async {
        let (mut cache, only) = with_vote_accounts().await;
        let ttl = AnswerBounds::of_vote_accounts(Commitment::Processed).past_ttl();
        let rest = Duration::from_millis(30);
        advance(ttl.saturating_sub(rest)).await;
        let permits = cache.take_render_permits().await;
        cache.ask((), only, options(false, None));
        assert!(cache.settle().await.is_empty());
        assert!(cache.calls_under_way().is_empty(), "the call waits for a permit");
        advance(rest).await;
        drop(permits);
        assert!(result_or_call(&mut cache, 1).await.is_none());
        assert_eq!(cache.calls_under_way(), [1], "a node is asked");
    });
}

#[test]
fn flight_without_a_permit_asks_a_node() {
    on_a_stepped_clock(async {
        let (mut cache, only) = with_vote_accounts().await;
        let permits = cache.take_render_permits().await;
        cache.ask((), only, options(false, None));
        assert!(cache.settle().await.is_empty());
        assert!(cache.calls_under_way().is_empty(), "the call waits for a permit");
        advance(bounds::past_render_permit_wait()).await;
        assert!(cache.settle().await.is_empty());
        assert_eq!(cache.calls_under_way(), [1]);
        drop(permits);
    });
}

/// Checks that a node is asked a second time, but never a third time, if its answer is too old once it can be
/// written.
#[test]
fn late_answer_is_fetched_once_more() {
    for commitment in [Commitment::Processed, Commitment::Finalized] {
        on_a_stepped_clock(async {
            let mut cache = SteppedCache::new(|_| ());
            // Parsed accounts are fetched whole, and sliced by the cache.
            let parts = r#"jsonParsed","dataSlice":{"offset":1,"length":60000},"encoding":"jsonParsed"#;
            cache.ask((), list(parts, commitment), options(false, None));
            for number in 0..2 {
                assert!(result_or_call(&mut cache, number).await.is_none(), "{commitment}: {number}");
                assert_eq!(cache.calls_under_way(), [number], "{commitment}");
                cache.advance_frontier(commitment, 1);
                let slot = cache.slot_behind(commitment, 0);
                let permits = cache.take_render_permits().await;
                cache.answer_call(number, list_at(slot), slot);
                while cache.floor(&list(parts, commitment)) < slot {
                    cache.settle().await;
                    tokio::task::spawn_blocking(|| ()).await.unwrap();
                }
                assert!(cache.settle().await.is_empty(), "{commitment}: the call waits for a permit");
                advance(AnswerBounds::of_accounts(commitment).past_stretched_ttl()).await;
                drop(permits);
            }
            let ended = result_or_call(&mut cache, 2).await;
            assert_eq!(cache.calls.len(), 2, "{commitment}: {}", ended.is_some());
            match ended.unwrap() {
                Err(Error::Overloaded) => assert_eq!(commitment, Commitment::Processed),
                answer => {
                    let status = answer.unwrap().status;
                    assert!(matches!(status, CacheStatus::StaleIfError { .. }), "{commitment}: {status:?}");
                }
            }
        });
    }
}
