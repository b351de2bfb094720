//! Tests of the reader with scripted nodes and a paused clock.

mod missing;
mod script;
mod sharing;

use super::*;
use crate::follow::{Bucket, Carry};
use crate::methods::Pubkey;
use crate::node::{Fault, NodeReply};
use script::{Block, Scene, error};
use tokio::time::advance;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Returns the error after which the follower begins a new chain, for `reason`.
fn restart(reason: RestartReason) -> Result<(), FollowEnd> {
    Err(FollowEnd::Restart(reason))
}

fn bucket(scene: &Scene, n: u8) -> Bucket {
    scene.followed.bucket(&Pubkey([n; 32]))
}

/// Returns true if an answer about the account `n`, read at `slot`, may be served as an answer at the newest slot
/// of the chain.
fn is_carried(scene: &Scene, chain: &ChainInProgress, n: u8, slot: Slot) -> bool {
    chain.writer.chain().unchanged_until(bucket(scene, n), slot, Carry::ToTip).is_some()
}

#[tokio::test(start_paused = true)]
async fn chain_begins_at_the_confirmed_slot() {
    let scene = Scene::new(1);
    let chain = scene.reader().begin().await.unwrap_or_else(|reason| panic!("{reason:?}"));
    assert_eq!(chain.writer.chain().tip().slot, 100);
    assert_eq!(scene.frontier.slot(Commitment::Confirmed), 100);
}

#[tokio::test(start_paused = true)]
async fn first_node_that_can_begins() {
    for (broken, expected) in [(&[][..], Some(0)), (&[0], Some(1)), (&[0, 1], None)] {
        let scene = Scene::new(2);
        for node in broken {
            scene.node(*node).is_down = true;
        }
        assert_eq!(scene.reader().begin().await.ok().map(|chain| chain.turn), expected, "{broken:?}");
    }
    assert_eq!(Scene::new(0).reader().begin().await.err(), Some(PauseReason::NoNode));
}

#[tokio::test(start_paused = true)]
async fn new_blocks_are_added_with_their_writes() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block::after(100).writing(1));
    scene.add(&Block { slot: 103, ..Block::after(101) }.writing(2));
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip().slot, 103);
    let carried = [(1, 100), (1, 101), (2, 101), (2, 103), (3, 100), (3, 102)];
    let carried = carried.map(|(account, slot)| is_carried(&scene, &chain, account, slot));
    assert_eq!(carried, [false, true, false, true, true, false]);
    assert_eq!(scene.metrics.follow_blocks.at(crate::telemetry::BlockResult::Read).get(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_polls_that_name_the_tip_renew_it() {
    let (scene, mut chain) = Scene::begun(2).await;
    let began = chain.writer.chain().tip().polled_at;
    advance(MS(500)).await;
    scene.node(0).newest = 99;
    assert_eq!(scene.advance(&mut chain).await, Ok(()), "the node is behind");
    scene.node(1).is_down = true;
    assert_eq!(scene.advance(&mut chain).await, Ok(()), "the second node is asked, and is down");
    assert_eq!(chain.writer.chain().tip().polled_at, began);
    scene.node(0).newest = 100;
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip().polled_at, began + MS(500));
}

#[tokio::test(start_paused = true)]
async fn chain_ends_if_all_nodes_are_behind() {
    let (scene, mut chain) = Scene::begun(2).await;
    for node in [0, 1] {
        scene.node(node).newest = 99;
    }
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    advance(MS(2_000)).await;
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    advance(MS(1)).await;
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Behind));
    assert_eq!((scene.node(0).asked("getBlocks"), scene.node(1).asked("getBlocks")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn faults_of_nodes_end_no_chain() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.node(0).is_down = true;
    for _ in 0..30 {
        advance(MS(1_000)).await;
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
    }
    scene.node(0).is_down = false;
    scene.add(&Block::after(100));
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip().slot, 101);
}

/// Lets the reader poll once. Returns the numbers of polls that node 0 and node 1 have received so far.
async fn polls(scene: &Scene, chain: &mut ChainInProgress) -> (u64, u64) {
    assert_eq!(scene.advance(chain).await, Ok(()));
    (scene.node(0).asked("getBlocks"), scene.node(1).asked("getBlocks"))
}

#[tokio::test(start_paused = true)]
async fn nodes_with_newer_blocks_are_preferred() {
    for (tier, expected) in [(0, (1, 1)), (1, (2, 0))] {
        let (scene, mut chain) = Scene::begun(2).await;
        scene.node(1).tier = tier;
        scene.add_to(&[1], &Block::after(100));
        scene.frontier.answered(scene.frontier.era(), 1, Commitment::Confirmed, 101, Instant::now());
        assert_eq!(polls(&scene, &mut chain).await, (1, 0));
        assert_eq!(polls(&scene, &mut chain).await, expected, "tier {tier}");
    }
}

#[tokio::test(start_paused = true)]
async fn higher_tiers_are_polled_for_a_while() {
    let (scene, mut chain) = Scene::begun(2).await;
    scene.node(1).tier = 1;
    scene.node(0).is_down = true;
    assert_eq!(polls(&scene, &mut chain).await, (1, 0));
    scene.node(0).is_down = false;
    advance(MS(9_999)).await;
    assert_eq!(polls(&scene, &mut chain).await, (1, 1));
    advance(MS(1)).await;
    assert_eq!(polls(&scene, &mut chain).await, (2, 1));
}

#[tokio::test(start_paused = true)]
async fn slots_without_the_tip_are_a_fork() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.node(0).blocks.clear();
    scene.add(&Block { slot: 101, ..Block::after(99) });
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Fork));
}

#[tokio::test(start_paused = true)]
async fn malformed_slot_lists_are_failed_polls() {
    let last = 100 + LISTED_SLOTS;
    for (listed, expected) in [
        (vec![101, 100], Ok(())),
        (vec![100, 100], Ok(())),
        (vec![100, 102, 101], Ok(())),
        (vec![100, last + 1], Ok(())),
        (vec![100, u64::MAX], Ok(())),
        (vec![u64::MAX], Ok(())),
        (vec![last], restart(RestartReason::Fork)),
        (vec![99, 100], restart(RestartReason::Fork)),
    ] {
        let (scene, mut chain) = Scene::begun(1).await;
        scene.node(0).listed = Some(listed.clone());
        assert_eq!(scene.advance(&mut chain).await, expected, "{listed:?}");
        assert_eq!(scene.frontier.slot(Commitment::Confirmed), 100, "{listed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn impossible_slots_hasten_no_poll() {
    let scene = Scene::new(1);
    let reader = scene.reader();
    let followed = timeout(MS(1_030), reader.follow());
    let claim = async {
        sleep(MS(50)).await;
        scene.frontier.probed(scene.frontier.era(), 0, Commitment::Confirmed, u64::MAX, Instant::now());
    };
    let _ = tokio::join!(followed, claim);
    assert_eq!(scene.node(0).asked("getBlocks"), 9);
}

#[tokio::test(start_paused = true)]
async fn more_blocks_than_max_gap_begin_anew() {
    for (blocks, expected) in [(8, Ok(())), (9, restart(RestartReason::TooFar))] {
        let (scene, mut chain) = Scene::begun(1).await;
        (0..blocks).for_each(|n| scene.add(&Block::after(100 + n)));
        assert_eq!(scene.advance(&mut chain).await, expected, "{blocks}");
    }
}

#[tokio::test(start_paused = true)]
async fn skipped_slots_are_no_gap() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block { slot: 301, ..Block::after(100) });
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip().slot, 301);
}

#[tokio::test(start_paused = true)]
async fn block_that_does_not_join_is_a_gap() {
    for block in [
        Block { parent: 99, ..Block::after(100) },
        Block { previous: Some("other".into()), ..Block::after(100) },
        Block { more: r#","numRewardPartitions":1"#, ..Block::after(100) },
    ] {
        let (scene, mut chain) = Scene::begun(1).await;
        scene.add(&block);
        assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Gap));
        assert_eq!(chain.writer.chain().tip().slot, 100);
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_before_a_gap_are_added() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block::after(100));
    scene.add(&Block { previous: Some("other".into()), ..Block::after(101) });
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Gap));
    assert_eq!(chain.writer.chain().tip().slot, 101);
}

#[tokio::test(start_paused = true)]
async fn tip_far_behind_for_long_pauses_following() {
    let pause = Err(FollowEnd::Pause(PauseReason::TooSlow));
    // The chain gets twelve blocks, one a second. All but the sixth are too far behind the confirmed slot. The
    // sixth is `sixth` slots behind. If that is near enough, the chain is never too far behind for more than ten
    // seconds.
    for (sixth, expected) in
        [(chain_in_progress::LATE_SLOTS + 1, pause), (chain_in_progress::LATE_SLOTS, Ok(()))]
    {
        let (scene, mut chain) = Scene::begun(1).await;
        for slot in 101..=112 {
            let behind = if slot == 106 { sixth } else { chain_in_progress::LATE_SLOTS + 1 };
            scene.frontier.answered(
                scene.frontier.era(),
                0,
                Commitment::Confirmed,
                slot + behind,
                Instant::now(),
            );
            scene.add(&Block::after(slot - 1));
            let is_last = slot == 112;
            assert_eq!(scene.advance(&mut chain).await, if is_last { expected } else { Ok(()) }, "{slot}");
            advance(MS(1_000)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tip_stays_within_the_confirmed_frontier() {
    let (scene, mut chain) = Scene::begun(3).await;
    for node in [1, 2] {
        scene.frontier.probed(scene.frontier.era(), node, Commitment::Confirmed, 100, Instant::now());
    }
    // Node 0 is 90 slots ahead of all others, so the frontier does not believe it.
    scene.add_to(&[0], &Block { slot: 190, ..Block::after(100) });
    let began = chain.writer.chain().tip();
    advance(MS(100)).await;
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip(), began, "neither moved nor renewed");
    scene.frontier.answered(scene.frontier.era(), 1, Commitment::Confirmed, 190, Instant::now());
    chain.turn = 0;
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip().slot, 190);
}

#[tokio::test(start_paused = true)]
async fn unknown_blocks_pause_following() {
    let pause = Err(FollowEnd::Pause(PauseReason::UnknownForm));
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block::after(100));
    scene.node(0).refuse(101, [error(-32015)]);
    assert_eq!(scene.advance(&mut chain).await, pause);
    let text = Block::after(100).text().replace("\"signer\"", "\"delayed\":true,\"signer\"");
    scene.node(0).refuse(101, [Ok(NodeReply::Result(text.into()))]);
    assert_eq!(scene.advance(&mut chain).await, pause);
}

#[tokio::test(start_paused = true)]
async fn epoch_ends_the_chain() {
    let scene = Scene::new(1);
    scene.node(0).slots_per_epoch = 51;
    let mut chain = scene.reader().begin().await.unwrap_or_else(|reason| panic!("{reason:?}"));
    scene.add(&Block::after(100));
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    scene.add(&Block::after(101));
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Epoch));
}

#[tokio::test(start_paused = true)]
async fn finalized_slot_outside_the_chain_ends_it() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block { slot: 102, ..Block::after(100) });
    let finalize =
        |slot| scene.frontier.answered(scene.frontier.era(), 0, Commitment::Finalized, slot, Instant::now());
    finalize(100);
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().target(), Some(100));
    finalize(101);
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Fork));
}

#[tokio::test(start_paused = true)]
async fn minute_without_blocks_ends_the_chain() {
    let (scene, mut chain) = Scene::begun(1).await;
    advance(MS(60_000)).await;
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    advance(MS(1)).await;
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Stalled));
}

/// Adds blocks up to the first one whose hash is compared with another node's. Then calls `change`, and lets
/// the reader ask the other node for its hash of this block.
async fn checked(change: impl FnOnce(&Scene)) -> Result<(), FollowEnd> {
    let (scene, mut chain) = Scene::begun(2).await;
    for slot in 100..100 + CROSS_CHECK_EVERY {
        scene.add(&Block::after(slot));
        if slot + 1 == 100 + CROSS_CHECK_EVERY {
            break;
        }
        scene.advance(&mut chain).await?;
    }
    change(&scene);
    for _ in 0..20 {
        scene.advance(&mut chain).await?;
        // Lets the second node answer.
        sleep(MS(100)).await;
    }
    assert!(chain.check.is_none(), "the second node was asked");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tip_is_compared_with_a_second_node() {
    let last = 100 + CROSS_CHECK_EVERY;
    assert_eq!(checked(|_| {}).await, Ok(()));
    let not_yet = |scene: &Scene| scene.node(1).refuse(last, [error(-32004)]);
    assert_eq!(checked(not_yet).await, Ok(()), "it is asked again");
    let other = |scene: &Scene| {
        scene.add_to(&[1], &Block { hash: Some("other".into()), ..Block::after(last - 1) });
    };
    assert_eq!(checked(other).await, restart(RestartReason::Disagreement));
}

#[tokio::test(start_paused = true)]
async fn node_without_the_block_is_no_second_opinion() {
    let (scene, mut chain) = Scene::begun(2).await;
    for slot in 100..100 + CROSS_CHECK_EVERY {
        scene.add_to(&[0], &Block::after(slot));
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
    }
    for _ in 0..300 {
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
        sleep(MS(100)).await;
    }
    assert_eq!(scene.node(1).asked("getBlock"), 4);
    assert!(chain.check.is_none(), "the comparison is given up");
}

#[tokio::test(start_paused = true)]
async fn chain_is_published_while_it_is_followed() {
    let scene = Scene::new(1);
    scene.add(&Block::after(100));
    let reader = scene.reader();
    let followed = timeout(MS(1_000), reader.follow());
    let seen = async {
        sleep(MS(500)).await;
        (
            scene.followed.number(),
            scene.followed.current().as_deref().map(|chain| chain.tip().slot),
            scene.followed.state(),
        )
    };
    let (end, seen) = tokio::join!(followed, seen);
    assert!(end.is_err(), "the chain goes on");
    assert_eq!(seen, (1, Some(101), FollowState::Following));
    assert_eq!((scene.followed.number(), scene.followed.current().is_none()), (0, true));
}

#[tokio::test(start_paused = true)]
async fn polls_spare_the_time_after_a_block() {
    let scene = Scene::new(1);
    let _ = timeout(MS(1_030), scene.reader().follow()).await;
    // Slots take 400 ms, so the first poll at 0 ms is followed by one at 240 ms, and then by one each 100 ms.
    assert_eq!(scene.node(0).asked("getBlocks"), 9);
}

#[tokio::test(start_paused = true)]
async fn frontiers_are_followed_between_polls() {
    let scene = Scene::new(1);
    let reader = scene.reader();
    let followed = timeout(MS(1_000), reader.follow());
    let seen = async {
        // The next poll is due at 540 ms.
        sleep(MS(450)).await;
        scene.add(&Block::after(100));
        let answered = |commitment, slot| {
            scene.frontier.answered(scene.frontier.era(), 0, commitment, slot, Instant::now());
        };
        answered(Commitment::Confirmed, 101);
        answered(Commitment::Finalized, 100);
        sleep(MS(1)).await;
        scene.followed.current().as_ref().map(|chain| (chain.tip().slot, chain.target()))
    };
    let (_, seen) = tokio::join!(followed, seen);
    assert_eq!(seen, Some((101, Some(100))));
}
