//! The accounts that may change without being listed in a block. An answer about them is never served for a newer slot
//! than it was read at.
//!
//! Sysvars change in every block; stake accounts when an epoch's rewards are paid, and a reward of 0 changes one without
//! being listed; vote accounts by their part of the fees; features and built-in programs at the first block of an epoch.
//! The owner is that of the cached account, which is enough: a change of owner takes a transaction, and that lists the
//! account. `lab/store_sites/sites.toml` names the places of the node's source.

use std::collections::HashSet;
use std::sync::LazyLock;

use crate::methods::Pubkey;

/// The owners whose accounts a node changes by itself: sysvars, stakes, votes, built-in programs, features.
const OWNERS: [&str; 5] = [
    "Sysvar1111111111111111111111111111111111111",
    "Stake11111111111111111111111111111111111111",
    "Vote111111111111111111111111111111111111111",
    "NativeLoader1111111111111111111111111111111",
    "Feature111111111111111111111111111111111111",
];

/// The system program, which owns wallets, nonce accounts and Alpenglow's accounts.
const SYSTEM_PROGRAM: Pubkey = Pubkey([0; 32]);

/// The size in bytes of a nonce account. No other system account has data that transactions write.
const NONCE_BYTES: u64 = 80;

/// The addresses that no transaction can write (agave-reserved-account-keys), and the incinerator, which a
/// node empties at the end of each block.
const RESERVED: [&str; 32] = [
    "AddressLookupTab1e1111111111111111111111111",
    "BPFLoader1111111111111111111111111111111111",
    "BPFLoader2111111111111111111111111111111111",
    "BPFLoaderUpgradeab1e11111111111111111111111",
    "ComputeBudget111111111111111111111111111111",
    "Config1111111111111111111111111111111111111",
    "Ed25519SigVerify111111111111111111111111111",
    "Feature111111111111111111111111111111111111",
    "KeccakSecp256k11111111111111111111111111111",
    "LoaderV411111111111111111111111111111111111",
    "NativeLoader1111111111111111111111111111111",
    "Secp256r1SigVerify1111111111111111111111111",
    "Stake11111111111111111111111111111111111111",
    "StakeConfig11111111111111111111111111111111",
    "11111111111111111111111111111111",
    "Vote111111111111111111111111111111111111111",
    "ZkE1Gama1Proof11111111111111111111111111111",
    "ZkTokenProof1111111111111111111111111111111",
    "Sysvar1111111111111111111111111111111111111",
    "SysvarC1ock11111111111111111111111111111111",
    "SysvarEpochRewards1111111111111111111111111",
    "SysvarEpochSchedu1e111111111111111111111111",
    "SysvarFees111111111111111111111111111111111",
    "Sysvar1nstructions1111111111111111111111111",
    "SysvarLastRestartS1ot1111111111111111111111",
    "SysvarRecentB1ockHashes11111111111111111111",
    "SysvarRent111111111111111111111111111111111",
    "SysvarRewards111111111111111111111111111111",
    "SysvarS1otHashes111111111111111111111111111",
    "SysvarS1otHistory11111111111111111111111111",
    "SysvarStakeHistory1111111111111111111111111",
    "1nc1nerator11111111111111111111111111111111",
];

/// The addresses of Alpenglow's clock, genesis certificate, reward and delegated-stake accounts. Each address
/// is derived from a seed and the id of a feature. The id differs between clusters.
const ALPENGLOW: [&str; 12] = [
    // Derived from the feature id a1penGLz8Vm2QHYB3JPefBiU4BY3Z6JkW2k3Scw5GWP.
    "HQcg2uM8uUqfRprvypQGcU7qucUZJY3odWjJVYce2a6C",
    "aeApwREFa7cKFciqYJvKMuZ9GvV5mxSaUg3xaxGTVMW",
    "7G85SCUYfFkdPEM5ScoRQmKA5yARzJ9Kr6XrJjZcKgxm",
    "FEhusMkCSpywBcjYA7j3NwrSKGH7oPmM1BbHZNFtjzkU",
    // Derived from the feature id mustRekeyVm2QHYB3JPefBiU4BY3Z6JkW2k3Scw5GWP.
    "A5HnwXe9U16naY6JUPLEfobUAmCch4yxhnxd2criXCdK",
    "BRCfbk9eZEX3BhW4mukwsznrHakiAUNSLSq65gxDBxkt",
    "8Pg9UKWhoSrvaFtnKbX9ApMKaKhij9buPiMuHmzZNHEe",
    "F6edFQTkf7mvoxCJZTSpQYWBjyBma8oCjSN6BQUQGiMe",
    // Derived from the feature id A1pengvuM6JEcyNuTnMqepBKhwHE3N6PmUrdATGawhJS.
    "GaGQ2vyb3xuUwjKiq9tQQWoqhzWYh7LbiLXvqG2sUzzG",
    "42Ym56TQ7AKFThRv5nyoSABq5ZPgE2TLKo8BALZEtoU1",
    "3vJzniWALu2qGFJ1ZY6JD3Y2ZmA5zWqmVdDX7yBXHgu7",
    "CHfmHwNcskfxg1ZnLatbHbmVvYbA6rLDz3Xok5a3Ku8i",
];

static EXCLUDED_OWNERS: LazyLock<HashSet<Pubkey>> = LazyLock::new(|| addresses(&OWNERS));

static EXCLUDED_ADDRESSES: LazyLock<HashSet<Pubkey>> =
    LazyLock::new(|| addresses(&RESERVED).union(&addresses(&ALPENGLOW)).copied().collect());

fn addresses(texts: &[&str]) -> HashSet<Pubkey> {
    texts.iter().map(|text| Pubkey::parse(text).expect("the constants are addresses")).collect()
}

/// Returns true if the account at `address` may change without being listed in a block. The result does not
/// depend on the account, which need not exist.
pub fn is_excluded_address(address: &Pubkey) -> bool {
    EXCLUDED_ADDRESSES.contains(address)
}

/// Returns true if accounts of this owner and this size in bytes may change without being listed in a block.
/// The owner itself changes only by a transaction, which lists the account.
pub fn is_excluded_owner(owner: &Pubkey, space: u64) -> bool {
    let is_alpenglow = *owner == SYSTEM_PROGRAM && space != 0 && space != NONCE_BYTES;
    is_alpenglow || EXCLUDED_OWNERS.contains(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Pubkey {
        Pubkey::parse(text).unwrap()
    }

    #[test]
    fn every_listed_address_is_excluded_once() {
        let all = RESERVED.iter().chain(&ALPENGLOW);
        assert!(all.clone().all(|text| is_excluded_address(&address(text))));
        assert_eq!(EXCLUDED_ADDRESSES.len(), all.count());
        assert!(!is_excluded_address(&address("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")));
    }

    #[test]
    fn owners_are_excluded_by_kind_and_size() {
        for owner in OWNERS {
            assert!(is_excluded_owner(&address(owner), 0), "{owner}");
        }
        let token = address("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA");
        for (owner, space, excluded) in [
            (SYSTEM_PROGRAM, 0, false),
            (SYSTEM_PROGRAM, 80, false),
            (SYSTEM_PROGRAM, 8, true),
            (SYSTEM_PROGRAM, 48, true),
            (token, 165, false),
        ] {
            assert_eq!(is_excluded_owner(&owner, space), excluded, "{owner} {space}");
        }
    }
}
