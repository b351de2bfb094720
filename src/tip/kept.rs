//! What a node said last about a commitment, for everybody who asks within a slot.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use tokio::time::Instant;

use super::read::Unread;
use crate::frontier::Era;
use crate::methods::Slot;

/// A node's result.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) result: Bytes,
    pub(super) slot: Slot,
    pub(super) era: Era,
    pub(super) sent_at: Instant,
    pub(super) came_at: Instant,
}

/// The last result of one question. Callers who find it too old share one fetch.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    last: ArcSwapOption<Kept>,
    /// The turn to fetch. Who waits for it looks at the last result again.
    fetching: tokio::sync::Mutex<()>,
    /// Why the last fetch failed, and when.
    failed: Mutex<Option<(Instant, Unread)>>,
}

/// The origin of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Kept,
    /// Another caller's fetch, which was already under way.
    Shared,
    Fetched,
}

impl Keeper {
    /// Returns the last result if `serves` accepts it, or fetches a new one. `serves` gets the time at which the fetch of
    /// the result began, or, for a caller who waited for it, no time: such a result is as fresh as can be.
    ///
    /// # Errors
    /// The fetch failed. Everybody who waited for it gets the same error.
    pub(super) async fn get(
        &self,
        serves: impl Fn(&Kept, Option<Instant>) -> bool,
        fetch: impl Future<Output = Result<Kept, Unread>>,
    ) -> Result<(Arc<Kept>, Origin), Unread> {
        if let Some(kept) = self.last.load_full().filter(|kept| serves(kept, Some(kept.sent_at))) {
            return Ok((kept, Origin::Kept));
        }
        let began = Instant::now();
        let _turn = self.fetching.lock().await;
        if let Some(kept) = self.last.load_full().filter(|kept| kept.came_at >= began && serves(kept, None)) {
            return Ok((kept, Origin::Shared));
        }
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, why)) = failed().as_ref().filter(|(at, _)| *at >= began) {
            return Err(why.clone());
        }
        let kept = fetch.await.map(Arc::new).inspect_err(|why| {
            *failed() = Some((Instant::now(), why.clone()));
        })?;
        self.last.store(Some(Arc::clone(&kept)));
        Ok((kept, Origin::Fetched))
    }
}
