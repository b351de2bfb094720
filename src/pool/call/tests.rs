//! Tests of the course of a call. The outcomes of its attempts are made up, and no node is asked.

use bytes::Bytes;

use super::*;
use crate::error::Reason;
use crate::methods::{Method, Pubkey};
use crate::pool::health::Health;
use crate::pool::probe::Genesis;
use crate::pool::tests::{passthrough, pool, request};

fn reply(node: usize, body: NodeReply) -> PoolReply {
    PoolReply { node, body, sent_at: Instant::now(), slot: 5 }
}

fn result(node: usize) -> PoolReply {
    reply(node, NodeReply::Result(Bytes::from_static(b"{}")))
}

fn error(node: usize, code: i32) -> PoolReply {
    reply(node, NodeReply::Error { code, body: Bytes::from_static(b"{}") })
}

#[tokio::test]
async fn unlisted_error_yields_to_a_certain_result() {
    let (pool, call) = (pool(2, |_| {}), request(Method::GetClusterNodes, "[]"));
    let members = pool.members();
    let (kept_open, refused) = (Err(Fault::Status(500)), Meaning::TryElsewhere(AttemptResult::Incapable));
    for (name, second, expected) in [
        ("a result", Ok((Meaning::Answer, result(1))), Some(1)),
        ("a doubtful result", Ok((Meaning::NeedsSecondNode, result(1))), Some(0)),
        ("an error", Ok((Meaning::Answer, error(1, -32602))), Some(0)),
        ("a fault", kept_open, None),
        ("a refusal", Ok((refused, error(1, -32601))), None),
    ] {
        let mut course = CallCourse::new(&pool, &call);
        let first = course.record(&members[0], Ok((Meaning::UnlistedError, error(0, -32099))));
        assert!(matches!(first, CallStep::Confirm), "{name}");
        match course.record(&members[1], second) {
            CallStep::Done(reply) => assert_eq!(Some(reply.node), expected, "{name}"),
            _ => assert_eq!((expected, course.conclude().unwrap().node), (None, 0), "{name}"),
        }
    }
}

#[tokio::test]
async fn refusals_of_all_nodes_are_the_answer() {
    let (pool, own, passthrough) = (pool(2, |_| {}), request(Method::GetBlock, "[5]"), passthrough());
    let members = pool.members();
    let refused = || Ok((Meaning::TryElsewhere(AttemptResult::Incapable), error(0, -32601)));

    let mut course_of_own = CallCourse::new(&pool, &own);
    course_of_own.record(&members[0], refused());
    assert!(course_of_own.conclude().is_err(), "the other node may serve the method");
    let mut course_of_own = CallCourse::new(&pool, &own);
    members.iter().for_each(|member| drop(course_of_own.record(member, refused())));
    assert_eq!(course_of_own.conclude().unwrap().code(), Some(-32601));

    // Nobody knows which other nodes serve a passthrough method, so the refusals of the nodes that were asked
    // decide.
    let mut course_of_passthrough = CallCourse::new(&pool, &passthrough);
    course_of_passthrough.record(&members[0], refused());
    assert_eq!(course_of_passthrough.conclude().unwrap().code(), Some(-32601));
    let mut course_of_passthrough = CallCourse::new(&pool, &passthrough);
    course_of_passthrough.record(&members[0], refused());
    course_of_passthrough.record(&members[1], Err(Fault::Connect));
    assert!(course_of_passthrough.conclude().is_err(), "one node did not answer");
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
        pool.nodes.note_probed();
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
