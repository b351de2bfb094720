//! What slotfront has to know of a method beside its params: which part of a node answers it, what the errors of a node
//! mean for it, and what it costs. Each row in the table of [`Method`](super::Method) names its rules.

named! {
    /// A part of a node. One part may fail or be busy while the others are well, so each has a health of its own.
    pub enum Part {
        /// The state of accounts and of the cluster.
        Accounts = "accounts",
        /// Past blocks and transactions.
        History = "history",
        /// What the node has to search many accounts for.
        Scans = "scans",
        /// What the node knows of itself and of its neighbours.
        OfNodes = "of_nodes",
        /// The newest slots, and what is sent to them.
        Tip = "tip",
        /// What only the provider of the node knows: the methods that the operator lists.
        Provider = "provider",
    }
}

/// Who answers the calls of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    /// Any node: all of them answer alike.
    AnyNode,
    /// One node, as long as it is usable: each node has its own view.
    OneNode,
    /// The pool, for all its nodes.
    Pool,
}

/// The rules of a method.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The part of a node that answers.
    pub part: Part,
    /// Who answers.
    pub answerer: Answerer,
    /// The codes of the errors that any node would give for the same params, so that one of them decides the call. Of all
    /// others, only the node that gave them knows the reason, and another node may answer.
    pub errors: &'static [i32],
    /// The codes of the errors by which a node says that it does not hold what is asked. Another node may hold it.
    pub absences: &'static [i32],
    /// True if a second node is asked when one takes many times its usual time. Not for what changes the chain, and not for
    /// what may cost a node seconds by itself.
    pub is_quick: bool,
    /// The price in units of an answer, and why. `None` for `units.default`.
    pub price: Option<(u64, &'static str)>,
    /// The time for an attempt, by default. `None` for `pool.attempt_timeout.default`.
    pub timeout: Option<&'static str>,
    /// True if a node walks over many accounts for a call, whatever its indexes, and walks on without its caller. So such
    /// calls have few places (`pool.max_scans`), the time of an attempt beside `server.request_timeout`, and no second
    /// node after that time.
    pub walks: bool,
}

/// The data of an account is too long for base58.
const TOO_LONG_FOR_BASE58: i32 = -32600;
/// The params are refused, or the account that they name.
const INVALID_PARAMS: i32 = -32602;
/// A transaction of the block has a version above the caller's `maxSupportedTransactionVersion`.
const UNSUPPORTED_VERSION: i32 = -32015;
/// The rewards of the epoch are being paid.
const REWARDS_PERIOD_ACTIVE: i32 = -32017;
/// The block was pruned, is not there yet, was skipped, was skipped in long-term storage, or has no status yet.
const NO_BLOCK: &[i32] = &[-32001, -32004, -32007, -32009, -32014];

/// The state of the cluster, of which any node knows.
pub(super) const STATE: Rules = Rules {
    part: Part::Accounts,
    answerer: Answerer::AnyNode,
    errors: &[],
    absences: &[],
    is_quick: true,
    price: None,
    timeout: None,
    walks: false,
};
pub(super) const ACCOUNT: Rules = Rules { errors: &[TOO_LONG_FOR_BASE58], ..STATE };
pub(super) const ACCOUNTS: Rules = Rules {
    price: Some((
        5,
        "The price of a full list of 100 accounts. A shorter list costs its part, rounded up: 20 accounts cost 1, 21 \
         cost 2.",
    )),
    ..ACCOUNT
};
/// An amount, which only a certain kind of account has, or a message that names accounts.
pub(super) const AMOUNT: Rules = Rules { errors: &[INVALID_PARAMS], ..STATE };
pub(super) const VOTES: Rules = Rules { price: Some((5, "The full list of validators.")), ..STATE };
pub(super) const LEADERS: Rules =
    Rules { price: Some((5, "The leaders of all slots of an epoch.")), ..STATE };
pub(super) const BLOCK: Rules = Rules {
    part: Part::History,
    errors: &[UNSUPPORTED_VERSION],
    absences: NO_BLOCK,
    price: Some((10, "A block is the most expensive answer.")),
    // A full block is megabytes read from disk. Of the 30 s for a request, 5 s remain for another node.
    timeout: Some("25s"),
    ..STATE
};
pub(super) const BLOCK_TIME: Rules = Rules { part: Part::History, absences: NO_BLOCK, ..STATE };
pub(super) const BLOCKS: Rules = Rules { part: Part::History, ..STATE };
pub(super) const TRANSACTION: Rules = Rules { errors: &[UNSUPPORTED_VERSION], ..BLOCKS };
/// A page of signatures. A node may not know the transaction that bounds it.
pub(super) const PAGE: Rules = Rules { absences: &[-32020], is_quick: false, ..BLOCKS };
/// The rewards of an epoch, which are in the block that begins the next one.
pub(super) const REWARD: Rules = Rules {
    errors: &[REWARDS_PERIOD_ACTIVE],
    absences: &[-32001, -32004, -32007, -32009, -32014, -32018],
    is_quick: false,
    ..BLOCKS
};
/// The token accounts of one owner. A node with the index for them finds them as fast as an account.
pub(super) const OWNERS: Rules = Rules {
    part: Part::Scans,
    errors: &[TOO_LONG_FOR_BASE58, INVALID_PARAMS],
    is_quick: false,
    price: Some((10, "Nodes with an index find these accounts.")),
    ..STATE
};
pub(super) const SCAN: Rules = Rules {
    price: Some((100, "A node walks over many accounts.")),
    // A walk over a large program takes a busy node most of a minute, and would take another node as long.
    timeout: Some("60s"),
    walks: true,
    ..OWNERS
};
pub(super) const OF_NODE: Rules = Rules { part: Part::OfNodes, answerer: Answerer::OneNode, ..STATE };
pub(super) const OF_POOL: Rules = Rules { answerer: Answerer::Pool, ..OF_NODE };
pub(super) const TIP: Rules = Rules { part: Part::Tip, ..AMOUNT };
/// Of a listed method nobody knows how long it may take.
pub(super) const PROVIDER: Rules = Rules { part: Part::Provider, is_quick: false, ..AMOUNT };
pub(super) const LISTED_HISTORY: Rules = Rules { part: Part::History, ..PROVIDER };
pub(super) const SIMULATION: Rules = Rules {
    errors: &[-32003, INVALID_PARAMS],
    is_quick: false,
    price: Some((5, "A node executes the transaction.")),
    ..TIP
};
pub(super) const SEND: Rules = Rules {
    errors: &[-32002, -32003, -32006, -32013, INVALID_PARAMS],
    is_quick: false,
    price: Some((10, "The price of a transaction, whatever becomes of it at the node.")),
    ..TIP
};
