//! The closed sets that metric labels take their values from.
//!
//! One vocabulary for code, logs, metrics and headers: a value that is in no set here cannot become a label, so the
//! number of series is bounded by construction. Keys and upstreams are labelled elsewhere, by registries of their own.

use crate::methods::{Commitment, Further, Method};

/// A label with a closed set of values, each at a position.
pub trait Label: Copy {
    /// The label's name.
    const NAME: &'static str;
    /// How many values there are.
    const COUNT: usize;
    /// This value's position, below [`Label::COUNT`].
    fn position(self) -> usize;
    /// The text of the value at `position`, which is below [`Label::COUNT`].
    fn text(position: usize) -> &'static str;
}

impl Label for Option<Method> {
    const NAME: &'static str = "method";
    const COUNT: usize = Method::ALL.len() + 1;

    fn position(self) -> usize {
        self.map_or(Method::ALL.len(), Method::index)
    }

    /// `other` is a method that is not ours, or a probe of ours.
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

/// Declares a closed enum that is a label: its name, its values, each with its word.
macro_rules! label {
    ($(#[$meta:meta])* $name:ident is $label:literal { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every value; a value's position is its index.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// The word in metrics, logs and headers.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// Position in a table of all values.
            pub const fn index(self) -> usize {
                self as usize
            }

            /// Reads the word back.
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
    /// How a call ended. The first six are answers from the cache or a node, whatever the node said.
    Outcome is "outcome" {
        /// A fresh entry.
        Hit = "hit",
        /// An entry past its bounds: while a fresh one is fetched, or because no node answers.
        Stale = "stale",
        /// Made from an entry of another form.
        Derived = "derived",
        /// Joined a flight that another call led.
        Collapsed = "collapsed",
        /// A node was asked for this call.
        Miss = "miss",
        /// The caller asked to go past the cache.
        Bypass = "bypass",
        /// Refused: not a call, not one of the methods, or params that no node takes.
        Invalid = "invalid",
        /// Refused: no key, or not allowed for it.
        Denied = "denied",
        /// Refused: over a rate or a quota.
        Limited = "limited",
        /// Overloaded, no upstream, or timed out: -32094 to -32096.
        Error = "error",
    }
}

impl Outcome {
    /// Whether the caller got an answer of the cache or a node.
    pub const fn is_answer(self) -> bool {
        matches!(self, Self::Hit | Self::Stale | Self::Derived | Self::Collapsed | Self::Miss | Self::Bypass)
    }

    /// Whether the answer came from what was kept.
    pub const fn is_hit(self) -> bool {
        matches!(self, Self::Hit | Self::Stale | Self::Derived)
    }
}

label! {
    /// How one attempt on an upstream ended; also the words of `data.attempts`.
    AttemptResult is "result" {
        /// A result.
        Ok = "ok",
        /// An error of the node's that passes through to the caller.
        NodeError = "node_error",
        /// No connection.
        Connect = "connect",
        /// The connection broke before the whole answer was read.
        Reset = "reset",
        /// The attempt's deadline passed.
        Timeout = "timeout",
        /// HTTP 429.
        Status429 = "status_429",
        /// Any other HTTP 4xx.
        Status4xx = "status_4xx",
        /// HTTP 5xx.
        Status5xx = "status_5xx",
        /// A 200 whose body is no JSON-RPC answer.
        BadJson = "bad_json",
        /// An answer to another id.
        WrongId = "wrong_id",
        /// An error that says nothing but that something broke, or that the node could not read the call.
        UnknownCode = "unknown_code",
        /// An answer over `pool.max_response`.
        TooLarge = "too_large",
        /// No room among the bodies being read: `pool.max_buffered`.
        BuffersFull = "buffers_full",
        /// -32005.
        Unhealthy = "unhealthy",
        /// An answer below the slot that was asked for, -32016 against a floor of ours included.
        Behind = "behind",
        /// -32601, -32011 or HTTP 501: the node does not do this method.
        Incapable = "incapable",
        /// An answer that was not taken: the node was found to be of another cluster, or of none that is known.
        Foreign = "foreign",
        /// Given up: nobody waits for the answer any more.
        Cancelled = "cancelled",
    }
}

label! {
    /// What became of a second call beside a slow first one.
    HedgeResult is "result" {
        /// The second brought the answer.
        Won = "won",
        /// The first did after all.
        Lost = "lost",
        /// Neither did.
        Failed = "failed",
        /// It was not sent: `pool.hedge.budget` was used up.
        OverBudget = "over_budget",
    }
}

label! {
    /// Why an entry was dropped from the cache.
    EvictionCause is "cause" {
        /// The cache was full.
        Size = "size",
        /// Not asked for in a long time.
        Idle = "idle",
        /// Removed on purpose: a purge, or another cluster.
        Purged = "purged",
    }
}

label! {
    /// Why a held entry was not fresh.
    StaleCause is "cause" {
        /// Older than its time to live.
        Ttl = "ttl",
        /// Too many slots behind the frontier.
        Lag = "lag",
        /// Below the slot that the caller must not fall behind.
        Floor = "floor",
    }
}

label! {
    /// Why an answer was not kept.
    UncacheableReason is "reason" {
        /// A null that may become a value.
        Null = "null",
        /// An error that says nothing lasting.
        Transient = "transient",
        /// Over `cache.max_entry`.
        TooLarge = "too_large",
        /// A newer answer is held.
        Older = "older",
        /// Its slot is further ahead than one node alone is believed.
        Unbelieved = "unbelieved",
        /// The cache was emptied while the node was asked.
        Purged = "purged",
    }
}

label! {
    /// What became of a text that a caller takes compressed.
    Compression is "result" {
        /// It was compressed.
        Done = "done",
        /// It went out plain, since enough others were being compressed.
        Skipped = "skipped",
    }
}

label! {
    /// Why a key was over a limit.
    LimitReason is "reason" {
        /// Calls a second.
        Rate = "rate",
        /// Units a day.
        Day = "day",
        /// Units a month.
        Month = "month",
    }
}

label! {
    /// Why a key was not accepted.
    AuthFailure is "reason" {
        /// No such key, or none was sent.
        Unknown = "unknown",
        /// Past its end.
        Expired = "expired",
        /// Taken back.
        Revoked = "revoked",
        /// Not from this web origin.
        Origin = "origin",
        /// Not from this address.
        Address = "address",
        /// Too many failures from this address.
        Limited = "limited",
    }
}

label! {
    /// What a hit and a node's later answer to the same call say of each other.
    VerifyResult is "result" {
        /// They say the same.
        Equal = "equal",
        /// They differ as a later answer may, or the node could not say: proves nothing.
        Moved = "moved",
        /// They cannot both be true.
        Mismatch = "mismatch",
    }
}

label! {
    /// What the shared store is asked for.
    SharedOperation is "operation" {
        /// A connection, or its heartbeat.
        Connect = "connect",
        /// A kept answer, in its places.
        Get = "get",
        /// An answer to be kept.
        Put = "put",
        /// Calls of a rate, leased ahead.
        Limit = "limit",
        /// Units booked, and what others have booked.
        Quota = "quota",
        /// The list of purges, read and added to.
        Purge = "purge",
    }
}

label! {
    /// What became of an operation on the shared store.
    SharedResult is "result" {
        /// Done.
        Ok = "ok",
        /// An answer that serves.
        Hit = "hit",
        /// None, or one that does not serve any more.
        Miss = "miss",
        /// A value that is not what was kept there: foreign, truncated, corrupted, of another version. A miss.
        Foreign = "foreign",
        /// Not kept, since what is held there is newer, or its time is over.
        Older = "older",
        /// No answer in `shared.timeout`.
        Timeout = "timeout",
        /// No connection.
        Unreachable = "unreachable",
        /// The store refused it: full, a replica, no permission.
        Refused = "refused",
        /// Not kept, since the queue was full.
        Dropped = "dropped",
        /// Not asked: the breaker is open.
        Skipped = "skipped",
    }
}

label! {
    /// What became of a recorded span.
    SpanResult is "result" {
        /// The collector took it.
        Exported = "exported",
        /// It did not.
        Failed = "failed",
        /// The queue was full.
        Dropped = "dropped",
    }
}

label! {
    /// What became of a changed configuration or key file.
    ReloadResult is "result" {
        /// In force.
        Applied = "applied",
        /// Refused whole; the old one stays in force.
        Rejected = "rejected",
    }
}

/// What went wrong with the attempt before a further one: the words of [`AttemptResult`] under a label of their own.
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

/// A node's JSON-RPC error code as a label: those that nodes define, else `other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCode(usize);

impl NodeCode {
    /// JSON-RPC's own, then Agave's `rpc-custom-error`, as label texts.
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
    fn positions_and_words_agree() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::text(outcome.position()), outcome.as_str());
            assert_eq!(Outcome::from_name(outcome.as_str()), Some(outcome));
        }
        assert_eq!(<Option<Method>>::text(None::<Method>.position()), "other");
        assert_eq!(<Option<Commitment>>::text(None::<Commitment>.position()), "none");
        assert_eq!(<Option<Method>>::text(Some(Method::GetBlock).position()), "getBlock");
    }

    #[test]
    fn codes_that_no_node_has_are_other() {
        for (code, text) in [(-32007, "-32007"), (-32700, "-32700"), (-32099, "other"), (7, "other")] {
            assert_eq!(NodeCode::text(NodeCode::from(code).position()), text);
        }
    }
}
