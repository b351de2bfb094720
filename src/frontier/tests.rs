//! Tests of the frontier with nodes that jump ahead, fall back or are alone.

use super::*;

const C: Commitment = Commitment::Processed;

fn frontier(nodes: usize, reports: &[(usize, Slot, u64)]) -> (Frontier, Instant) {
    let frontier = Frontier::new(nodes);
    let start = frontier.started;
    for &(node, slot, at_s) in reports {
        frontier.probed(frontier.era(), node, C, slot, start + Duration::from_secs(at_s));
    }
    (frontier, start)
}

#[test]
fn frontier_is_the_highest_believed_report() {
    for (name, nodes, reports, expected) in [
        ("nothing reported", 3, &[][..], 0),
        ("a pool of one believes its node", 1, &[(0, 10, 0), (0, 5000, 1)][..], 5000),
        ("highest of several", 3, &[(0, 100, 0), (1, 103, 0), (2, 99, 0)][..], 103),
        ("a lonely jump waits", 2, &[(0, 100, 0), (1, 100, 0), (1, 1000, 1)][..], 100),
        ("a second node is close", 2, &[(0, 100, 0), (1, 100, 0), (1, 1000, 1), (0, 990, 2)][..], 1000),
        (
            "a lonely leader that advances for 10 s is believed",
            2,
            &[(0, 100, 0), (1, 100, 0), (1, 1000, 1), (1, 1010, 6), (1, 1020, 12)][..],
            1020,
        ),
        (
            "a lonely leader that stands still is not",
            2,
            &[(0, 100, 0), (1, 100, 0), (1, 1000, 1), (1, 1000, 12)][..],
            100,
        ),
        (
            "a lonely leader is not while two others go on together",
            3,
            &[
                (0, 100, 0),
                (1, 100, 0),
                (2, 100, 0),
                (0, 9000, 1),
                (1, 103, 1),
                (2, 103, 1),
                (1, 115, 6),
                (2, 115, 6),
                (0, 9025, 11),
                (1, 128, 11),
                (2, 128, 11),
                (0, 9030, 13),
                (1, 133, 13),
                (2, 132, 13),
            ][..],
            133,
        ),
        (
            "a lonely leader is believed once two others stand still",
            3,
            &[(0, 100, 0), (1, 100, 0), (2, 99, 0), (0, 1000, 1), (0, 1025, 11), (1, 100, 11), (0, 1026, 12)]
                [..],
            1026,
        ),
        ("one falling back moves nothing", 2, &[(0, 100, 0), (1, 100, 0), (1, 50, 1)][..], 100),
        ("none reaches it for 30 s: it falls", 1, &[(0, 100, 0), (0, 50, 1), (0, 60, 31)][..], 60),
        ("a lonely first report counts while it is the only one", 2, &[(0, 9000, 0)][..], 9000),
        ("it is not close to itself", 2, &[(0, 9000, 0), (1, 100, 1)][..], 100),
        (
            "nor does it become one by repetition",
            3,
            &[(0, 9000, 0), (1, 100, 1), (2, 101, 1), (0, 9000, 9), (2, 109, 10), (0, 9000, 20)][..],
            109,
        ),
        (
            "a first report that others then confirm stands",
            3,
            &[(0, 9000, 0), (1, 100, 1), (2, 8990, 1)][..],
            9000,
        ),
        (
            "a node that led alone for 10 s is believed when others come back far behind",
            2,
            &[(0, 1000, 0), (0, 1025, 10), (1, 900, 11), (0, 1030, 12)][..],
            1030,
        ),
        (
            "a believed leader stays believed while the others fall behind",
            3,
            &[(0, 100, 0), (1, 100, 0), (2, 99, 0), (0, 150, 5), (0, 200, 9), (1, 101, 9), (0, 250, 14)][..],
            250,
        ),
        (
            "a second who was confirmed is believed when it takes the lead",
            3,
            &[(0, 100, 0), (1, 90, 0), (2, 20, 0), (1, 140, 1), (0, 60, 1), (1, 190, 2)][..],
            190,
        ),
        (
            "a believed leader that jumps is doubted again",
            2,
            &[(0, 100, 0), (1, 100, 0), (0, 160, 1), (0, 9000, 2)][..],
            160,
        ),
        ("29 s are not enough", 1, &[(0, 100, 0), (0, 50, 1), (0, 60, 29)][..], 100),
    ] {
        assert_eq!(frontier(nodes, reports).0.slot(C), expected, "{name}");
    }
}

#[test]
fn at_first_a_node_that_advances_is_believed() {
    for (name, nodes, reports, expected) in [
        (
            "before one that stands still far below",
            2,
            &[(0, 9000, 0), (1, 8000, 0), (0, 9003, 1), (1, 8000, 1), (0, 9005, 2), (1, 8000, 2)][..],
            9005,
        ),
        (
            "also before one that stands still far above",
            2,
            &[(0, 9000, 0), (1, 8000, 0), (0, 9000, 1), (1, 8003, 1), (0, 9000, 2), (1, 8005, 2)][..],
            8005,
        ),
        (
            "but nobody is who was seen to advance before the other was asked twice",
            2,
            &[(0, 9000, 0), (1, 8000, 1), (0, 9003, 2), (0, 9006, 3)][..],
            8000,
        ),
        (
            "nor while both advance",
            2,
            &[(0, 100_900, 0), (1, 900, 0), (0, 100_903, 1), (1, 902, 1), (0, 100_906, 3), (1, 907, 3)][..],
            907,
        ),
        (
            "nor if it jumped up",
            2,
            &[(0, 900, 0), (1, 500, 0), (0, 100_900, 1), (1, 500, 1), (0, 100_900, 2), (1, 500, 2)][..],
            500,
        ),
        (
            "nor if it flaps",
            2,
            &[(0, 9000, 0), (1, 500, 0), (0, 900, 1), (1, 500, 1), (0, 9001, 2), (1, 500, 2), (0, 900, 3)][..],
            500,
        ),
        (
            "nor beside two that stand still together",
            3,
            &[(0, 9000, 0), (1, 500, 0), (2, 501, 0), (0, 9003, 1), (1, 500, 2), (2, 501, 2), (0, 9006, 3)][..],
            501,
        ),
        (
            "nor once a slot was believed",
            2,
            &[(0, 500, 0), (1, 501, 0), (0, 9000, 1), (1, 501, 1), (0, 9003, 2), (1, 501, 3), (0, 9006, 4)][..],
            501,
        ),
    ] {
        assert_eq!(frontier(nodes, reports).0.slot(C), expected, "{name}");
    }
}

#[test]
fn start_waits_for_a_believed_slot() {
    let both_advance = |slots: u64| [(0, 9000 + slots, slots), (1, 500 + slots, slots)];
    let both_advance: Vec<_> = (0..=10).flat_map(both_advance).collect();
    for (name, nodes, reports, at_ms, expected) in [
        ("no slot to wait for", 2, &[][..], 0, true),
        ("a pool of one", 1, &[(0, 100, 0)][..], 0, true),
        ("two agree", 2, &[(0, 100, 0), (1, 103, 0)][..], 0, true),
        ("a cluster that stands still", 2, &[(0, 100, 0), (1, 100, 0)][..], 0, true),
        ("the others have not answered yet", 2, &[(0, 100, 0)][..], 1000, false),
        ("nor to three probes", 2, &[(0, 100, 0), (0, 103, 1), (0, 105, 2)][..], 2000, true),
        ("two are far apart", 2, &[(0, 9000, 0), (1, 500, 0)][..], 500, false),
        ("one of them advances", 2, &[(0, 9000, 0), (1, 500, 0), (0, 9003, 1), (1, 500, 1)][..], 1000, false),
        (
            "and the other stands still",
            2,
            &[(0, 9000, 0), (1, 500, 0), (0, 9003, 1), (1, 500, 2)][..],
            2000,
            true,
        ),
        (
            "none of them advances",
            2,
            &[(0, 9000, 0), (1, 500, 0), (0, 9000, 1), (1, 500, 2), (0, 9000, 2)][..],
            2000,
            true,
        ),
        ("both of them advance", 2, &both_advance[..20], 9_500, false),
        ("both have advanced for ten seconds", 2, &both_advance[..], 10_000, true),
        (
            "one that flaps delays nothing for longer",
            2,
            &[(0, 9000, 0), (1, 500, 0), (0, 900, 4), (0, 9000, 8), (1, 500, 9)][..],
            10_000,
            true,
        ),
    ] {
        let (frontier, start) = frontier(nodes, reports);
        assert_eq!(frontier.is_settled(start + Duration::from_millis(at_ms)), expected, "{name}");
    }
    let (frontier, start) = frontier(2, &[(0, 100, 0), (1, 100, 0)]);
    assert!(frontier.is_settled(start));
    frontier.forget();
    frontier.probed(frontier.era(), 0, C, 9000, start);
    assert!(frontier.is_settled(start), "only the start waits");
}

#[tokio::test]
async fn falls_of_believed_slots_are_told() {
    let abandoned = |nodes, reports: &[(usize, Slot, u64)]| {
        let (frontier, start) = frontier(nodes, &[]);
        for &(node, slot, at_s) in reports {
            frontier.probed(
                frontier.era(),
                node,
                Commitment::Finalized,
                slot,
                start + Duration::from_secs(at_s),
            );
        }
        futures_util::FutureExt::now_or_never(frontier.final_slots_abandoned())
    };
    for (name, nodes, reports, expected) in [
        ("no fall", 1, &[(0, 100, 0), (0, 101, 1)][..], None),
        (
            "one node falls behind",
            2,
            &[(0, 100, 0), (1, 100, 0), (0, 50, 1), (1, 140, 40), (0, 60, 41)][..],
            None,
        ),
        ("it comes back in time", 1, &[(0, 100, 0), (0, 50, 1), (0, 101, 29)][..], None),
        ("the lowest slot counts", 1, &[(0, 100, 0), (0, 50, 1), (0, 40, 2), (0, 90, 32)][..], Some(40)),
        (
            "nobody was there for a minute, then one is behind",
            1,
            &[(0, 100, 0), (0, 90, 60), (0, 101, 61)][..],
            None,
        ),
        ("the slot was never believed", 2, &[(0, 9000, 0), (1, 100, 1)][..], None),
    ] {
        assert_eq!(abandoned(nodes, reports), expected, "{name}");
    }
}

#[test]
fn only_probes_lower_a_node() {
    let (frontier, now) = frontier(1, &[(0, 100, 0)]);
    frontier.answered(frontier.era(), 0, C, 90, now);
    assert_eq!(frontier.slots_of(0).slot(C), Some(100));
    frontier.probed(frontier.era(), 0, C, 90, now);
    assert_eq!((frontier.slots_of(0).slot(C), frontier.lag(&frontier.slots_of(0), C)), (Some(90), Some(10)));
}

#[test]
fn unusable_nodes_do_not_count() {
    let (frontier, now) = frontier(2, &[(0, 100, 0)]);
    frontier.set_usable(1, false, now);
    frontier.probed(frontier.era(), 1, C, 120, now);
    assert_eq!(frontier.slot(C), 100);
    frontier.set_usable(1, true, now);
    assert_eq!(frontier.slot(C), 120);
}

#[test]
fn node_numbers_are_never_reused() {
    let (frontier, now) = frontier(2, &[(0, 100, 0), (1, 103, 0)]);
    let slots = frontier.slots_of(1);
    frontier.leave(1, now);
    frontier.probed(frontier.era(), 1, C, 900, now);
    assert_eq!((frontier.slot(C), frontier.slots_of(1).slot(C), slots.slot(C)), (103, None, Some(103)));
    let added = frontier.join();
    assert_eq!((added, frontier.slots_of(added).slot(C)), (2, None));
    frontier.probed(frontier.era(), added, C, 110, now);
    assert_eq!((frontier.slot(C), frontier.lag(&frontier.slots_of(0), C)), (110, Some(10)));
    frontier.leave(0, now);
    frontier.probed(frontier.era(), added, C, 900, now);
    assert_eq!(frontier.slot(C), 900, "a pool of one believes its node");
}

#[test]
fn impossible_slots_are_ignored() {
    for (reported, expected) in [(HIGHEST_SLOT, HIGHEST_SLOT), (HIGHEST_SLOT + 1, 100), (u64::MAX, 100)] {
        let (frontier, now) = frontier(1, &[(0, 100, 0), (0, reported, 1)]);
        frontier.answered(frontier.era(), 0, C, reported, now);
        assert_eq!(
            (frontier.slot(C), frontier.slots_of(0).slot(C)),
            (expected, Some(expected)),
            "{reported}"
        );
    }
}

#[tokio::test]
async fn waiter_wakes_when_the_frontier_arrives() {
    let (frontier, now) = frontier(1, &[(0, 100, 0)]);
    let waits = frontier.reached(C, 101);
    tokio::pin!(waits);
    assert!(futures_util::poll!(&mut waits).is_pending());
    frontier.answered(frontier.era(), 0, C, 101, now);
    waits.await;
}

/// Lets `nodes` nodes report slots of `slot_ms` milliseconds for `seconds` seconds. Returns the frontier, the
/// time at the end, and the newest slot.
fn paced(nodes: usize, seconds: u64, slot_ms: u64) -> (Frontier, Instant, Slot) {
    let (frontier, start) = frontier(nodes, &[]);
    let slots = seconds * 1_000 / slot_ms;
    for slot in 1..=slots {
        (0..nodes).for_each(|node| {
            frontier.probed(frontier.era(), node, C, slot, start + Duration::from_millis(slot * slot_ms));
        });
    }
    (frontier, start + Duration::from_secs(seconds), slots)
}

#[test]
fn slot_time_is_reset_with_the_cluster() {
    let ms = |frontier: &Frontier| frontier.slot_time().as_millis();
    let (frontier, ..) = paced(1, 30, 250);
    assert_eq!(ms(&frontier), 400, "half a minute tells nothing");
    let (frontier, now, slot) = paced(1, 70, 250);
    assert_eq!((ms(&frontier), frontier.time_of(20)), (250, Duration::from_secs(5)));
    frontier.probed(frontier.era(), 0, C, slot + 1, now + Duration::from_secs(90));
    assert_eq!(ms(&frontier), 250, "a frontier that stands still is no slow one");
    frontier.forget();
    assert_eq!(ms(&frontier), 400, "another cluster");
}

#[test]
fn single_node_lead_is_bounded_in_time() {
    for (slot_ms, lead) in [(400, 64), (250, 102), (200, 128), (50, 256), (2_000, 26)] {
        let (frontier, now, slot) = paced(2, 140, slot_ms);
        frontier.probed(frontier.era(), 0, C, slot + lead, now);
        assert_eq!(frontier.slot(C), slot + lead, "within the lead at {slot_ms} ms");
        let (frontier, now, slot) = paced(2, 140, slot_ms);
        frontier.probed(frontier.era(), 0, C, slot + lead + 1, now);
        assert_eq!(frontier.slot(C), slot, "further at {slot_ms} ms");
        assert!(frontier.believes(C, slot + lead) && !frontier.believes(C, slot + lead + 1));
    }
}

#[test]
fn earlier_eras_do_not_count() {
    let (frontier, start) = frontier(1, &[(0, 1_000, 0)]);
    let before = frontier.era();
    frontier.forget();
    frontier.probed(frontier.era(), 0, C, 10, start);
    frontier.answered(before, 0, C, 1_001, start);
    frontier.probed(before, 0, C, 1_002, start);
    assert_eq!((frontier.slot(C), frontier.slots_of(0).slot(C)), (10, Some(10)));
    frontier.answered(frontier.era(), 0, C, 11, start);
    assert_eq!((frontier.slot(C), frontier.slots_of(0).slot(C)), (11, Some(11)));
}
