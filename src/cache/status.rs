//! The `Cache-Status` header (RFC 9211): the source of an answer.

use std::fmt;

use crate::telemetry::{Outcome, StaleCause};

/// The reason why a call went to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardReason {
    /// No stored entry could serve the call: there was none.
    Miss,
    /// The stored entry was beyond this bound.
    Stale(StaleCause),
    /// The caller asked to go past the cache.
    Request,
}

/// The source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheStatus {
    /// The source is a stored entry.
    Hit {
        /// The remaining time to live of the entry in seconds, rounded towards zero. Zero or negative while
        /// the entry is stale.
        ttl_s: i64,
        /// True if the answer was made from stored answers to other calls.
        derived: bool,
        /// True if the entry is past its time to live or its maximum lag, and a fresh answer is being fetched.
        stale: bool,
    },
    /// A stored entry, served at a later slot than the one at which it was read, because no block has written
    /// its accounts since.
    Carried,
    /// A stored entry past its time to live or its maximum lag, served because no node answers.
    StaleIfError {
        /// The remaining time to live of the entry in seconds: zero or negative.
        ttl_s: i64,
    },
    /// The source is a node.
    Forwarded { reason: ForwardReason, stored: bool },
    /// The source is a node, because answers of the call's method are never stored.
    Bypassed,
    /// The source is another caller's fetch from a node, which was already under way.
    Collapsed,
    /// A batch, whose answers may have different sources.
    Batch { hits: usize, of: usize },
}

impl CacheStatus {
    pub const fn forwarded(reason: ForwardReason, stored: bool) -> Self {
        Self::Forwarded { reason, stored }
    }

    /// Appends the status to `out`, in the text of [`fmt::Display`]. The usual statuses are written without formatting.
    pub fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Hit { ttl_s, derived: false, stale: false } => {
                out.extend_from_slice(b"slotfront; hit; ttl=");
                out.extend_from_slice(itoa::Buffer::new().format(ttl_s).as_bytes());
            }
            Self::Carried => out.extend_from_slice(b"slotfront; hit; detail=carried"),
            status => out.extend_from_slice(status.to_string().as_bytes()),
        }
    }

    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Hit { stale: true, .. } | Self::StaleIfError { .. } => Outcome::Stale,
            Self::Hit { derived: true, .. } => Outcome::Derived,
            Self::Hit { .. } | Self::Batch { .. } => Outcome::Hit,
            Self::Carried => Outcome::Carried,
            Self::Forwarded { reason: ForwardReason::Request, .. } | Self::Bypassed => Outcome::Bypass,
            Self::Forwarded { .. } => Outcome::Miss,
            Self::Collapsed => Outcome::Collapsed,
        }
    }

    /// Returns the bound because of which a stored entry was not served. `None` for any other answer.
    pub const fn bound(self) -> Option<StaleCause> {
        match self {
            Self::Forwarded { reason: ForwardReason::Stale(cause), .. } => Some(cause),
            _ => None,
        }
    }

    /// Returns true if the answer was served without asking a node.
    pub const fn is_hit(self) -> bool {
        matches!(self, Self::Hit { .. } | Self::Carried | Self::StaleIfError { .. })
    }
}

impl fmt::Display for CacheStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slotfront; ")?;
        match *self {
            // A `ttl` of 0 does not show that the answer is already stale, so the detail says it.
            Self::Hit { ttl_s: 0, stale: true, derived: false } => f.write_str("hit; ttl=0; detail=stale"),
            Self::Hit { ttl_s, derived, .. } => {
                write!(f, "hit; ttl={ttl_s}{}", if derived { "; detail=derived" } else { "" })
            }
            Self::Carried => f.write_str("hit; detail=carried"),
            Self::StaleIfError { ttl_s } => write!(f, "hit; ttl={ttl_s}; detail=stale-if-error"),
            Self::Forwarded { reason, stored } => {
                let reason = match reason {
                    ForwardReason::Miss | ForwardReason::Stale(StaleCause::Floor) => "miss",
                    ForwardReason::Stale(_) => "stale",
                    ForwardReason::Request => "request",
                };
                write!(f, "fwd={reason}{}", if stored { "; stored" } else { "" })
            }
            Self::Bypassed => f.write_str("fwd=bypass"),
            Self::Collapsed => f.write_str("fwd=miss; collapsed"),
            Self::Batch { hits, of } if hits == of => f.write_str("hit"),
            Self::Batch { hits, of } => write!(f, "fwd=miss; detail=\"hits {hits}/{of}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_written_as_rfc_9211_says() {
        let hit = |ttl_s, derived, stale| CacheStatus::Hit { ttl_s, derived, stale };
        for (status, expected) in [
            (hit(3, false, false), "slotfront; hit; ttl=3"),
            (hit(0, false, false), "slotfront; hit; ttl=0"),
            (hit(-2, false, true), "slotfront; hit; ttl=-2"),
            (hit(0, false, true), "slotfront; hit; ttl=0; detail=stale"),
            (hit(0, true, true), "slotfront; hit; ttl=0; detail=derived"),
            (hit(3, true, false), "slotfront; hit; ttl=3; detail=derived"),
            (CacheStatus::Carried, "slotfront; hit; detail=carried"),
            (CacheStatus::StaleIfError { ttl_s: -9 }, "slotfront; hit; ttl=-9; detail=stale-if-error"),
            (CacheStatus::forwarded(ForwardReason::Miss, true), "slotfront; fwd=miss; stored"),
            (CacheStatus::forwarded(ForwardReason::Miss, false), "slotfront; fwd=miss"),
            (
                CacheStatus::forwarded(ForwardReason::Stale(StaleCause::Lag), true),
                "slotfront; fwd=stale; stored",
            ),
            (
                CacheStatus::forwarded(ForwardReason::Stale(StaleCause::Floor), true),
                "slotfront; fwd=miss; stored",
            ),
            (CacheStatus::forwarded(ForwardReason::Request, true), "slotfront; fwd=request; stored"),
            (CacheStatus::Bypassed, "slotfront; fwd=bypass"),
            (CacheStatus::Collapsed, "slotfront; fwd=miss; collapsed"),
            (CacheStatus::Batch { hits: 5, of: 5 }, "slotfront; hit"),
            (CacheStatus::Batch { hits: 3, of: 5 }, "slotfront; fwd=miss; detail=\"hits 3/5\""),
        ] {
            assert_eq!(status.to_string(), expected);
            let mut written = Vec::new();
            status.write(&mut written);
            assert_eq!(written, expected.as_bytes());
        }
    }
}
