//! Tests of the table of watches.

use futures_util::FutureExt as _;

use super::*;
use crate::fair::CallerId;
use Commitment::{Confirmed, Finalized, Processed};

const SIGNATURE: Signature = Signature([7; 64]);

fn watcher(number: usize) -> Watcher {
    Watcher { caller: CallerId::numbered(number), address: None }
}

fn statuses(slot: Slot, status: Option<(Slot, Commitment)>) -> Statuses {
    let text = status.map_or("null".to_owned(), |(slot, reached)| {
        format!(r#"{{"slot":{slot},"confirmations":1,"err":null,"confirmationStatus":"{reached}"}}"#)
    });
    Statuses { slot, context: Bytes::new(), each: vec![text.into()], node: 0 }
}

fn note(watches: &Watches, slot: Slot, status: Option<(Slot, Commitment)>) {
    watches.note(&[SIGNATURE], &statuses(slot, status), Instant::now(), |_, slot| slot);
}

fn unsettled(watches: &Watches, number: usize, commitment: Commitment, slot: Slot) -> bool {
    watches.lock().unsettled((watcher(number), commitment), slot, u64::MAX).next().is_some()
}

#[tokio::test]
async fn heights_wait_for_what_may_have_landed_and_was_not_told() {
    let watches = Arc::<Watches>::default();
    let waits = |commitment, slot| unsettled(&watches, 1, commitment, slot);
    assert!(!waits(Confirmed, 100), "nothing is watched");
    let [mut watch, other] = [1, 2].map(|of| watches.add(SIGNATURE, Confirmed, Some(watcher(of))));
    assert!(waits(Confirmed, 1));
    assert!(!waits(Finalized, 100), "each commitment has its own");
    assert!(!unsettled(&watches, 3, Confirmed, 100), "somebody else's");
    note(&watches, 100, None);
    assert!(!waits(Confirmed, 100) && waits(Confirmed, 101));
    // It is in a block, which may be confirmed at its slot.
    note(&watches, 110, Some((105, Processed)));
    assert!(!waits(Confirmed, 104) && waits(Confirmed, 105));
    // The block was dropped.
    note(&watches, 111, None);
    assert!(!waits(Confirmed, 111));
    note(&watches, 112, Some((112, Confirmed)));
    assert!(waits(Confirmed, 1), "it has landed, and nobody was told");
    assert_eq!(watch.landed().now_or_never().unwrap().unwrap().slot, 112);
    drop(watch);
    assert!(!waits(Confirmed, 500), "it was told");
    assert!(unsettled(&watches, 2, Confirmed, 500), "another one is told later");
    drop(other);
    assert!(watches.lock().of.is_empty() && watches.lock().watched.is_empty());
}

#[tokio::test]
async fn an_answer_from_before_a_fall_says_nothing() {
    let watches = Arc::<Watches>::default();
    let mut watch = watches.add(SIGNATURE, Confirmed, Some(watcher(1)));
    let sent_at = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
    watches.ask_anew(Confirmed);
    for status in [None, Some((900, Confirmed))] {
        watches.note(&[SIGNATURE], &statuses(1_000, status), sent_at, |_, slot| slot);
    }
    assert!(unsettled(&watches, 1, Confirmed, 1));
    assert_eq!(watch.landed().now_or_never(), None);
    // What has landed before the fall may land again, for whoever comes after it.
    note(&watches, 1_000, Some((900, Confirmed)));
    watches.ask_anew(Confirmed);
    let mut anew = watches.add(SIGNATURE, Confirmed, Some(watcher(1)));
    assert!(watch.landed().now_or_never().is_some() && anew.landed().now_or_never().is_none());
    drop(watch);
    assert_eq!(watches.lock().watched.len(), 1);
}

#[tokio::test]
async fn watches_of_one_signature_share_an_entry_until_the_last_ends() {
    let watches = Arc::<Watches>::default();
    let [one, two] = [0; 2].map(|_| watches.add(SIGNATURE, Confirmed, Some(watcher(1))));
    let other = watches.add(SIGNATURE, Finalized, None);
    assert_eq!(watches.take_due(true), [SIGNATURE], "one signature is asked for once");
    assert!(watches.take_due(false).is_empty(), "it is being asked for");
    watches.end_look(&[SIGNATURE]);
    assert!(watches.take_due(false).is_empty(), "it was asked for in this slot");
    watches.wanted[Confirmed.index()].store(7, Ordering::Release);
    watches.lock().fresh.push((SIGNATURE, Confirmed));
    assert_eq!(watches.take_due(false), [SIGNATURE], "a height waits");
    drop((one, other));
    assert_eq!(watches.lock().watched.len(), 1);
    note(&watches, 100, Some((90, Confirmed)));
    let mut late = watches.add(SIGNATURE, Confirmed, Some(watcher(2)));
    assert!(late.landed().now_or_never().is_some(), "what is known is told at once");
    drop((two, late));
    assert!(watches.lock().watched.is_empty());
}

#[tokio::test]
async fn history_is_searched_first_and_after_a_gap_in_turn() {
    let watches = Arc::<Watches>::default();
    let [_one, _other] = [1, 2].map(|of| watches.add(SIGNATURE, Confirmed, Some(watcher(of))));
    let (first, signatures) = watches.begin_search().unwrap();
    let (second, same) = watches.begin_search().unwrap();
    assert!(first != second && signatures == [SIGNATURE] && same == [SIGNATURE]);
    assert!(watches.begin_search().is_none(), "each has its turn");
    note(&watches, 1_000, None);
    watches.note_searched(&signatures);
    watches.end_search(first, vec![]);
    watches.end_search(second, same);
    assert!(watches.begin_search().is_none(), "the search of one has found what there is");
    for (asked, expected) in [(1_001, false), (1_101, false), (1_202, true)] {
        note(&watches, asked, None);
        assert_eq!(watches.begin_search().is_some(), expected, "{asked}");
    }
}

/// Whoever has much to look for does so in his turn, however many others do.
#[tokio::test]
async fn nobody_is_passed_over_for_ever() {
    let watches = Arc::<Watches>::default();
    let watch = |number: usize, of: u8| watches.add(Signature([of; 64]), Confirmed, Some(watcher(number)));
    let _watched: Vec<_> = (0..20).map(|number| watch(number, 1)).collect();
    let begin = || watches.begin_search().unwrap().0;
    let first = begin();
    let _more = watch(0, 2);
    let rest: Vec<_> = (1..20).map(|_| begin()).collect();
    assert!(first == watcher(0) && rest == (1..20).map(watcher).collect::<Vec<_>>());
    assert!(watches.begin_search().is_none());
    let _last = watch(20, 1);
    watches.end_search(first, vec![SIGNATURE]);
    assert_eq!([begin(), begin()], [first, watcher(20)], "in the order in which they have begun to wait");
}

#[tokio::test(start_paused = true)]
async fn what_no_node_answers_for_is_given_up() {
    let watches = Arc::<Watches>::default();
    let mut watch = watches.add(SIGNATURE, Confirmed, Some(watcher(1)));
    tokio::time::advance(LONGEST_UNSERVED).await;
    note(&watches, 100, None);
    for (seconds, expected) in [(59, None), (2, Some(Err(Unserved)))] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        watches.take_due(true);
        assert_eq!(watch.landed().now_or_never(), expected);
    }
}
