//! Long answers compressed: each kept text once in each coding, kept beside it and counted in its weight.

use std::sync::Arc;

use super::Cache;
use super::entry::{Entry, Payload, SHORT_BYTES};
use super::key::{Finality, Key, Plan};
use super::serve::is_as_kept;
use crate::coding::{Coded, Coding};
use crate::methods::Query;
use crate::node::OFF_WORKER_BYTES;

/// Below this a compressed answer saves less than a packet and costs more than sending it.
pub const WORTH_BYTES: usize = 4 * 1024;

// What is held of a short answer has no room for other forms of its text.
const _: () = assert!(SHORT_BYTES < WORTH_BYTES, "only long answers are compressed");

/// `entry`, if `payload` is its own text and worth compressing.
pub(super) fn source(query: &Query, entry: &Arc<Entry>, payload: &Payload) -> Option<Arc<Entry>> {
    let is_worth = matches!(payload, Payload::Result(body) if body.len() >= WORTH_BYTES);
    (is_worth && is_as_kept(query, entry)).then(|| Arc::clone(entry))
}

impl Cache {
    /// What `encode` gives for the text of `entry` in `coding`, `plain`; compressed now if nobody took it so before, by one
    /// caller for all who come meanwhile. `None` where it cannot be compressed.
    pub async fn coded<T>(
        &self,
        query: &Query,
        entry: &Arc<Entry>,
        coding: Coding,
        plain: &Payload,
        encode: impl FnOnce(&Coded) -> Option<T>,
    ) -> Option<T> {
        let form = entry.coded.of(coding);
        if let Some(coded) = form.get() {
            return encode(coded);
        }
        let Payload::Result(body) = plain else { return None };
        let mut is_first = false;
        let made = form.get_or_try_init(|| async {
            is_first = true;
            if body.len() <= OFF_WORKER_BYTES {
                return Coded::new(coding, &body.whole()).ok_or(());
            }
            let (body, place) = (body.clone(), Arc::clone(&self.makers).acquire_owned().await);
            let made = tokio::task::spawn_blocking(move || {
                // Held to the end of the work, which goes on where nobody waits for it any more.
                let _place = place;
                Coded::new(coding, &body.whole())
            });
            let made = made.await;
            made.ok().flatten().ok_or(())
        });
        let coded = made.await.ok()?;
        if is_first {
            // Where it is kept by now is where it was found, unless it was let go meanwhile.
            let Plan { key, other, .. } = Plan::new(query, &self.frontier, &self.sizes);
            // A block may have become final meanwhile.
            let before = match &key {
                Key::Block(slot, shape, Finality::Final) => {
                    Some(Key::Block(*slot, *shape, Finality::Confirmed))
                }
                _ => None,
            };
            for key in [Some(key), other, before].into_iter().flatten() {
                self.store.weigh(key, entry);
            }
        }
        encode(coded)
    }
}
