//! How long nobody has answered what is read again and again.

use std::time::Duration;

use tokio::time::Instant;

use crate::methods::Slot;

/// The number of slots for which something may stay unread before its subscribers are closed, because silence would mean
/// that nothing changes.
const MAX_SLOTS: Slot = 150;

/// The slot and the time since which no node has given something. It was read last if there is none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnreadSince(Option<(Slot, Instant)>);

impl UnreadSince {
    pub(super) const fn end(&mut self) {
        self.0 = None;
    }

    /// Notes that nobody has answered from the slot `first` to `slot`. Returns true if that has lasted for too many slots, or
    /// for more than `longest`.
    pub(super) fn lasts(&mut self, first: Slot, slot: Slot, longest: Duration) -> bool {
        let (since, began) = *self.0.get_or_insert_with(|| (first, Instant::now()));
        // The chain may have restarted lower meanwhile.
        slot.saturating_sub(since) > MAX_SLOTS || began.elapsed() > longest
    }
}
