//! The accounts that no transaction may write, whatever its message says.
//!
//! The list is that of Agave 4.0 (`ReservedAccountKeys::new_all_activated()` of the crate `agave-reserved-account-keys`,
//! addresses of the crate `solana-sdk-ids`), by which a node shows accounts as writable. It has the keys of all
//! features, active or not, so it is the same on every cluster. A newer release may add keys.

use super::Pubkey;

const fn key(text: &str) -> Pubkey {
    Pubkey(bs58::decode(text.as_bytes()).into_array_const_unwrap())
}

const RESERVED: [Pubkey; 31] = [
    // Programs that the runtime implements.
    key("AddressLookupTab1e1111111111111111111111111"),
    key("BPFLoader2111111111111111111111111111111111"),
    key("BPFLoader1111111111111111111111111111111111"),
    UPGRADEABLE_LOADER,
    key("ComputeBudget111111111111111111111111111111"),
    key("Config1111111111111111111111111111111111111"),
    key("Ed25519SigVerify111111111111111111111111111"),
    key("Feature111111111111111111111111111111111111"),
    key("LoaderV411111111111111111111111111111111111"),
    key("KeccakSecp256k11111111111111111111111111111"),
    key("Secp256r1SigVerify1111111111111111111111111"),
    key("StakeConfig11111111111111111111111111111111"),
    key("Stake11111111111111111111111111111111111111"),
    key("11111111111111111111111111111111"),
    key("Vote111111111111111111111111111111111111111"),
    key("ZkE1Gama1Proof11111111111111111111111111111"),
    key("ZkTokenProof1111111111111111111111111111111"),
    // Sysvars.
    key("SysvarC1ock11111111111111111111111111111111"),
    key("SysvarEpochRewards1111111111111111111111111"),
    key("SysvarEpochSchedu1e111111111111111111111111"),
    key("SysvarFees111111111111111111111111111111111"),
    key("Sysvar1nstructions1111111111111111111111111"),
    key("SysvarLastRestartS1ot1111111111111111111111"),
    key("SysvarRecentB1ockHashes11111111111111111111"),
    key("SysvarRent111111111111111111111111111111111"),
    key("SysvarRewards111111111111111111111111111111"),
    key("SysvarS1otHashes111111111111111111111111111"),
    key("SysvarS1otHistory11111111111111111111111111"),
    key("SysvarStakeHistory1111111111111111111111111"),
    // Owners.
    key("NativeLoader1111111111111111111111111111111"),
    key("Sysvar1111111111111111111111111111111111111"),
];

/// The loader of upgradeable programs. While it is among the accounts of a message, the programs that the message calls
/// may be written.
pub(super) const UPGRADEABLE_LOADER: Pubkey = key("BPFLoaderUpgradeab1e11111111111111111111111");

/// Returns true if no transaction may write the account.
pub fn is_reserved(key: &Pubkey) -> bool {
    RESERVED.contains(key)
}
