//! Tests of the course of a call. The outcomes of its attempts are made up, and no node is asked.

use bytes::Bytes;

use super::*;
use crate::error::Reason;
use crate::methods::{AnyMethod, Method, Pubkey};
use crate::pool::health::Health;
use crate::pool::probe::Genesis;
use crate::pool::tests::{pool, request, simulation};

fn reply(node: usize, body: NodeReply) -> PoolReply {
    PoolReply { node, body, sent_at: Instant::now(), slot: 5, finalized: 0, is_short: false, blocks: None }
}

fn result(node: usize) -> PoolReply {
    reply(node, NodeReply::Result(Bytes::from_static(b"{}")))
}

fn error(node: usize, code: i32) -> PoolReply {
    reply(node, NodeReply::Error { code, body: Bytes::from_static(b"{}") })
}

#[tokio::test]
async fn a_private_error_yields_to_any_answer() {
    let (pool, call) = (pool(2, |_| {}), request(Method::GetClusterNodes, "[]"));
    let (members, method) = (pool.members(), AnyMethod::Own(Method::GetClusterNodes));
    let private = || Ok((Meaning::AskOn(WhyAskOn::Private), error(0, -32099)));
    let unlikely = Meaning::AskOn(WhyAskOn::Unlikely);
    for (name, second, expected, is_left_alone) in [
        ("a result", Ok((Meaning::Decides, result(1))), 1, true),
        ("an error that decides", Ok((Meaning::Decides, error(1, -32602))), 1, false),
        ("a doubtful result", Ok((unlikely, result(1))), 1, false),
        ("another private error", Ok((Meaning::AskOn(WhyAskOn::Private), error(1, -32000))), 0, false),
        ("a fault", Err(Fault::Status(500)), 0, false),
        ("a refusal", Ok((Meaning::NotHere, error(1, -32601))), 0, false),
    ] {
        let mut course = CallCourse::new(&pool, &call);
        assert!(matches!(course.record(&members[0], private()), CallStep::Confirm), "{name}");
        let told = match course.record(&members[1], second) {
            CallStep::Done(reply) => reply,
            _ => course.conclude().unwrap(),
        };
        assert_eq!(told.node, expected, "{name}");
        let quiet = members[0].state.quiet.left(method, Instant::now());
        assert_eq!(quiet.is_some(), is_left_alone, "{name}");
        members[0].state.quiet.answered(method, Instant::now());
    }
}

#[tokio::test]
async fn absence_needs_the_word_of_every_holder() {
    let pool = pool(3, |_| {});
    let members = pool.members();
    let block = request(Method::GetBlock, "[50]");
    let page = request(Method::GetSignaturesForAddress, r#"["SysvarC1ock11111111111111111111111111111111"]"#);
    let absent = |holders| Ok((Meaning::AskOn(WhyAskOn::Absent(holders)), error(0, -32007)));
    let failed = || Err(Fault::Status(503));
    // The oldest blocks of the nodes. The first one answers, the second fails, and the third is drained.
    for (name, call, holders, firsts, is_told) in [
        ("equal ones", &block, Holders::Any, [Some(9), Some(9)], true),
        ("the failed one is younger", &block, Holders::Any, [Some(9), Some(10)], true),
        ("the failed one is older", &block, Holders::Any, [Some(9), Some(8)], false),
        ("the failed one has begun after the block", &block, Holders::Any, [None, Some(51)], true),
        ("the failed one is unknown", &block, Holders::Any, [Some(9), None], false),
        ("both are unknown", &block, Holders::Any, [None, None], false),
        ("what is ahead is not held by one that failed", &block, Holders::Ahead, [None, None], true),
        ("a page of an older one", &page, Holders::Older, [Some(9), Some(10)], true),
        ("a page of a younger one", &page, Holders::Older, [Some(9), Some(8)], false),
        ("a page beside an unknown one", &page, Holders::Older, [Some(9), None], false),
    ] {
        members[2].set_drained(true);
        for (member, first) in members.iter().zip(firsts) {
            member.set_first_available(first.unwrap_or(Slot::MAX));
        }
        let mut course = CallCourse::new(&pool, call);
        course.record(&members[1], failed());
        course.record(&members[0], absent(holders));
        let told = course.conclude();
        assert_eq!(told.is_ok(), is_told, "{name}");
        if let Err(Error::NoUpstream(attempts)) = told {
            assert_eq!(attempts.len(), 1, "{name}");
            assert!(attempts[0].is(AttemptResult::Status5xx), "{name}");
        }
    }
    // One that was not asked has not answered, either.
    members[0].set_first_available(9);
    members[1].set_first_available(8);
    members[1].state.quiet.refused(AnyMethod::Own(Method::GetBlock), None, Instant::now(), Instant::now());
    let mut course = CallCourse::new(&pool, &block);
    course.record(&members[0], absent(Holders::Any));
    let Err(Error::NoUpstream(attempts)) = course.conclude() else { panic!("told") };
    assert_eq!(attempts[0].reason, Reason::NotAsked(Unusable::Quiet));
}

#[tokio::test]
async fn refusals_of_all_nodes_are_the_answer() {
    let (pool, own, forwarded) = (pool(2, |_| {}), request(Method::GetBlock, "[5]"), simulation());
    let members = pool.members();
    let refused = || Ok((Meaning::NotHere, error(0, -32601)));

    let mut course_of_own = CallCourse::new(&pool, &own);
    course_of_own.record(&members[0], refused());
    assert!(course_of_own.conclude().is_err(), "the other node may serve the method");
    let mut course_of_own = CallCourse::new(&pool, &own);
    members.iter().for_each(|member| drop(course_of_own.record(member, refused())));
    assert_eq!(course_of_own.conclude().unwrap().code(), Some(-32601));

    // Nobody knows which other nodes serve a forwarded method, so the refusals of the nodes that were asked
    // decide.
    let mut course_of_forwarded = CallCourse::new(&pool, &forwarded);
    course_of_forwarded.record(&members[0], refused());
    assert_eq!(course_of_forwarded.conclude().unwrap().code(), Some(-32601));
    let mut course_of_forwarded = CallCourse::new(&pool, &forwarded);
    course_of_forwarded.record(&members[0], refused());
    course_of_forwarded.record(&members[1], Err(Fault::Connect));
    assert!(course_of_forwarded.conclude().is_err(), "one node did not answer");
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_the_first_probe() {
    let pool = pool(1, |_| {});
    let (members, call) = (pool.members(), request(Method::GetClusterNodes, "[]"));
    let (node, course) = (&members[0], CallCourse::new(&pool, &call));
    let genesis = || Genesis::Hash(Pubkey([1; 32]).to_string());
    let set_unprobed = || {
        node.set_health(Health::Unprobed);
        pool.nodes.cluster.identify(&members, node, node.used(), genesis());
        node.cluster().is_identified = false;
    };
    set_unprobed();
    let probe = async {
        node.cluster().identify(node.used());
        node.set_health(Health::Healthy);
        pool.nodes.probed.send_replace(());
    };
    let (picked, ()) = tokio::join!(course.pick_in_time(Some(Unusable::Incapable)), probe);
    assert!(picked.is_ok_and(|picked| picked.id == node.id));
    assert!(Instant::now() < call.context.deadline);

    set_unprobed();
    let Err(failed) = course.pick_in_time(Some(Unusable::Incapable)).await else {
        panic!("no node is usable")
    };
    assert_eq!(failed[0].reason, Reason::NotAsked(Unusable::Unidentified));
    assert!(Instant::now() >= call.context.deadline, "no probe has ended in time");
}
