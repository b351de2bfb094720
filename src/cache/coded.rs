//! Long answers compressed: each kept text once in each coding, kept beside it and counted in its weight; what is written
//! for one caller alone, for that caller. All of it by one [`Compressor`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::entry::{Body, Entry, Payload};
use super::key::{Finality, Key, Plan};
use super::render::is_as_kept;
use super::{Asked, Cache};
use crate::coding::{self, Coded, Coding};
use crate::low_priority;
use crate::methods::Query;
use crate::telemetry::{Compression, Metrics};

/// A caller waits for a compressed text for so long, and then takes it plain.
const WAITS_AT_MOST: Duration = Duration::from_secs(1);

/// Work on longer texts leaves the async workers: compressing 64 KiB takes some 200 µs.
const OFF_WORKER_BYTES: usize = 64 * 1024;

/// Compresses a few texts at a time, long ones on threads that give way to the calls.
///
/// Nobody waits for a place: what finds none goes out plain, which costs less than the work would.
pub struct Compressor {
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl Compressor {
    /// A compressor of so many long texts at once.
    pub fn new(places: usize, metrics: Arc<Metrics>) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), metrics }
    }

    /// Does `work`, which compresses so many bytes. `None` where there is no place for it, or it cannot be done.
    pub async fn compress<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let count = |what| self.metrics.compressions.at(what).inc();
        if bytes <= OFF_WORKER_BYTES {
            count(Compression::Done);
            return work();
        }
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            count(Compression::Skipped);
            return None;
        };
        count(Compression::Done);
        let work = low_priority::run(move || {
            // Held to the end of the work, which goes on where nobody waits for it any more.
            let _place = place;
            work()
        });
        work.await.flatten()
    }
}

impl Cache {
    /// Returns `payload`, which `entry` gave, in the coding that the caller takes; `None` if it goes out plain. The second
    /// value is true if that took a wait.
    pub(super) async fn coded(
        self: &Arc<Self>,
        call: &Asked<'_>,
        entry: &Arc<Entry>,
        payload: &Payload,
    ) -> (Option<Arc<Coded>>, bool) {
        let (Some(coding), Payload::Result(body)) = (call.options.coding, payload) else {
            return (None, false);
        };
        if !coding::is_worth(body.len()) {
            return (None, false);
        }
        let is_kept = is_as_kept(call.query, entry);
        if is_kept && let Some(coded) = entry.coded.made(coding) {
            return (Some(Arc::clone(coded)), false);
        }
        let until = call.options.deadline.min(Instant::now() + WAITS_AT_MOST);
        let body = body.clone();
        let coded = if is_kept {
            // A task of its own, so that it is not begun again where the caller is gone.
            let (cache, query, entry) = (Arc::clone(self), call.query.clone(), Arc::clone(entry));
            let kept = self.tasks.spawn(async move { cache.keep_coded(&query, &entry, coding, body).await });
            timeout_at(until, kept).await.ok().and_then(Result::ok).flatten()
        } else {
            let bytes = body.len();
            let work = move || Coded::new(coding, &body.whole()).map(Arc::new);
            timeout_at(until, self.compressor.compress(bytes, work)).await.ok().flatten()
        };
        (coded, true)
    }

    /// The text of `entry`, which is `body`, in `coding`: made once, for all who come meanwhile, and kept.
    async fn keep_coded(
        &self,
        query: &Query,
        entry: &Arc<Entry>,
        coding: Coding,
        body: Body,
    ) -> Option<Arc<Coded>> {
        let mut is_first = false;
        let made = entry.coded.of(coding).get_or_try_init(|| async {
            is_first = true;
            let bytes = body.len();
            let work = move || Coded::new(coding, &body.whole()).map(Arc::new);
            self.compressor.compress(bytes, work).await.ok_or(())
        });
        let coded = Arc::clone(made.await.ok()?);
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
        Some(coded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_text_without_a_place_goes_out_plain() {
        let metrics = Metrics::new();
        let compressor = Compressor::new(1, Arc::clone(&metrics));
        let (go, held) = std::sync::mpsc::channel::<()>();
        let long = OFF_WORKER_BYTES + 1;
        let first = compressor.compress(long, move || held.recv().ok());
        let mut first = std::pin::pin!(first);
        assert!(futures_util::poll!(&mut first).is_pending());
        assert_eq!(compressor.compress(long, || Some(2)).await, None);
        assert_eq!(
            compressor.compress(OFF_WORKER_BYTES, || Some(3)).await,
            Some(3),
            "short work is done at once"
        );
        go.send(()).unwrap();
        assert_eq!(first.await, Some(()));
        assert_eq!(compressor.compress(long, || Some(4)).await, Some(4));
        let counted =
            [Compression::Done, Compression::Skipped].map(|what| metrics.compressions.at(what).get());
        assert_eq!(counted, [3, 1]);
    }
}
