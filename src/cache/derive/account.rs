//! Lists of accounts from single ones of one slot, and the other way round; both share each account's bytes.
//!
//! Element i of a list is the `value` of the single answer in the same form at the same slot, exactly. A list made
//! here is as consistent as a node's own: at finalized even a node's list may mix neighbouring slots.

use std::sync::Arc;

use bytes::Bytes;

use super::super::entry::{Body, Entry, Payload};
use crate::methods::Pubkey;
use crate::node::Contextual;
use crate::node::answer::elements;

const CONTEXT: Bytes = Bytes::from_static(br#"{"context":"#);
const VALUE: Bytes = Bytes::from_static(br#","value":"#);
const LIST: Bytes = Bytes::from_static(br#","value":["#);
const COMMA: Bytes = Bytes::from_static(b",");
const END: Bytes = Bytes::from_static(b"}");
const END_LIST: Bytes = Bytes::from_static(b"]}");

/// A list's answer from kept single ones, if `single` has every one of them, all of one slot; its age is the oldest's.
pub fn assemble(
    pubkeys: &[Pubkey],
    mut single: impl FnMut(&Pubkey) -> Option<Arc<Entry>>,
) -> Option<Arc<Entry>> {
    let (first, rest) = pubkeys.split_first()?;
    let first = single(first)?;
    let (context, value) = parts(&first)?;
    let mut pieces = vec![CONTEXT, context, LIST, value];
    let mut sent_at = first.sent_at;
    for pubkey in rest {
        let entry = single(pubkey).filter(|entry| entry.slot == first.slot)?;
        sent_at = sent_at.min(entry.sent_at);
        pieces.extend([COMMA, parts(&entry)?.1]);
    }
    pieces.push(END_LIST);
    let payload = Payload::Result(Body::Many(pieces.into()));
    Some(Arc::new(Entry { payload, slot: first.slot, sent_at, class: first.class }))
}

/// A list's answer taken apart: itself, and the single answers that it holds, in its order; `None` where it is no list.
///
/// Both are made of the same pieces, each in memory of its own: one that outlives the others holds on to nothing more.
pub fn take_apart(list: &Bytes) -> Option<(Body, Vec<Body>)> {
    let Contextual { context, value, .. } = Contextual::split(list)?;
    let own = |piece: &Bytes| Bytes::copy_from_slice(piece);
    let (context, values) = (own(&context), elements(&value)?.iter().map(own).collect::<Vec<_>>());
    let mut pieces = vec![CONTEXT, context.clone(), LIST];
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            pieces.push(COMMA);
        }
        pieces.push(value.clone());
    }
    pieces.push(END_LIST);
    let single = |value| Body::Many([CONTEXT, context.clone(), VALUE, value, END].into());
    Some((Body::Many(pieces.into()), values.into_iter().map(single).collect()))
}

/// The `context` and `value` of a kept single answer.
fn parts(entry: &Entry) -> Option<(Bytes, Bytes)> {
    match &entry.payload {
        Payload::Result(Body::One(result)) => Contextual::split(result).map(|c| (c.context, c.value)),
        Payload::Result(Body::Many(pieces)) => match &**pieces {
            [_, context, _, value, _] => Some((context.clone(), value.clone())),
            _ => None,
        },
        Payload::Error { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tokio::time::Instant;

    use super::super::super::freshness::Class;
    use super::*;
    use crate::methods::Commitment;

    const LIST_OF_TWO: &[u8] = br#"{"context":{"apiVersion":"4.0.0","slot":9},"value":[{"space":1},null]}"#;

    fn text(body: &Body) -> String {
        body.pieces().iter().map(|piece| std::str::from_utf8(piece).unwrap()).collect()
    }

    fn entry(body: Body, slot: u64) -> Arc<Entry> {
        let class = Class::Account(Commitment::Finalized);
        Arc::new(Entry { payload: Payload::Result(body), slot, sent_at: Instant::now(), class })
    }

    #[tokio::test]
    async fn a_list_gives_its_singles_and_they_give_it_back() {
        let (a, b) = (Pubkey([1; 32]), Pubkey([2; 32]));
        let (list, singles) = take_apart(&Bytes::from_static(LIST_OF_TWO)).unwrap();
        assert_eq!(text(&list).as_bytes(), LIST_OF_TWO);
        let (empty, none) = take_apart(&Bytes::from_static(br#"{"context":{"slot":9},"value":[]}"#)).unwrap();
        assert_eq!((text(&empty).as_str(), none.len()), (r#"{"context":{"slot":9},"value":[]}"#, 0));
        assert_eq!(
            singles.iter().map(text).collect::<Vec<_>>(),
            [
                r#"{"context":{"apiVersion":"4.0.0","slot":9},"value":{"space":1}}"#,
                r#"{"context":{"apiVersion":"4.0.0","slot":9},"value":null}"#
            ]
        );
        let mut kept: HashMap<_, _> =
            [a, b].into_iter().zip(singles.into_iter().map(|body| entry(body, 9))).collect();
        let list = assemble(&[a, b], |key| kept.get(key).cloned()).unwrap();
        let Payload::Result(body) = &list.payload else { panic!("an error") };
        assert_eq!(text(body).as_bytes(), LIST_OF_TWO);
        assert!(assemble(&[a, Pubkey([3; 32])], |key| kept.get(key).cloned()).is_none(), "one is missing");
        kept.insert(b, entry(Body::One(Bytes::from_static(br#"{"context":{"slot":10},"value":null}"#)), 10));
        assert!(assemble(&[a, b], |key| kept.get(key).cloned()).is_none(), "two slots");
        assert!(assemble(&[], |key| kept.get(key).cloned()).is_none(), "nothing to take a context from");
    }
}
