//! The metric labels and their values. Logs and headers use the same words.
//!
//! Each label has a closed set of values, so the number of series is bounded. The labels `key` and `upstream` are
//! exceptions. The Prometheus registry of a key or an upstream adds them.

use crate::methods::{AnyMethod, Commitment, Method, SubscriptionMethod};
use crate::named;

/// A metric label with a closed set of values. The values are numbered by position, from 0.
pub trait Label: Copy {
    const NAME: &'static str;
    const COUNT: usize;
    /// Returns the position of this value, below [`Label::COUNT`].
    fn position(self) -> usize;
    /// Returns the text of the value at `position`, which is below [`Label::COUNT`].
    fn text(position: usize) -> &'static str;
}

impl Label for AnyMethod {
    const NAME: &'static str = "method";
    const COUNT: usize = Self::COUNT;

    fn position(self) -> usize {
        self.index()
    }

    fn text(position: usize) -> &'static str {
        Self::all().nth(position).map_or(NO_METHOD, Self::as_str)
    }
}

/// The name under which calls of methods that no node knows are counted, and requests without a method.
const NO_METHOD: &str = "other";

/// Returns the name of a call's method in metrics, the log and traces.
pub(crate) fn method_name(method: Option<AnyMethod>) -> &'static str {
    method.map_or(NO_METHOD, AnyMethod::as_str)
}

impl Label for Option<AnyMethod> {
    const NAME: &'static str = AnyMethod::NAME;
    const COUNT: usize = AnyMethod::COUNT + 1;

    fn position(self) -> usize {
        self.map_or(AnyMethod::COUNT, AnyMethod::index)
    }

    fn text(position: usize) -> &'static str {
        AnyMethod::text(position)
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

/// Makes the names of an enum the values of a label.
macro_rules! named_label {
    ($name:ident is $label:literal) => {
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
    };
}

named_label!(Commitment is "commitment");
named_label!(Method is "method");
named_label!(SubscriptionMethod is "method");

/// Declares an enum whose variants are the values of a label. It takes the label's name and the text of each value.
macro_rules! label {
    ($(#[$meta:meta])* $name:ident is $label:literal { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        named! {
            $(#[$meta])*
            pub enum $name { $($(#[$doc])* $variant = $text,)+ }
        }

        named_label!($name is $label);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

label! {
    /// The outcome of a call. The first seven are answers from the cache or a node; the others are refusals and failures.
    Outcome is "outcome" {
        /// Answered from a fresh entry.
        Hit = "hit",
        /// Answered from an entry as of a newer slot than the entry's own, because no block has written the
        /// account since.
        Carried = "carried",
        /// Answered from a stale entry, while a refresh runs or because no node answers.
        Stale = "stale",
        /// Answered from an entry of another form, such as another encoding of the account.
        Derived = "derived",
        /// Answered by a fetch that another call had started, or subscribed to what somebody has subscribed to already.
        Collapsed = "collapsed",
        /// Answered by a node, which was asked because of this call, or subscribed to what nobody had subscribed to.
        Miss = "miss",
        /// Answered by a node past the cache, because the caller asks for that, or because the call is forwarded or sent.
        Bypass = "bypass",
        /// Refused: not a valid JSON-RPC request, an unsupported method, invalid params, or too long a batch.
        Invalid = "invalid",
        /// Refused: no valid key, or the key's plan does not allow the call.
        Denied = "denied",
        /// Refused: over the rate or a quota of the key.
        Limited = "limited",
        /// Failed: slotfront is overloaded, no upstream can answer, or the call timed out (-32094 to -32096).
        Error = "error",
    }
}

label! {
    /// The result of an attempt on an upstream. The member `data.attempts` of an error uses the same words.
    AttemptResult is "result" {
        /// The node returned a result.
        Ok = "ok",
        /// The node returned an error that passes through to the caller.
        NodeError = "node_error",
        /// The node's host name could not be resolved.
        NameNotFound = "name_not_found",
        /// Nobody listens at the node's address.
        ConnectionRefused = "connection_refused",
        /// No known authority has issued the node's certificate.
        UnknownIssuer = "certificate_unknown_issuer",
        /// The node's certificate has expired.
        CertificateExpired = "certificate_expired",
        /// The node's certificate is for another host name.
        WrongName = "certificate_wrong_name",
        /// The node's certificate is not trusted for another reason, such as one that is not valid yet.
        Untrusted = "certificate_untrusted",
        /// The node does not speak TLS, or the two sides have no version of it in common.
        TlsFailed = "tls_failed",
        /// The connection could not be opened for another reason, or broke before the first byte of the answer.
        Connect = "connect",
        /// The connection broke after the first byte of the answer.
        Reset = "reset",
        /// The answer was not complete in time.
        Timeout = "timeout",
        /// The node answered HTTP 429.
        Status429 = "status_429",
        /// The node answered with a redirect, which is not followed.
        Status3xx = "status_3xx",
        /// The node answered HTTP 401: it wants a key, or another one.
        Status401 = "status_401",
        /// The node answered HTTP 403.
        Status403 = "status_403",
        /// The node answered HTTP 404.
        Status404 = "status_404",
        /// The node answered another HTTP 4xx than the above and 429.
        Status4xx = "status_4xx",
        /// The node answered HTTP 5xx other than 501.
        Status5xx = "status_5xx",
        /// The body is not a JSON-RPC response, or its result does not fit the call.
        BadJson = "bad_json",
        /// The answer has another JSON-RPC id than the request.
        WrongId = "wrong_id",
        /// The node returned an error code that does not tell the cause, or could not parse the call.
        UnknownCode = "unknown_code",
        /// The answer exceeds `pool.max_response`, or the limit of its group.
        TooLarge = "too_large",
        /// The answer does not fit into `pool.max_buffered` together with the answers that are being read, or exceeds
        /// the share of its caller.
        BuffersFull = "buffers_full",
        /// The node returned -32005 (unhealthy).
        Unhealthy = "unhealthy",
        /// The answer's slot is below the requested minimum, or the node returned -32016 (minimum slot not reached).
        Behind = "behind",
        /// The node lacks the method (-32601, HTTP 501), or its storage or indexes do not support the call.
        Incapable = "incapable",
        /// The answer was discarded, because the node belongs to another Solana cluster or its cluster is unknown.
        Foreign = "foreign",
        /// The attempt took many times its usual time, so another node was asked as well. Only retries are counted so.
        Slow = "slow",
        /// The attempt was given up: the deadline passed, another node has answered first, or no caller waited any more.
        Cancelled = "cancelled",
    }
}

impl AttemptResult {
    /// Returns true if the attempt ended at a limit of slotfront or of its caller while its node may have been at work.
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::TooLarge | Self::BuffersFull | Self::Timeout | Self::Cancelled)
    }
}

named! {
    /// A reason why a node is not usable for a call, mildest first. If no node is usable, nodes are asked in this
    /// order.
    ///
    /// First come the nodes that probably answer, and as well as a usable node would. The next ones probably fail or refuse,
    /// which costs the caller one more attempt. A node far behind comes after these, because its answer would be taken
    /// although it is too old. An unreachable node comes later still: the wait for it is long, and mostly in vain. A node
    /// without the method can only give its error.
    pub enum Unusable {
        /// The node is known to be below the slot that the call wants.
        BelowFloor = "below_floor",
        /// The node no longer holds the block that the call reads, or has not finalized it although another node has.
        NoHistory = "no_history",
        /// The node reports that it is behind or unhealthy.
        Unhealthy = "unhealthy",
        /// The node's breaker is open. A forwarded call and a further attempt of a call also avoid a node whose breaker is
        /// half-open, because they are not made to find out if the node is back.
        BreakerOpen = "breaker_open",
        /// The node has not answered a probe yet.
        Unprobed = "unprobed",
        /// The node has refused the method with a 429, and wants no calls of it for a while. Of several such nodes, the one
        /// that wants calls soonest is asked.
        Quiet = "quiet",
        /// The node is more than `pool.max_slot_lag` slots behind the newest known slot.
        Lagging = "lagging",
        /// The node does not answer its probes.
        Unreachable = "unreachable",
        /// The node does not serve the method. The node is asked only if no other node may be asked, so that the
        /// caller gets the node's own error.
        Incapable = "incapable",
        /// A limit of the node is reached: calls in flight, the caller's share of them, or calls a second. The node
        /// gets no further calls.
        Busy = "busy",
        /// An operator has drained the node. The node gets no calls.
        Drained = "drained",
        /// The node has not reported the pool's genesis hash. The node gets no calls.
        Unidentified = "unidentified",
        /// The node belongs to another Solana cluster. The node gets no calls.
        Foreign = "foreign",
        /// The node has already been asked for this call, and is not asked again.
        Tried = "tried",
    }
}

impl Unusable {
    /// Returns true if a node that is unusable for this reason may still be asked when no node is usable.
    pub fn askable(self) -> bool {
        self < Self::Busy
    }
}

label! {
    /// The cause of an entry's removal from the cache.
    EvictionCause is "cause" {
        /// The cache was full.
        Size = "size",
        /// The entry was not read for a long time.
        Idle = "idle",
        /// The entry was purged, by an operator or because the upstreams' Solana cluster changed.
        Purged = "purged",
    }
}

label! {
    /// The reason why a cached entry was not served as fresh.
    StaleCause is "cause" {
        /// The entry was older than its time to live.
        Ttl = "ttl",
        /// The entry was too many slots behind the newest known slot.
        Lag = "lag",
        /// The entry's slot was below the slot that the call requires, or below the slot of an earlier answer about the
        /// account.
        Floor = "floor",
    }
}

label! {
    /// The reason why a node's answer was not cached.
    UncacheableReason is "reason" {
        /// The answer is null, and may become a value later.
        Null = "null",
        /// The answer is an error that may be temporary.
        Transient = "transient",
        /// The answer exceeds `cache.max_entry`.
        TooLarge = "too_large",
        /// The cache holds a newer answer.
        Older = "older",
        /// The answer's slot is too far above the newest known slot to believe a single node.
        Unbelieved = "unbelieved",
        /// The cache was purged between the request to the node and the answer.
        Purged = "purged",
    }
}

label! {
    /// The result of compressing an answer for a caller that accepts compressed answers.
    Compression is "result" {
        /// The answer was compressed.
        Done = "done",
        /// The answer was sent uncompressed, because too many other answers were being compressed.
        Skipped = "skipped",
    }
}

label! {
    /// The limit of the key's plan because of which a call was refused.
    LimitReason is "reason" {
        /// The rate (`rps` and `burst`).
        Rate = "rate",
        /// The quota of units a day (`daily_units`).
        Day = "day",
        /// The quota of units a month (`monthly_units`).
        Month = "month",
        /// The number of open WebSockets (`connections`).
        Connections = "connections",
        /// The rate of one method.
        Method = "method",
    }
}

label! {
    /// The time for which a quota holds.
    QuotaPeriod is "period" {
        /// The UTC day.
        Day = "day",
        /// The UTC month.
        Month = "month",
    }
}

label! {
    /// The reason why a WebSocket was closed.
    CloseReason is "reason" {
        /// The client has closed it, or has disconnected.
        Client = "client",
        /// slotfront stops.
        Away = "away",
        /// The client sent what is no message of the WebSocket protocol, or text that is not UTF-8.
        Protocol = "protocol",
        /// The client sent a message that is too long.
        TooLong = "too_long",
        /// The key was revoked, has expired, or its plan does not allow the connection any more.
        Policy = "policy",
        /// Notifications may be missing: the node behind them was lost, or the chain has restarted.
        Restart = "restart",
        /// The client does not read its notifications fast enough.
        Lagged = "lagged",
        /// The client sent calls faster than its key may, or a quota is used up.
        Rate = "rate",
        /// The client does not answer pings.
        Dead = "dead",
    }
}

label! {
    /// The reason why a request was refused because of its API key.
    AuthFailure is "reason" {
        /// The key does not exist, or the request has no key.
        Unknown = "unknown",
        Expired = "expired",
        /// An operator has suspended the key for a while.
        Suspended = "suspended",
        Revoked = "revoked",
        /// The request names two keys that differ.
        TwoKeys = "two_keys",
        /// The key may not be used from this web origin.
        Origin = "origin",
        /// The key may not be used from this client address.
        Address = "address",
        /// The key was refused for another reason, and the client address has sent too many refused keys.
        Limited = "limited",
    }
}

label! {
    /// The result of comparing a hit with a node's later answer to the same call.
    VerifyResult is "result" {
        Equal = "equal",
        /// The answers differ in a way that a later slot explains, or the node could not answer. This proves nothing.
        Moved = "moved",
        /// The answers contradict each other.
        Mismatch = "mismatch",
    }
}

label! {
    /// The result of asking for a block while following the chain.
    BlockResult is "result" {
        /// The block was read from a node.
        Read = "read",
        /// The block was read by another replica, and taken from the shared store. No node was asked.
        Shared = "shared",
        /// The node does not have the block yet, so the block is asked for again.
        NotYet = "not_yet",
        /// The node gave no block, so another node is asked.
        Failed = "failed",
        /// The accounts that the block writes cannot be known.
        Unreadable = "unreadable",
    }
}

label! {
    /// The reason why following the chain began anew. Every account is then fetched once more.
    RestartReason is "reason" {
        /// A block is missing, does not join the block before it, or its writes cannot be known.
        Gap = "gap",
        /// A node has other blocks than those followed, or the finalized slot is not part of the followed chain.
        Fork = "fork",
        /// A second node has another block at the same slot.
        Disagreement = "disagreement",
        Epoch = "epoch",
        /// The Solana cluster of the upstreams has changed, or may have changed.
        Cluster = "cluster",
        /// The nodes have fallen behind the newest block that was followed.
        Behind = "behind",
        /// The number of blocks that are not read yet exceeds `follow.max_gap`.
        TooFar = "too_far",
        /// No new block came for a minute.
        Stalled = "stalled",
        /// The followed part of the chain has reached its maximum number of slots.
        Full = "full",
    }
}

label! {
    SharedOperation is "operation" {
        /// Opening a connection, or checking that it is alive.
        Connect = "connect",
        /// Reading an answer, or checking if a part of the store works again after it failed.
        Get = "get",
        /// Writing or deleting an answer.
        Put = "put",
        /// The shared rate limits: adding used calls to a limit, and leasing (reserving) further calls from it.
        Limit = "limit",
        /// The totals of a key over all gateways: adding used units to them, and reading them.
        Quota = "quota",
        /// Reading or changing the list of purges.
        Purge = "purge",
        /// Reading or writing the list of accounts that a block may change.
        Block = "block",
    }
}

label! {
    SharedResult is "result" {
        Ok = "ok",
        /// A usable answer or block was found.
        Hit = "hit",
        /// No answer or block was found, or the one found is not usable.
        Miss = "miss",
        /// The value is not used: it is corrupted, or was written by another version of slotfront or with another
        /// secret.
        Foreign = "foreign",
        /// The answer or block was not written: the store holds a newer answer or a record of the block, the answer
        /// has expired, or the store's clock is behind the writer's estimate.
        Older = "older",
        /// The store did not answer in time.
        Timeout = "timeout",
        /// The store could not be reached.
        Unreachable = "unreachable",
        /// The store refused the operation: it is full, is a replica, or denies the permission.
        Refused = "refused",
        /// The answer was not written, because the queue of writes was full.
        Dropped = "dropped",
        /// The store was not asked: it is not connected, its circuit breaker is open, its clock or purges are unknown,
        /// or it has just refused writes.
        Skipped = "skipped",
    }
}

label! {
    /// The result of exporting a span to the trace collector.
    SpanResult is "result" {
        /// The collector accepted the span.
        Exported = "exported",
        /// The collector refused the span or did not answer.
        Failed = "failed",
        /// The span was not sent, because the queue was full.
        Dropped = "dropped",
    }
}

label! {
    /// A file of `auth` on which the gateway works in the background.
    AuthFile is "file" {
        /// The key file, which is read.
        Keys = "keys",
        /// The usage file, which is written.
        Usage = "usage",
    }
}

label! {
    /// The result of reloading the configuration or the key file.
    ReloadResult is "result" {
        /// The new content is in force.
        Applied = "applied",
        /// The new content was refused as a whole. The old content stays in force.
        Rejected = "rejected",
    }
}

/// The label `reason` of a retry: the result of the failed attempt before it.
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

/// A node's JSON-RPC error code as a label. Codes that neither JSON-RPC nor Agave defines are `other`.
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
        }
        assert_eq!(<Option<AnyMethod>>::text(None::<AnyMethod>.position()), "other");
        assert_eq!(<Option<Commitment>>::text(None::<Commitment>.position()), "none");
        for method in AnyMethod::all() {
            assert_eq!(<Option<AnyMethod>>::text(Some(method).position()), method.as_str());
        }
    }

    #[test]
    fn unknown_node_codes_are_other() {
        for (code, text) in [(-32007, "-32007"), (-32700, "-32700"), (-32099, "other"), (7, "other")] {
            assert_eq!(NodeCode::text(NodeCode::from(code).position()), text);
        }
    }
}
