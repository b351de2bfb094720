//! Blocks that nodes do not give, and blocks without their rewards.

use super::*;

#[tokio::test(start_paused = true)]
async fn missing_block_is_asked_of_nodes_in_turn() {
    let (scene, mut chain) = Scene::begun(2).await;
    scene.add(&Block::after(100));
    let null = || Ok(NodeReply::Result("null".into()));
    scene.node(0).refuse(101, [null(), error(-32014), error(-32007)]);
    scene.node(1).refuse(101, [error(-32004), Err(Fault::Timeout), null()]);
    let began = Instant::now();
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip().slot, 101);
    // Six pauses: 50 ms, 75 ms, 113 ms, 169 ms, 253 ms, and 380 ms.
    assert!((MS(1_039)..MS(1_050)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!((scene.node(0).asked("getBlock"), scene.node(1).asked("getBlock")), (5, 3));
}

#[tokio::test(start_paused = true)]
async fn block_missing_for_five_seconds_is_a_gap() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block::after(100));
    scene.node(0).refuse(101, (0..200).map(|_| error(-32004)));
    let began = Instant::now();
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Gap));
    assert!((MS(5_000)..MS(6_000)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn missing_block_is_asked_for_less_and_less() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block::after(100));
    scene.node(0).refuse(101, (0..200).map(|_| Err(Fault::Status(500))));
    let before = scene.node(0).asked("getBlock");
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Gap));
    let asked = scene.node(0).asked("getBlock") - before;
    assert!(asked <= 12, "{asked} times in five seconds");
}

#[tokio::test(start_paused = true)]
async fn first_block_is_asked_for_less_and_less() {
    let scene = Scene::new(1);
    scene.node(0).refuse(100, (0..200).map(|_| Err(Fault::Status(500))));
    assert_eq!(scene.reader().begin().await.err(), Some(PauseReason::NoNode));
    let asked = scene.node(0).asked("getBlock");
    assert!(asked <= 12, "{asked} times in five seconds");
}

#[tokio::test(start_paused = true)]
async fn blocks_that_always_time_out_pause_following() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block::after(100));
    scene.node(0).refuse(101, (0..200).map(|_| Err(Fault::Timeout)));
    assert_eq!(scene.advance(&mut chain).await, Err(FollowEnd::Pause(PauseReason::TooSlow)));
}

#[tokio::test(start_paused = true)]
async fn missing_rewards_are_asked_for_again() {
    // Node 0 is asked for the missing rewards if it has a later block. Otherwise node 1 is asked after two
    // seconds.
    for (has_descendant, wait, other_node) in [(true, 0, false), (false, 2_000, true)] {
        let (scene, mut chain) = Scene::begun(2).await;
        scene.add(&Block { fee: None, ..Block::after(100) });
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
        assert_eq!(chain.writer.chain().tip().slot, 100, "the block waits");
        scene.add(&Block { fee: Some(9), ..Block::after(100) });
        if has_descendant {
            scene.add(&Block::after(101));
        }
        advance(MS(wait)).await;
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
        assert_eq!(chain.writer.chain().tip().slot, 101 + u64::from(has_descendant));
        assert!(!is_carried(&scene, &chain, 9, 100), "the leader's account was written");
        assert_eq!(scene.node(1).asked("getBlock"), u64::from(other_node));
    }
}

#[tokio::test(start_paused = true)]
async fn block_without_fees_counts_after_two_answers() {
    let (scene, mut chain) = Scene::begun(1).await;
    scene.add(&Block { fee: None, ..Block::after(100) });
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    advance(MS(2_000)).await;
    scene.node(0).refuse(101, [Err(Fault::Timeout)]);
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip().slot, 100, "no second answer came");
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(chain.writer.chain().tip().slot, 101);
}

#[tokio::test(start_paused = true)]
async fn cluster_without_fees_is_not_followed() {
    let (scene, mut chain) = Scene::begun(1).await;
    for slot in 100..=100 + BLOCKS_WITHOUT_FEES {
        scene.add(&Block { fee: None, ..Block::after(slot) });
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
        advance(MS(2_000)).await;
        let end = scene.advance(&mut chain).await;
        let last = slot == 100 + BLOCKS_WITHOUT_FEES;
        assert_eq!(end, if last { Err(FollowEnd::Pause(PauseReason::NoFees)) } else { Ok(()) }, "{slot}");
    }
}
