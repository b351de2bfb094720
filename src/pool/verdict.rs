//! The judgement of a node's answer to a call: the answer is final, another node should be asked, or the node has
//! a fault.
//!
//! Each kind of call applies its own rules first, and then the table of error codes here. The table ignores
//! message texts, because nodes may change them.

use super::reply::PoolReply;
use crate::node::{Fault, code};
use crate::telemetry::AttemptResult;

/// The meaning of a node's answer for its call, if the answer is not a fault of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The final answer of the call.
    Answer,
    /// An answer that another node may improve. A second node is asked, and the better of the two answers is used.
    NeedsSecondNode,
    /// An error with a code that nodes are not known to use. A second node is asked, and a result of the second
    /// node replaces the error.
    UnlistedError,
    /// An answer that is used only if no other node is left to ask. Holds the reason why it is not final:
    /// [`AttemptResult::Behind`] or [`AttemptResult::Incapable`].
    TryElsewhere(AttemptResult),
}

impl Verdict {
    /// Returns the meaning that an error code has for all kinds of calls.
    ///
    /// # Errors
    /// The code stands for a fault of the node.
    pub(super) const fn of_code(code: i32) -> Result<Self, Fault> {
        match code {
            code::NODE_UNHEALTHY => Err(Fault::Unhealthy),
            code::INTERNAL_ERROR | code::PARSE_ERROR => Err(Fault::UnknownCode),
            code::MIN_CONTEXT_SLOT_NOT_REACHED => Ok(Self::TryElsewhere(AttemptResult::Behind)),
            // The node does not serve the method, or its storage or indexes do not support the call.
            code::METHOD_NOT_FOUND
            | code::KEY_EXCLUDED_FROM_SECONDARY_INDEX
            | code::TRANSACTION_HISTORY_NOT_AVAILABLE
            | code::SCAN_ERROR
            | code::LONG_TERM_STORAGE_UNREACHABLE => Ok(Self::TryElsewhere(AttemptResult::Incapable)),
            code::LOWEST_OF_SOLANA..=code::BLOCK_CLEANED_UP
            | code::INVALID_PARAMS
            | code::INVALID_REQUEST => Ok(Self::Answer),
            _ => Ok(Self::UnlistedError),
        }
    }
}

/// The outcome of one attempt: the answer and its meaning, or a fault.
pub(super) type AttemptOutcome = Result<(Verdict, PoolReply), Fault>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_match_the_node_contract() {
        let elsewhere = |why| Ok(Verdict::TryElsewhere(why));
        let (behind, incapable) = (elsewhere(AttemptResult::Behind), elsewhere(AttemptResult::Incapable));
        for (codes, expected) in [
            (&[-32005][..], Err(Fault::Unhealthy)),
            (&[-32603, -32700], Err(Fault::UnknownCode)),
            (&[-32016], behind),
            (&[-32601, -32010, -32011, -32012, -32019], incapable),
            (&[-32600, -32602, -32001, -32004, -32007, -32009, -32015, -32020, -32022], Ok(Verdict::Answer)),
            (&[-32000, -32023, -32099, -32604, -1, 0], Ok(Verdict::UnlistedError)),
        ] {
            for code in codes {
                assert_eq!(Verdict::of_code(*code), expected, "{code}");
            }
        }
    }
}
