//! `[follow]`: accounts are served until a block writes them.

use std::time::Duration;

use crate::config::reader::TableReader;
use crate::config::{FollowSettings, defaults};

/// Reads the section `[follow]`.
pub(super) fn read(r: &TableReader<'_>) -> FollowSettings {
    let poll = Duration::from_millis(20)..=Duration::from_secs(2);
    let max_carry = Duration::from_secs(1)..=Duration::from_hours(24);
    FollowSettings {
        mode: r.get("mode", defaults::FOLLOW_MODE),
        upstreams: r.list("upstreams").unwrap_or_default(),
        poll: r.within("poll", defaults::FOLLOW_POLL, poll),
        max_gap: r.within("max_gap", defaults::FOLLOW_MAX_GAP, 4..=512),
        max_carry: r.within("max_carry", defaults::FOLLOW_MAX_CARRY, max_carry),
        share: r.get("share", defaults::FOLLOW_SHARE),
    }
}
