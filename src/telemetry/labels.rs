//! The closed sets of label values.
//!
//! Code, logs, metrics and headers share these words. A value outside a set cannot become a label, so the number of
//! series is bounded. The labels `key` and `upstream` are not here; each key and each upstream has a registry of
//! its own.

use crate::methods::{Commitment, Further, Method};

/// A label with a closed set of values, each at a position.
pub trait Label: Copy {
    /// The name of the label.
    const NAME: &'static str;
    /// The number of values.
    const COUNT: usize;
    /// Returns the position of this value, below [`Label::COUNT`].
    fn position(self) -> usize;
    /// Returns the text of the value at `position`, which is below [`Label::COUNT`].
    fn text(position: usize) -> &'static str;
}

impl Label for Option<Method> {
    const NAME: &'static str = "method";
    const COUNT: usize = Method::ALL.len() + 1;

    fn position(self) -> usize {
        self.map_or(Method::ALL.len(), Method::index)
    }

    /// Returns the method's name. `other` stands for further methods and for probes.
    fn text(position: usize) -> &'static str {
        Method::ALL.get(position).map_or("other", |method| method.as_str())
    }
}

impl Label for Further {
    const NAME: &'static str = "method";
    const COUNT: usize = Further::COUNT;

    fn position(self) -> usize {
        self.index()
    }

    fn text(position: usize) -> &'static str {
        Further::all().nth(position).map_or("other", Further::as_str)
    }
}

impl Label for Option<Commitment> {
    const NAME: &'static str = "commitment";
    const COUNT: usize = Commitment::ALL.len() + 1;

    fn position(self) -> usize {
        self.map_or(Commitment::ALL.len(), Commitment::index)
    }

    fn text(position: usize) -> &'static str {
        Commitment::ALL.get(position).map_or("none", |commitment| commitment.as_str())
    }
}

impl Label for Commitment {
    const NAME: &'static str = "commitment";
    const COUNT: usize = Commitment::ALL.len();

    fn position(self) -> usize {
        self.index()
    }

    fn text(position: usize) -> &'static str {
        Commitment::ALL[position].as_str()
    }
}

/// Declares an enum that is a label: its name, its values and their texts.
macro_rules! label {
    ($(#[$meta:meta])* $name:ident is $label:literal { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All values, in the order of their indexes.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Returns the text in metrics, logs and headers.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// Returns the index in [`Self::ALL`].
            pub const fn index(self) -> usize {
                self as usize
            }

            /// Parses the text.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.as_str() == name)
            }
        }

        impl Label for $name {
            const NAME: &'static str = $label;
            const COUNT: usize = Self::ALL.len();

            fn position(self) -> usize {
                self.index()
            }

            fn text(position: usize) -> &'static str {
                Self::ALL[position].as_str()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

label! {
    /// The outcome of a call. The first six are answers, from the cache or a node.
    Outcome is "outcome" {
        /// Answered from a fresh entry.
        Hit = "hit",
        /// Answered from an entry past its bounds, while a refresh runs or because no node answers.
        Stale = "stale",
        /// Answered from an entry of another form.
        Derived = "derived",
        /// Answered by a fetch that another call had started.
        Collapsed = "collapsed",
        /// Answered by a node that was asked for this call.
        Miss = "miss",
        /// Answered by a node, because the caller asked to bypass the cache.
        Bypass = "bypass",
        /// Refused: not a call, an unsupported method, or invalid params.
        Invalid = "invalid",
        /// Refused: no valid key, or not allowed for the key.
        Denied = "denied",
        /// Refused: over a rate or a quota.
        Limited = "limited",
        /// Failed: overloaded, no upstream, or timed out (-32094 to -32096).
        Error = "error",
    }
}

impl Outcome {
    /// Returns true for an answer from the cache or a node.
    pub const fn is_answer(self) -> bool {
        matches!(self, Self::Hit | Self::Stale | Self::Derived | Self::Collapsed | Self::Miss | Self::Bypass)
    }

    /// Returns true for an answer from the cache.
    pub const fn is_hit(self) -> bool {
        matches!(self, Self::Hit | Self::Stale | Self::Derived)
    }
}

label! {
    /// The result of an attempt on an upstream. `data.attempts` of an error uses the same words.
    AttemptResult is "result" {
        /// The node returned a result.
        Ok = "ok",
        /// The node returned an error that passes through to the caller.
        NodeError = "node_error",
        /// The connection could not be opened.
        Connect = "connect",
        /// The connection broke before the answer was complete.
        Reset = "reset",
        /// The deadline of the attempt passed.
        Timeout = "timeout",
        /// The node answered HTTP 429.
        Status429 = "status_429",
        /// The node answered another HTTP 4xx.
        Status4xx = "status_4xx",
        /// The node answered HTTP 5xx.
        Status5xx = "status_5xx",
        /// The node answered HTTP 200 with a body that is not JSON-RPC.
        BadJson = "bad_json",
        /// The answer has another id.
        WrongId = "wrong_id",
        /// The node returned an error without a cause, or could not parse the call.
        UnknownCode = "unknown_code",
        /// The answer exceeds `pool.max_response`.
        TooLarge = "too_large",
        /// The limit of response bodies being read is reached: `pool.max_buffered`.
        BuffersFull = "buffers_full",
        /// The node returned -32005 (unhealthy).
        Unhealthy = "unhealthy",
        /// The answer is below the requested slot, or the node returned -32016 for it.
        Behind = "behind",
        /// The node does not support the method: -32601, -32011 or HTTP 501.
        Incapable = "incapable",
        /// The answer was discarded, because the node belongs to another or an unknown cluster.
        Foreign = "foreign",
        /// The attempt was cancelled, because no caller waits for it.
        Cancelled = "cancelled",
    }
}

label! {
    /// The result of a hedge, a second attempt beside a slow first one.
    HedgeResult is "result" {
        /// The second attempt brought the answer.
        Won = "won",
        /// The first attempt brought the answer.
        Lost = "lost",
        /// Both attempts failed.
        Failed = "failed",
        /// The hedge was not sent, because `pool.hedge.budget` was used up.
        OverBudget = "over_budget",
    }
}

label! {
    /// The reason why an entry left the cache.
    EvictionCause is "cause" {
        /// The cache was full.
        Size = "size",
        /// The entry was not used for a long time.
        Idle = "idle",
        /// The entry was purged, by an operator or because the cluster changed.
        Purged = "purged",
    }
}

label! {
    /// The reason why a cached entry was not fresh.
    StaleCause is "cause" {
        /// The entry was older than its time to live.
        Ttl = "ttl",
        /// The entry was too many slots behind the frontier.
        Lag = "lag",
        /// The entry was below the slot that the caller may not fall behind.
        Floor = "floor",
    }
}

label! {
    /// The reason why an answer was not cached.
    UncacheableReason is "reason" {
        /// The answer is null and may become a value.
        Null = "null",
        /// The answer is a temporary error.
        Transient = "transient",
        /// The answer exceeds `cache.max_entry`.
        TooLarge = "too_large",
        /// The cache holds a newer answer.
        Older = "older",
        /// The answer's slot is further ahead than a single node is trusted.
        Unbelieved = "unbelieved",
        /// The cache was purged while the node was asked.
        Purged = "purged",
    }
}

label! {
    /// The result of compressing an answer for a caller that accepts it.
    Compression is "result" {
        /// The answer was compressed.
        Done = "done",
        /// The answer was sent uncompressed, because too many were being compressed.
        Skipped = "skipped",
    }
}

label! {
    /// The reason why a key was limited.
    LimitReason is "reason" {
        /// The rate, in calls a second.
        Rate = "rate",
        /// The quota of units a day.
        Day = "day",
        /// The quota of units a month.
        Month = "month",
    }
}

label! {
    /// The reason why a key was refused.
    AuthFailure is "reason" {
        /// The key does not exist, or none was sent.
        Unknown = "unknown",
        /// The key has expired.
        Expired = "expired",
        /// The key is revoked.
        Revoked = "revoked",
        /// The key may not be used from this web origin.
        Origin = "origin",
        /// The key may not be used from this address.
        Address = "address",
        /// The address has sent too many refused keys.
        Limited = "limited",
    }
}

label! {
    /// The result of comparing a hit with a node's later answer to the same call.
    VerifyResult is "result" {
        /// The answers are equal.
        Equal = "equal",
        /// The answers differ as later answers may, or the node could not answer. Proves nothing.
        Moved = "moved",
        /// The answers contradict each other.
        Mismatch = "mismatch",
    }
}

label! {
    /// An operation on the shared store.
    SharedOperation is "operation" {
        /// Opening a connection, or its heartbeat.
        Connect = "connect",
        /// Reading a cached answer.
        Get = "get",
        /// Writing an answer.
        Put = "put",
        /// Leasing calls of a rate.
        Limit = "limit",
        /// Booking units, and reading the totals of all gateways.
        Quota = "quota",
        /// Reading the list of purges, or adding to it.
        Purge = "purge",
    }
}

label! {
    /// The result of an operation on the shared store.
    SharedResult is "result" {
        /// The operation succeeded.
        Ok = "ok",
        /// A usable answer was found.
        Hit = "hit",
        /// No answer was found, or one that is no longer usable.
        Miss = "miss",
        /// The value is not ours: foreign, truncated, corrupted, or of another version. Counts as a miss.
        Foreign = "foreign",
        /// The answer was not written, because the store holds a newer one, or its time is over.
        Older = "older",
        /// The store did not answer within `shared.timeout`.
        Timeout = "timeout",
        /// The store could not be reached.
        Unreachable = "unreachable",
        /// The store refused the operation: full, a replica, or no permission.
        Refused = "refused",
        /// The answer was not written, because the queue was full.
        Dropped = "dropped",
        /// The store was not asked, because its circuit breaker is open.
        Skipped = "skipped",
    }
}

label! {
    /// The result of exporting a span.
    SpanResult is "result" {
        /// The collector accepted the span.
        Exported = "exported",
        /// The collector refused the span or did not answer.
        Failed = "failed",
        /// The queue was full.
        Dropped = "dropped",
    }
}

label! {
    /// The result of reading a changed configuration or key file.
    ReloadResult is "result" {
        /// The change is in force.
        Applied = "applied",
        /// The change was refused as a whole; the old content stays in force.
        Rejected = "rejected",
    }
}

/// The result of the attempt before a retry: an [`AttemptResult`] as the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryReason(pub AttemptResult);

impl Label for RetryReason {
    const NAME: &'static str = "reason";
    const COUNT: usize = AttemptResult::ALL.len();

    fn position(self) -> usize {
        self.0.index()
    }

    fn text(position: usize) -> &'static str {
        AttemptResult::text(position)
    }
}

/// A node's JSON-RPC error code as a label. Codes that no node defines are `other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCode(usize);

impl NodeCode {
    /// The label texts: the codes of JSON-RPC, then those of Agave's `rpc-custom-error`.
    const TEXTS: [&str; 28] = [
        "-32700", "-32600", "-32601", "-32602", "-32603", "-32001", "-32002", "-32003", "-32004", "-32005",
        "-32006", "-32007", "-32008", "-32009", "-32010", "-32011", "-32012", "-32013", "-32014", "-32015",
        "-32016", "-32017", "-32018", "-32019", "-32020", "-32021", "-32022", "other",
    ];
}

impl From<i32> for NodeCode {
    fn from(code: i32) -> Self {
        let other = Self::TEXTS.len() - 1;
        let text = code.to_string();
        Self(Self::TEXTS.iter().position(|known| *known == text).unwrap_or(other))
    }
}

impl Label for NodeCode {
    const NAME: &'static str = "code";
    const COUNT: usize = Self::TEXTS.len();

    fn position(self) -> usize {
        self.0
    }

    fn text(position: usize) -> &'static str {
        Self::TEXTS[position]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_positions_match_texts() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::text(outcome.position()), outcome.as_str());
            assert_eq!(Outcome::from_name(outcome.as_str()), Some(outcome));
        }
        assert_eq!(<Option<Method>>::text(None::<Method>.position()), "other");
        assert_eq!(<Option<Commitment>>::text(None::<Commitment>.position()), "none");
        assert_eq!(<Option<Method>>::text(Some(Method::GetBlock).position()), "getBlock");
    }

    #[test]
    fn unknown_node_codes_are_other() {
        for (code, text) in [(-32007, "-32007"), (-32700, "-32700"), (-32099, "other"), (7, "other")] {
            assert_eq!(NodeCode::text(NodeCode::from(code).position()), text);
        }
    }
}
