//! What a node said last about a commitment, for everybody who asks within a slot.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use super::read::Unread;
use crate::cache::CacheStatus;
use crate::cache::ForwardReason::Miss;
use crate::frontier::Era;
use crate::methods::Slot;

/// A node's answer.
#[derive(Debug)]
pub(super) struct Kept<T> {
    pub(super) value: T,
    pub(super) slot: Slot,
    pub(super) era: Era,
    pub(super) sent_at: Instant,
    pub(super) came_at: Instant,
}

/// The last answer to one question. Callers who find it too old share one fetch.
#[derive(Debug)]
pub(super) struct Keeper<T> {
    last: ArcSwapOption<Kept<T>>,
    /// The turn to fetch. Who waits for it looks at the last answer again.
    fetching: tokio::sync::Mutex<()>,
    /// Why the last fetch failed, and when.
    failed: Mutex<Option<(Instant, Unread)>>,
}

impl<T> Default for Keeper<T> {
    fn default() -> Self {
        Self {
            last: ArcSwapOption::empty(),
            fetching: tokio::sync::Mutex::default(),
            failed: Mutex::default(),
        }
    }
}

impl<T> Keeper<T> {
    pub(super) fn last(&self) -> Option<Arc<Kept<T>>> {
        self.last.load_full()
    }

    /// Returns the last answer if `serves` accepts it, or fetches a new one. `serves` gets the answer and the time at
    /// which its fetch began, or, for a caller who waited for it, no time: such an answer is as fresh as can be.
    ///
    /// # Errors
    /// The fetch failed. Everybody who waited for it gets the same error.
    pub(super) async fn get(
        &self,
        serves: impl Fn(&Kept<T>, Option<Instant>) -> bool,
        fetch: impl Future<Output = Result<Kept<T>, Unread>>,
    ) -> Result<(Arc<Kept<T>>, CacheStatus), Unread> {
        if let Some(kept) = self.last().filter(|kept| serves(kept, Some(kept.sent_at))) {
            return Ok((kept, CacheStatus::Hit { ttl_s: 0, derived: false, stale: false }));
        }
        let began = Instant::now();
        let _turn = self.fetching.lock().await;
        if let Some(kept) = self.last().filter(|kept| kept.came_at >= began && serves(kept, None)) {
            return Ok((kept, CacheStatus::Collapsed));
        }
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, why)) = &*failed()
            && *at >= began
        {
            return Err(why.clone());
        }
        match fetch.await {
            Ok(kept) => {
                let kept = Arc::new(kept);
                self.last.store(Some(Arc::clone(&kept)));
                Ok((kept, CacheStatus::forwarded(Miss, true)))
            }
            Err(why) => {
                *failed() = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }
}
