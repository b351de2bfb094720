//! The JSON-RPC error codes of nodes that slotfront distinguishes. docs/node-contract.md says what follows from each.

/// The block was deleted. The text contains the first available block.
pub const BLOCK_CLEANED_UP: i32 = -32001;
/// The simulation of a transaction before it is sent has failed.
pub const PREFLIGHT_FAILURE: i32 = -32002;
/// The node has not reached the block's slot yet.
pub const BLOCK_NOT_AVAILABLE: i32 = -32004;
pub const NODE_UNHEALTHY: i32 = -32005;
/// The slot was skipped, or the node lacks the slot's block after a jump to a newer snapshot.
pub const SLOT_SKIPPED: i32 = -32007;
pub const LONG_TERM_STORAGE_SLOT_SKIPPED: i32 = -32009;
pub const KEY_EXCLUDED_FROM_SECONDARY_INDEX: i32 = -32010;
pub const TRANSACTION_HISTORY_NOT_AVAILABLE: i32 = -32011;
/// A scan over accounts failed.
pub const SCAN_ERROR: i32 = -32012;
pub const BLOCK_STATUS_NOT_AVAILABLE_YET: i32 = -32014;
/// The block has a transaction of a version above the caller's `maxSupportedTransactionVersion`.
pub const UNSUPPORTED_TRANSACTION_VERSION: i32 = -32015;
/// The node has not reached the `minContextSlot` of the call.
pub const MIN_CONTEXT_SLOT_NOT_REACHED: i32 = -32016;
pub const LONG_TERM_STORAGE_UNREACHABLE: i32 = -32019;
/// The call is invalid, or its data is too long for base58.
pub const INVALID_REQUEST: i32 = -32600;
/// The node does not serve the method.
pub const METHOD_NOT_FOUND: i32 = -32601;
pub const INVALID_PARAMS: i32 = -32602;
/// The node failed.
pub const INTERNAL_ERROR: i32 = -32603;
/// The node could not parse the call.
pub const PARSE_ERROR: i32 = -32700;

/// An error that a provider gives for reasons of its own, whatever its code.
pub const OF_A_PROVIDER: i32 = 0;
