//! The health of a node, as its probes last found it.

use crate::telemetry::AttemptResult;

/// The health of a node, as its last probe found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// No probe has ended yet.
    Unprobed,
    /// The node reports that it is healthy, or does not serve `getHealth` but reports slots.
    Healthy,
    /// The node reports that it is not healthy. Holds the node's own text.
    Unhealthy(String),
    /// The node does not answer its probes. Holds the reason.
    Unreachable(AttemptResult),
    /// The node does not report its genesis hash, although the pool's is known.
    NoGenesisHash,
    /// The node's genesis hash differs from another node's, and none is configured.
    Disputed { theirs: String },
    /// The node belongs to another Solana cluster.
    Foreign { theirs: String, ours: String },
}

impl Health {
    /// Returns true if a change from `before` is worth a log line. A new text for the same state needs no line.
    pub(super) fn is_news(&self, before: &Self) -> bool {
        std::mem::discriminant(before) != std::mem::discriminant(self)
    }

    /// Logs that the health of the node `name` has changed from `before` to this health.
    pub(super) fn report(&self, name: &str, before: &Self) {
        match self {
            Self::Healthy if *before == Self::Unprobed => {
                tracing::info!(upstream.name = name, "upstream is healthy");
            }
            Self::Healthy => tracing::info!(upstream.name = name, "upstream is healthy again"),
            Self::Unhealthy(why) => {
                tracing::warn!(upstream.name = name, why, "upstream reports that it is unhealthy");
            }
            Self::Unreachable(why) => {
                tracing::warn!(
                    upstream.name = name,
                    why = why.as_str(),
                    "upstream gives no usable answer to probes"
                );
            }
            Self::NoGenesisHash => tracing::error!(
                upstream.name = name,
                "upstream does not report its genesis hash and gets no calls; \
                 if it belongs to the pool's cluster, set genesis = \"unchecked\" for it"
            ),
            Self::Foreign { theirs, ours } => tracing::error!(
                upstream.name = name,
                genesis.theirs = theirs,
                genesis.ours = ours,
                "upstream belongs to another cluster and gets no calls; \
                 if its cluster is right, set pool.genesis_hash to the hash in this line's field genesis.theirs"
            ),
            // The pool logs one line for all its nodes.
            Self::Disputed { .. } | Self::Unprobed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_of_health_are_logged() {
        let behind = |slots: u64| Health::Unhealthy(format!("Node is behind by {slots} slots (-32005)"));
        for (before, now, expected) in [
            (Health::Unprobed, Health::Healthy, true),
            (Health::Healthy, behind(130), true),
            (behind(130), behind(131), false),
            (behind(130), Health::Unreachable(AttemptResult::Connect), true),
            (Health::Unreachable(AttemptResult::Connect), Health::Unreachable(AttemptResult::Timeout), false),
            (Health::Unreachable(AttemptResult::Timeout), Health::Healthy, true),
        ] {
            assert_eq!(now.is_news(&before), expected, "{before:?} to {now:?}");
        }
    }
}
