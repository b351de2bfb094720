//! `[follow]`: accounts are served until a block writes them.

use std::time::Duration;

use crate::config::reader::TableReader;
use crate::config::{FollowSettings, defaults};

/// Reads the section `[follow]`.
pub(super) fn read(r: &TableReader<'_>) -> FollowSettings {
    let poll = Duration::from_millis(20)..=Duration::from_secs(2);
    FollowSettings {
        mode: r.get("mode", defaults::FOLLOW_MODE),
        upstreams: r.list("upstreams").unwrap_or_default(),
        poll: r.within("poll", defaults::FOLLOW_POLL, poll),
        max_gap: r.within("max_gap", defaults::FOLLOW_MAX_GAP, 4..=512),
        share: r.get("share", defaults::FOLLOW_SHARE),
    }
}
