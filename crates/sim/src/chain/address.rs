//! Addresses that are the same on every cluster: programs, sysvars, the native mint.

use slotfront_rpc::methods::Pubkey;

const fn key(text: &str) -> Pubkey {
    Pubkey(bs58::decode(text.as_bytes()).into_array_const_unwrap())
}

pub(crate) const SYSTEM: Pubkey = Pubkey([0; 32]);
pub(crate) const VOTE: Pubkey = key("Vote111111111111111111111111111111111111111");
pub(crate) const STAKE: Pubkey = key("Stake11111111111111111111111111111111111111");
pub(crate) const COMPUTE_BUDGET: Pubkey = key("ComputeBudget111111111111111111111111111111");
pub(crate) const LOOKUP_TABLE: Pubkey = key("AddressLookupTab1e1111111111111111111111111");
pub(crate) const TOKEN: Pubkey = key("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA");
pub(crate) const TOKEN_2022: Pubkey = key("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb");
pub(crate) const FEATURE: Pubkey = key("Feature111111111111111111111111111111111111");
pub(crate) const MEMO: Pubkey = key("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr");
pub(crate) const NATIVE_LOADER: Pubkey = key("NativeLoader1111111111111111111111111111111");
pub(crate) const LOADER_2: Pubkey = key("BPFLoader2111111111111111111111111111111111");
pub(crate) const LOADER_UPGRADEABLE: Pubkey = key("BPFLoaderUpgradeab1e11111111111111111111111");
pub(crate) const LOADER_4: Pubkey = key("LoaderV411111111111111111111111111111111111");
pub(crate) const ED25519: Pubkey = key("Ed25519SigVerify111111111111111111111111111");
pub(crate) const SECP256K1: Pubkey = key("KeccakSecp256k11111111111111111111111111111");
pub(crate) const SECP256R1: Pubkey = key("Secp256r1SigVerify1111111111111111111111111");

pub(crate) const SYSVAR_OWNER: Pubkey = key("Sysvar1111111111111111111111111111111111111");
pub(crate) const CLOCK: Pubkey = key("SysvarC1ock11111111111111111111111111111111");
pub(crate) const RENT: Pubkey = key("SysvarRent111111111111111111111111111111111");
pub(crate) const EPOCH_SCHEDULE: Pubkey = key("SysvarEpochSchedu1e111111111111111111111111");
pub(crate) const SLOT_HASHES: Pubkey = key("SysvarS1otHashes111111111111111111111111111");
pub(crate) const RECENT_BLOCKHASHES: Pubkey = key("SysvarRecentB1ockHashes11111111111111111111");
pub(crate) const STAKE_HISTORY: Pubkey = key("SysvarStakeHistory1111111111111111111111111");

/// The account whose lamports are burned.
pub(crate) const INCINERATOR: Pubkey = key("1nc1nerator11111111111111111111111111111111");
/// The account of Alpenglow's clock. Its address is derived from the first id of the Alpenglow feature.
pub(crate) const NANOSECOND_CLOCK: Pubkey = key("HQcg2uM8uUqfRprvypQGcU7qucUZJY3odWjJVYce2a6C");
pub(crate) const VOTE_REWARD: Pubkey = key("7G85SCUYfFkdPEM5ScoRQmKA5yARzJ9Kr6XrJjZcKgxm");

/// The mint of wrapped SOL. Nodes have its decimals (9) built in.
pub(crate) const NATIVE_MINT: Pubkey = key("So11111111111111111111111111111111111111112");

/// The programs that the runtime implements, with the names in their account data.
pub(crate) const BUILTINS: [(Pubkey, &str); 7] = [
    (SYSTEM, "system_program"),
    (VOTE, "vote_program"),
    (STAKE, "stake_program"),
    (COMPUTE_BUDGET, "compute_budget_program"),
    (LOOKUP_TABLE, "address_lookup_table_program"),
    (LOADER_2, "solana_bpf_loader_program"),
    (LOADER_UPGRADEABLE, "solana_bpf_loader_upgradeable_program"),
];
