//! Tests of the pool's nodes without a connection: the state of a node, and the choice between nodes.

use std::time::Duration;

use super::forward::ForwardedRequest;
use super::in_flight::InFlight;
use super::meaning::{Meaning, effect};
use super::nodes::lacks_history;
use super::probe::Genesis;
use super::question::{ParsedReply, Question, SentRequest};
use super::upstream_call::UpstreamCall as _;
use super::*;
use crate::breaker::BreakerState;
use crate::config::{Config, GenesisCheck, Secret, Upstream};
use crate::error::Reason;
use crate::jsonrpc::Params;
use crate::methods::{
    AnyMethod, Commitment, ForwardedCall, Method, Part, Profile, Pubkey, Query, Signature, Slot, TipMethod,
    TipQuery,
};
use crate::node::{Fault, NodeReply};
use crate::telemetry::AttemptResult;
use health::Health;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a configuration with this number of nodes, named `node-0` and so on, after applying `change`.
fn config(nodes: usize, change: impl FnOnce(&mut Config)) -> Config {
    let any = ([127, 0, 0, 1], 0).into();
    let upstream = |id| Upstream::plain(format!("node-{id}"), Secret::new("http://upstream.invalid"));
    let mut config = Config::dev(any, any, (0..nodes).map(upstream).collect());
    change(&mut config);
    config
}

/// Returns a pool of healthy nodes that are never called. None of them reports a genesis hash.
pub(super) fn pool(nodes: usize, change: impl FnOnce(&mut Config)) -> Pool {
    let pool = unasked_pool(nodes, change);
    let members = pool.members();
    for member in members.iter() {
        pool.nodes.cluster.identify(&members, member, member.used(), Genesis::Refused);
    }
    pool
}

/// Returns a pool of healthy nodes that were not asked for a genesis hash.
fn unasked_pool(nodes: usize, change: impl FnOnce(&mut Config)) -> Pool {
    let frontier = Arc::new(Frontier::new(nodes));
    let pool = Pool::new(&config(nodes, change), frontier, Metrics::new()).unwrap();
    for member in pool.members().iter() {
        member.set_health(Health::Healthy);
    }
    pool
}

/// Returns a call of a cached method, with a deadline in one second.
pub(super) fn request(method: Method, params: &str) -> UpstreamRequest {
    let params = Params::Array(bytes::Bytes::copy_from_slice(params.as_bytes()));
    let query = Query::parse(method, &params, Profile::Node).unwrap();
    let context = CallContext::own(Instant::now() + SECOND);
    UpstreamRequest { query, min_slot: None, prefer: None, one_node: false, context }
}

/// Returns a simulation, with a deadline in one second.
pub(super) fn simulation() -> ForwardedRequest {
    let call = ForwardedCall::new(AnyMethod::Simulate, Params::None);
    let context = CallContext::own(Instant::now() + SECOND);
    ForwardedRequest { call, prefer: None, upstreams: Vec::new(), context }
}

/// Begins a `getAccountInfo` call of `caller` at `member`.
fn begin(member: &Member, caller: usize, now: Instant) -> InFlight<'_> {
    let context = CallContext { caller: CallerId::numbered(caller), ..CallContext::own(now) };
    InFlight::begin(member, &Question::new(AnyMethod::Own(Method::GetAccountInfo), &context), now)
}

/// Returns true if the call is the trial of a half-open breaker.
fn is_trial(call: &InFlight<'_>) -> bool {
    call.node_trial || call.part_trial
}

/// Ends a `getAccountInfo` call with a fault, or with an answer. Returns true if that has opened a breaker.
fn end(call: InFlight<'_>, fault: Option<Fault>, now: Instant) -> bool {
    let context = CallContext::own(now);
    let question = Question::new(AnyMethod::Own(Method::GetAccountInfo), &context);
    call.ended(effect(&question, &fault.map_or(Ok(Meaning::Decides), Err)), fault, SECOND, now)
}

#[tokio::test]
async fn each_trouble_of_a_node_is_named() {
    let pool = pool(1, |config| config.upstreams[0].max_in_flight = 2);
    let (members, now) = (pool.members(), Instant::now());
    let node = &members[0];
    let reasons = |now| pool.reasons(node, now);
    assert_eq!(reasons(now), []);

    node.set_health(Health::Unhealthy("behind".to_owned()));
    assert_eq!(reasons(now), [Unusable::Unhealthy]);
    node.set_health(Health::Healthy);
    assert_eq!(reasons(now), []);

    node.set_drained(true);
    assert_eq!(reasons(now), [Unusable::Drained]);
    node.set_drained(false);

    let first = begin(node, 1, now);
    assert_eq!((reasons(now), node.in_flight()), (vec![], 1));
    let second = begin(node, 1, now);
    assert_eq!((reasons(now), node.in_flight()), (vec![Unusable::Busy], 2));
    drop((first, second));
    assert_eq!((reasons(now), node.in_flight()), (vec![], 0));
}

#[tokio::test]
async fn failed_call_is_counted_and_opens_the_breaker() {
    let pool = pool(1, |config| config.pool.breaker.failures = 1);
    let (members, now) = (pool.members(), Instant::now());
    let node = &members[0];
    let (ok, given_up, failed) = (None, Some(Fault::GivenUp), Some(Fault::Connect));
    assert!(!end(begin(node, 1, now), ok, now));
    assert!(!end(begin(node, 1, now), given_up, now), "the caller gave up");
    assert_eq!((node.counts(), node.last_failure()), ((2, 0), None));

    assert!(node.load(Part::Accounts, now) >= 1.0, "its answers took a second");
    assert!(end(begin(node, 1, now), failed, now));
    assert!(node.load(Part::Accounts, now) < 0.1, "what was before the failure keeps no trial away");
    assert_eq!((node.counts(), node.last_failure()), ((3, 1), Some((AttemptResult::Connect, now))));
    assert_eq!(pool.reasons(node, now), [Unusable::BreakerOpen]);
    let later = now + members.settings.breaker.open;
    assert_eq!(pool.reasons(node, later), []);
    let trial = begin(node, 1, later);
    assert!(is_trial(&trial));
    assert_eq!(pool.reasons(node, later), [Unusable::BreakerOpen], "one trial at a time");
    end(trial, None, later);
    assert_eq!((pool.reasons(node, later), node.breaker(later)), (vec![], BreakerState::Closed));
}

#[tokio::test(start_paused = true)]
async fn only_first_attempts_of_own_methods_are_trials() {
    let pool = pool(2, |config| config.pool.breaker.failures = 1);
    let (members, open) = (pool.members(), pool.members().settings.breaker.open);
    let node = &members[0];
    let own = request(Method::GetAccountInfo, r#"["11111111111111111111111111111111"]"#);
    end(begin(node, 1, Instant::now()), Some(Fault::Connect), Instant::now());
    tokio::time::advance(open).await;
    let now = Instant::now();
    assert_eq!(node.breaker(now), BreakerState::HalfOpen);
    let rated = |candidates: Vec<select::Candidate>| candidates[0].unusable;
    assert_eq!(rated(pool.nodes.candidates(&members, &own.question(), &[], now)), None);
    let avoided = Some(Unusable::BreakerOpen);
    assert_eq!(
        rated(pool.nodes.candidates(&members, &own.question(), &[1], now)),
        avoided,
        "a further attempt"
    );
    assert_eq!(rated(pool.nodes.candidates(&members, &simulation().question(), &[], now)), avoided);
    let forwarded = InFlight::begin(node, &simulation().question(), now);
    assert!(!is_trial(&forwarded));
    drop(forwarded);
    assert_eq!(node.breaker(now), BreakerState::HalfOpen);
    // Trials that end without a result do not follow upon each other.
    for uncounted in [Fault::TooManyRequests(None), Fault::TooLarge] {
        let trial = begin(node, 1, Instant::now());
        assert!(is_trial(&trial));
        end(trial, Some(uncounted), Instant::now());
        assert_eq!(pool.reasons(node, Instant::now()), [Unusable::BreakerOpen], "{uncounted:?}");
        tokio::time::advance(open).await;
        assert_eq!(pool.reasons(node, Instant::now()), [], "{uncounted:?}");
    }
}

#[tokio::test]
async fn quiet_and_far_nodes_are_rated_by_method() {
    let pool = pool(2, |_| {});
    let (members, now) = (pool.members(), Instant::now());
    let [blocks, votes] = [("[5]", Method::GetBlock), ("[]", Method::GetVoteAccounts)];
    let rated =
        |(params, method)| pool.nodes.candidates(&members, &request(method, params).question(), &[], now)[0];
    members[0].state.quiet.refused(AnyMethod::Own(Method::GetBlock), None, now, now);
    assert_eq!(rated(blocks).unusable, Some(Unusable::Quiet));
    assert!(rated(blocks).quiet.is_some());
    assert_eq!((rated(votes).unusable, pool.reasons(&members[0], now)), (None, vec![]));
    members[0].state.quiet.answered(AnyMethod::Own(Method::GetBlock), now);
    assert_eq!(rated(blocks).unusable, None);
}

#[tokio::test]
async fn one_part_of_a_node_may_fail_alone() {
    let pool = pool(1, |config| config.pool.breaker.failures = 1);
    let (members, now) = (pool.members(), Instant::now());
    let rated = |method, params| {
        let call = request(method, params);
        pool.nodes.candidates(&members, &call.question(), &[], now)[0].unusable
    };
    let fail = |method| {
        let context = CallContext::own(now);
        let question = Question::new(AnyMethod::Own(method), &context);
        let fault = Fault::Status(503);
        InFlight::begin(&members[0], &question, now).ended(
            effect(&question, &Err(fault)),
            Some(fault),
            SECOND,
            now,
        )
    };
    assert!(fail(Method::GetBlock));
    let blocks = || rated(Method::GetBlocks, "[5,6]");
    assert_eq!((blocks(), rated(Method::GetVoteAccounts, "[]")), (Some(Unusable::BreakerOpen), None));
    assert_eq!(pool.reasons(&members[0], now), []);
    assert!(fail(Method::GetSupply), "a second part");
    assert_eq!(rated(Method::GetVoteAccounts, "[]"), Some(Unusable::BreakerOpen));
    assert_eq!(pool.reasons(&members[0], now), [Unusable::BreakerOpen], "the whole node is out");
}

#[tokio::test(start_paused = true)]
async fn each_part_gets_a_trial_of_its_own() {
    let pool = pool(2, |config| config.pool.breaker.failures = 1);
    let (members, open) = (pool.members(), pool.members().settings.breaker.open);
    let context = CallContext::own(Instant::now() + 10 * open);
    for method in [
        AnyMethod::Own(Method::GetVoteAccounts),
        AnyMethod::Own(Method::GetBlocks),
        AnyMethod::Own(Method::GetSupply),
        AnyMethod::Own(Method::GetIdentity),
        AnyMethod::Tip(TipMethod::GetEpochInfo),
    ] {
        let question = Question::new(method, &context);
        let end = |outcome: Result<Meaning, Fault>| {
            let (fault, now) = (outcome.err(), Instant::now());
            let begun = InFlight::begin(&members[0], &question, now);
            begun.ended(effect(&question, &outcome), fault, SECOND, now);
        };
        let rated = || pool.nodes.candidates(&members, &question, &[], Instant::now())[0].unusable;
        end(Err(Fault::Status(503)));
        assert_eq!(rated(), Some(Unusable::BreakerOpen), "{method:?}");
        tokio::time::advance(open).await;
        assert_eq!(rated(), None, "{method:?} finds out if the part is back");
        end(Ok(Meaning::Decides));
        assert!(members[0].has_closed_breaker(question.part()), "{method:?}");
    }
}

#[tokio::test]
async fn a_node_that_refuses_does_not_look_fast() {
    let pool = pool(1, |_| {});
    let (members, now) = (pool.members(), Instant::now());
    let before = members[0].load(Part::Accounts, now);
    end(begin(&members[0], 1, now), Some(Fault::TooManyRequests(None)), now);
    assert!(members[0].load(Part::Accounts, now) > before);
}

#[tokio::test]
async fn where_all_are_slow_no_node_is_faster() {
    let pool = pool(2, |_| {});
    let (members, now) = (pool.members(), Instant::now());
    let call = request(Method::GetAccountInfo, r#"["11111111111111111111111111111111"]"#);
    let has_faster = || pool.nodes.has_faster(&call.question(), &[0], SECOND / 4);
    assert!(has_faster());
    end(begin(&members[1], 1, now), None, now);
    assert!(!has_faster(), "its last answer took a second");
    assert!(!pool.nodes.has_faster(&call.question(), &[0, 1], SECOND / 4));
}

#[tokio::test]
async fn hangs_of_two_callers_open_the_breaker() {
    let pool = pool(1, |config| config.pool.breaker.failures = 1);
    let (members, now) = (pool.members(), Instant::now());
    let [mut first, mut again, mut other] = [1, 1, 2].map(|caller| begin(&members[0], caller, now));
    assert!(!first.note_hang(now));
    assert!(!again.note_hang(now), "one caller may ask for something slow");
    assert!(other.note_hang(now));
    assert!(!other.note_hang(now), "a call counts once");
}

#[tokio::test(start_paused = true)]
async fn rate_of_a_node_is_a_seconds_calls() {
    let pool = pool(2, |config| config.upstreams[0].rps = Some(4));
    let (members, now) = (pool.members(), Instant::now());
    let (limited, unlimited) = (&members[0], &members[1]);
    for left in [4, 3] {
        assert_eq!(limited.rate_left(), Some(left));
        assert!(limited.take_spare_rate(), "more than half is left");
    }
    assert!(!limited.take_spare_rate(), "the other half is for callers");
    let call = CallContext { is_background: false, ..CallContext::own(now + SECOND) };
    let take = || limited.take_rate(&call);
    assert!(take() && take() && !take());
    assert_eq!((unlimited.rate_left(), unlimited.take_rate(&call)), (None, true));
}

/// Returns a pool of nodes with these rate limits, all of which are used up, and a call that a caller waits for.
fn used_up(limits: &[u32]) -> (Pool, ForwardedRequest) {
    let pool = pool(limits.len(), |config| {
        for (upstream, limit) in config.upstreams.iter_mut().zip(limits) {
            upstream.rps = Some(*limit);
        }
    });
    let mut call = simulation();
    (call.context.is_background, call.context.deadline) = (false, Instant::now() + 10 * SECOND);
    while pool.nodes.pick(&call.question(), &[], None).is_ok() {}
    (pool, call)
}

#[tokio::test(start_paused = true)]
async fn call_waits_for_a_usable_node() {
    let (pool, call) = used_up(&[2, 20, 5]);
    let pick = async || pool.nodes.pick_or_wait(&call.question(), &[], Some(Unusable::Unreachable)).await;
    let start = Instant::now();
    assert_eq!(pick().await.map(|node| node.id), Ok(1), "the node that is free first");
    assert!(start.elapsed() <= Duration::from_millis(51), "{:?}", start.elapsed());

    pool.members()[1].set_health(Health::Unhealthy("behind".to_owned()));
    assert_eq!(pick().await.map(|node| node.id), Ok(2), "waiting is better than a node in a bad state");
    // While the call waits, its node gets another trouble.
    let waits = async { pick().await.map(|node| node.id) };
    let drains = async { pool.members()[2].set_drained(true) };
    assert_eq!(tokio::join!(biased; waits, drains).0, Ok(0));

    // There is no time to wait any more.
    let mut hurried = call.clone();
    hurried.context.deadline = Instant::now();
    let picked = pool.nodes.pick_or_wait(&hurried.question(), &[], None).await;
    let reasons = picked.err().map(|nodes| nodes.into_iter().map(|node| node.reason).collect::<Vec<_>>());
    let expected = [Unusable::Busy, Unusable::Unhealthy, Unusable::Drained].map(Reason::NotAsked);
    assert_eq!(reasons, Some(expected.to_vec()));
}

#[tokio::test(start_paused = true)]
async fn reload_ends_the_wait_for_a_rate() {
    for (name, limits, expected) in
        [("a higher limit", vec![Some(300)], 0), ("no limit", vec![None], 0), ("another node", vec![], 1)]
    {
        let (pool, call) = used_up(&[1]);
        let start = Instant::now();
        let waits = async { pool.nodes.pick_or_wait(&call.question(), &[], None).await.map(|node| node.id) };
        let reload = async {
            let prepared = pool.prepare(&config(2, |config| match limits.first() {
                Some(limit) => {
                    config.upstreams.truncate(1);
                    config.upstreams[0].rps = *limit;
                }
                None => drop(config.upstreams.remove(0)),
            }));
            pool.put_in_force(prepared.unwrap());
            for member in pool.members().iter() {
                member.set_health(Health::Healthy);
            }
        };
        assert_eq!(tokio::join!(biased; waits, reload).0, Ok(expected), "{name}");
        assert_eq!(start.elapsed(), Duration::ZERO, "{name}");
    }
}

#[tokio::test]
async fn lacking_methods_are_noted_one_by_one() {
    let pool = pool(1, |_| {});
    let members = pool.members();
    let lacking = || -> Vec<_> {
        Method::ALL.into_iter().filter(|method| members[0].lacks(AnyMethod::Own(*method))).collect()
    };
    assert_eq!(lacking(), []);
    for method in [Method::GetBlock, Method::GetAccountInfo] {
        members[0].set_lacking(AnyMethod::Own(method));
    }
    let noted = lacking();
    assert!(noted.len() == 2 && noted.contains(&Method::GetBlock) && noted.contains(&Method::GetAccountInfo));
    let call = request(Method::GetBlock, "[5]");
    let candidates = pool.nodes.candidates(&members, &call.question(), &[], Instant::now());
    assert_eq!(candidates[0].unusable, Some(Unusable::Incapable));
    members[0].forget_lacking();
    assert_eq!(lacking(), []);
}

#[tokio::test]
async fn nodes_must_show_the_known_cluster() {
    let pool = unasked_pool(3, |config| config.upstreams[2].genesis = GenesisCheck::Unchecked);
    let (members, cluster) = (pool.members(), &pool.nodes.cluster);
    let hash = |byte| Pubkey([byte; 32]).to_string();
    let identify =
        |node: usize, genesis| cluster.identify(&members, &members[node], members[node].used(), genesis);
    let unidentified = || -> Vec<_> { members.iter().map(|member| cluster.unidentified(member)).collect() };
    assert_eq!(identify(2, Genesis::Hash(hash(9))), None, "an unchecked node names no cluster");
    let withheld = Some(Unusable::Unidentified);
    assert_eq!(identify(0, Genesis::Hash(hash(1))), None);
    assert_eq!((cluster.genesis(), unidentified()), (None, vec![withheld, withheld, None]));
    assert_eq!(identify(1, Genesis::Refused), Some(Health::NoGenesisHash));
    assert_eq!((cluster.genesis(), unidentified()), (Some(hash(1)), vec![None, withheld, None]));

    let foreign = Health::Foreign { theirs: hash(2), ours: hash(1) };
    assert_eq!(identify(1, Genesis::Hash(hash(2))), Some(foreign));
    assert_eq!(identify(1, Genesis::Refused), Some(Health::NoGenesisHash));
    assert_eq!(identify(1, Genesis::Hash(hash(1))), None);
    assert_eq!(unidentified(), [None, None, None]);
}

#[tokio::test]
async fn nodes_that_disagree_get_no_calls() {
    let pool = unasked_pool(3, |_| {});
    let (members, cluster) = (pool.members(), &pool.nodes.cluster);
    let hash = |byte| Pubkey([byte; 32]).to_string();
    let reports = |node: usize, byte| {
        cluster.identify(&members, &members[node], members[node].used(), Genesis::Hash(hash(byte)))
    };
    let called = || members.iter().filter(|member| cluster.unidentified(member).is_none()).count();
    assert_eq!((reports(0, 9), called()), (None, 0), "the first to answer names no cluster");
    cluster.identify(&members, &members[2], members[2].used(), Genesis::Refused);
    let disputed = |byte| Some(Health::Disputed { theirs: hash(byte) });
    assert_eq!((reports(1, 1), cluster.genesis(), called()), (disputed(1), None, 0));
    assert!(cluster.undecided().is_some_and(|reason| reason.contains("pool.genesis_hash")));
    assert_eq!(
        (reports(2, 1), reports(0, 9), called()),
        (disputed(1), disputed(9), 0),
        "a majority decides nothing"
    );
    // The node has another address in its URL's name now.
    assert_eq!((reports(0, 1), cluster.genesis(), called()), (None, Some(hash(1)), 3));
    let foreign = Health::Foreign { theirs: hash(9), ours: hash(1) };
    assert_eq!((reports(0, 9), called()), (Some(foreign), 2));
}

#[tokio::test]
async fn foreign_nodes_keep_the_hash_they_reported() {
    let pool = unasked_pool(3, |config| config.pool.genesis_hash = Some(Pubkey([1; 32]).to_string()));
    let (members, cluster) = (pool.members(), &pool.nodes.cluster);
    let hash = |byte| Pubkey([byte; 32]).to_string();
    members[2].set_health(Health::Unreachable(AttemptResult::Connect));
    for (member, byte) in members.iter().zip([1, 2]) {
        let theirs = Genesis::Hash(hash(byte));
        if let Some(health) = cluster.identify(&members, member, member.used(), theirs) {
            member.set_health(health);
        }
    }
    // An operator configures a third cluster.
    cluster.configure(&members, &hash(3));
    for (member, byte) in members.iter().zip([1, 2]) {
        assert_eq!(*member.health(), Health::Foreign { theirs: hash(byte), ours: hash(3) });
    }
    assert_eq!(*members[2].health(), Health::Unreachable(AttemptResult::Connect), "it has reported no hash");
}

#[tokio::test]
async fn blocks_need_nodes_with_their_history() {
    let pool = pool(3, |_| {});
    let (members, now, frontier) = (pool.members(), Instant::now(), &pool.nodes.frontier);
    for (node, slot) in [(0, 200), (1, 150), (2, 200)] {
        frontier.set_usable(node, true, now);
        frontier.probed(frontier.era(), node, Commitment::Finalized, slot, now);
    }
    members[1].set_first_available(100);
    let lacks = |slot: Slot| {
        let call = request(Method::GetBlock, &format!("[{slot}]"));
        lacks_history(&call.question(), &members[1], Some(0), frontier)
    };
    for (name, slot, expected) in [
        ("deleted", 99, true),
        ("the oldest", 100, false),
        ("the newest", 150, false),
        ("final elsewhere", 151, true),
        ("the newest elsewhere", 200, true),
        ("not final anywhere", 201, false),
    ] {
        assert_eq!(lacks(slot), expected, "{name}");
    }
    // Nobody knows which history a forwarded call reads, so the call may go to every node.
    let candidates = pool.nodes.candidates(&members, &simulation().question(), &[], now);
    assert!(candidates.iter().all(|candidate| candidate.unusable.is_none()));
}

#[tokio::test]
async fn reload_puts_new_nodes_in_force() {
    let pool = pool(2, |_| {});
    let kept = Arc::clone(&pool.members()[0]);
    let prepared = pool.prepare(&config(3, |config| drop(config.upstreams.remove(1)))).unwrap();
    pool.put_in_force(prepared);
    let members = pool.members();
    let names: Vec<_> = members.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(names, ["node-0", "node-2"]);
    assert!(Arc::ptr_eq(&members[0], &kept));
    assert_eq!(*members[1].health(), Health::Unprobed);
}

#[tokio::test]
async fn an_old_transaction_is_no_nodes_first_slot() {
    let pool = pool(1, |_| {});
    let (members, frontier, now) = (pool.members(), &pool.nodes.frontier, Instant::now());
    let query = TipQuery::Statuses { signatures: [Signature([7; 64])].into(), search_history: true };
    let request = TipRequest { query, floors: [0; 3], context: CallContext::own(now + SECOND) };
    let learn = |landed: Slot| {
        let status = format!(r#"{{"slot":{landed},"err":null,"confirmationStatus":"finalized"}}"#);
        let result = format!(r#"{{"context":{{"slot":900}},"value":[{status}]}}"#);
        let sent = SentRequest {
            id: 0,
            at: now,
            era: frontier.era(),
            min_context_slot: None,
            slot_before: 0,
            finalized_before: 0,
            newest_before: 0,
            max_slot_lag: 20,
        };
        request.learn(
            frontier,
            &members[0],
            &ParsedReply::new(NodeReply::Result(result.into()), Some(900)),
            &sent,
            now,
        );
        Commitment::ALL.map(|commitment| frontier.slot(commitment))
    };
    assert_eq!(learn(5), [900, 0, 0]);
    frontier.probed(frontier.era(), 0, Commitment::Finalized, 868, now);
    assert_eq!([learn(5), learn(869)], [[900, 0, 868], [900, 0, 869]]);
}

#[tokio::test]
async fn draws_are_even_in_each_bit() {
    let pool = pool(0, |_| {});
    let draws: Vec<u64> = (0..4096).map(|_| pool.nodes.draw()).collect();
    for bit in 0..64 {
        let ones = draws.iter().filter(|draw| **draw >> bit & 1 == 1).count();
        // The bounds are about six standard deviations below and above half of the draws.
        assert!((1850..2250).contains(&ones), "bit {bit}: {ones} of 4096");
    }
}
