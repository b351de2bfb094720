//! Tests of blocks that replicas share.

use super::script::ScriptedStore;
use super::*;

/// Creates `nodes` scripted nodes, a chain that begins at slot 100, and a store that shares blocks with other
/// replicas.
async fn sharing(nodes: usize) -> (Scene, ChainInProgress, Arc<ScriptedStore>) {
    let (mut scene, chain) = Scene::begun(nodes).await;
    let store = scene.share();
    (scene, chain, store)
}

/// Returns the number of getBlock calls that node 0 has received since the chain began.
fn asked(scene: &Scene) -> u64 {
    scene.node(0).asked("getBlock") - 1
}

fn tip(chain: &ChainInProgress) -> Slot {
    chain.writer.chain().tip().slot
}

#[tokio::test(start_paused = true)]
async fn shared_blocks_are_not_asked_for() {
    let (scene, mut chain, store) = sharing(1).await;
    for block in [Block::after(100).writing(1), Block::after(101)] {
        scene.add(&block);
        store.put(&block);
    }
    let polled_at = Instant::now();
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!((tip(&chain), asked(&scene)), (102, 0));
    assert_eq!(chain.writer.chain().tip().polled_at, polled_at);
    assert_eq!([1, 2].map(|n| is_carried(&scene, &chain, n, 100)), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn only_listed_slots_are_looked_up() {
    let (scene, mut chain, store) = sharing(1).await;
    store.put(&Block::after(100));
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert_eq!(tip(&chain), 100);
}

#[tokio::test(start_paused = true)]
async fn blocks_of_nodes_are_published() {
    let (scene, mut chain, store) = sharing(1).await;
    let block = Block::after(100).writing(1);
    scene.add(&block);
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    assert!(store.has(&block));
}

#[tokio::test(start_paused = true)]
async fn records_that_do_not_join_are_replaced() {
    for record in [
        Block { parent: 99, ..Block::after(100) },
        Block { previous: Some("other".into()), ..Block::after(100) },
    ] {
        let (scene, mut chain, store) = sharing(1).await;
        let block = Block::after(100).writing(1);
        scene.add(&block);
        store.put(&record);
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
        assert_eq!((tip(&chain), asked(&scene)), (101, 1));
        assert!(!is_carried(&scene, &chain, 1, 100), "the node's block counts");
        assert!(store.has(&block), "other replicas get it, too");
    }
}

#[tokio::test(start_paused = true)]
async fn record_with_another_hash_ends_the_chain() {
    let (scene, mut chain, store) = sharing(1).await;
    scene.add(&Block::after(100));
    store.put(&Block { hash: Some("other".into()), ..Block::after(100) });
    assert_eq!(scene.advance(&mut chain).await, Ok(()));
    scene.add(&Block::after(101));
    assert_eq!(scene.advance(&mut chain).await, restart(RestartReason::Gap));
}

#[tokio::test(start_paused = true)]
async fn claimed_blocks_are_waited_for() {
    let (scene, mut chain, store) = sharing(1).await;
    scene.add(&Block::after(100));
    store.claim(101);
    let began = Instant::now();
    let publish = async {
        sleep(MS(700)).await;
        store.put(&Block::after(100));
    };
    let (end, ()) = tokio::join!(scene.advance(&mut chain), publish);
    assert_eq!((end, tip(&chain), asked(&scene)), (Ok(()), 101, 0));
    assert!((MS(700)..MS(750)).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn slow_claims_delay_one_block() {
    // The reader waits for the second claimed block only if its wait for the first was short.
    for (wait, asked_next) in [(200, 0), (300, 1)] {
        let (scene, mut chain, store) = sharing(1).await;
        for (after, slot) in [(100, 101), (101, 102)] {
            scene.add(&Block::after(after));
            store.claim(slot);
            let publish = async {
                sleep(MS(wait)).await;
                store.put(&Block::after(after));
            };
            let (end, ()) = tokio::join!(scene.advance(&mut chain), publish);
            assert_eq!((end, tip(&chain)), (Ok(()), slot));
        }
        assert_eq!(asked(&scene), asked_next, "waits of {wait} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn records_without_rewards_blame_no_claim() {
    let (scene, mut chain, store) = sharing(1).await;
    for (after, has_fee) in [(100, false), (101, true)] {
        scene.add(&Block::after(after));
        store.claim(after + 1);
        let publish = async {
            sleep(MS(100)).await;
            store.put(&if has_fee {
                Block::after(after)
            } else {
                Block { fee: None, ..Block::after(after) }
            });
        };
        let (end, ()) = tokio::join!(scene.advance(&mut chain), publish);
        assert_eq!((end, tip(&chain)), (Ok(()), after + 1));
    }
    assert_eq!(asked(&scene), 1, "the second claim is waited for");
}

/// Checks that a long wait for a block that another replica has claimed is followed by ten seconds without
/// such waits. `leave` is called 800 ms after each claim, and may remove the claim.
async fn wait_in_vain(leave: impl Fn(&ScriptedStore)) {
    let (scene, mut chain, store) = sharing(1).await;
    let elapsed = async |chain: &mut ChainInProgress| {
        scene.add(&Block::after(tip(chain)));
        store.claim(tip(chain) + 1);
        let (began, slot) = (Instant::now(), tip(chain) + 1);
        let leave = async {
            sleep(MS(800)).await;
            leave(&store);
        };
        let (end, ()) = tokio::join!(
            async {
                let end = scene.advance(chain).await;
                (end, tip(chain), began.elapsed())
            },
            leave
        );
        assert_eq!((end.0, end.1), (Ok(()), slot));
        end.2
    };
    let first = elapsed(&mut chain).await;
    assert!((MS(800)..=MS(1_000)).contains(&first), "{first:?}");
    assert_eq!(elapsed(&mut chain).await, Duration::ZERO, "the next one is not waited for");
    advance(MS(10_000)).await;
    assert!(elapsed(&mut chain).await >= MS(800), "claims count again");
    assert_eq!(asked(&scene), 3);
}

#[tokio::test(start_paused = true)]
async fn silent_claims_delay_one_block() {
    wait_in_vain(|_| {}).await;
    wait_in_vain(|store| [101, 102, 103].into_iter().for_each(|slot| store.remove(slot))).await;
}

#[tokio::test(start_paused = true)]
async fn late_rewards_may_come_from_the_store() {
    for (previous, is_taken) in [(None, true), (Some("other".to_owned()), false)] {
        let (scene, mut chain, store) = sharing(1).await;
        scene.add(&Block { fee: None, ..Block::after(100) });
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
        assert_eq!(tip(&chain), 100, "the block waits");
        store.put(&Block { previous, fee: Some(9), ..Block::after(100) });
        assert_eq!(scene.advance(&mut chain).await, Ok(()));
        assert_eq!((tip(&chain), asked(&scene)), (if is_taken { 101 } else { 100 }, 1));
        assert_eq!(is_carried(&scene, &chain, 9, 100), !is_taken);
    }
}

#[tokio::test(start_paused = true)]
async fn shared_tip_is_compared_with_any_node() {
    for (hash, expected) in [(None, Ok(())), (Some("other"), restart(RestartReason::Disagreement))] {
        let (scene, mut chain, store) = sharing(1).await;
        let mut end = Ok(());
        for slot in 100..100 + CROSS_CHECK_EVERY {
            let is_last = slot + 1 == 100 + CROSS_CHECK_EVERY;
            scene.add(&Block::after(slot));
            store.put(&Block { hash: hash.filter(|_| is_last).map(Into::into), ..Block::after(slot) });
            assert_eq!(scene.advance(&mut chain).await, Ok(()));
        }
        while chain.check.is_some() && end == Ok(()) {
            // Lets the node answer.
            sleep(MS(10)).await;
            end = scene.advance(&mut chain).await;
        }
        assert_eq!(end, expected);
        assert_eq!(asked(&scene), 1, "the node was asked for one hash alone");
    }
}
