//! The ideal cache: the yardstick for following the chain.
//!
//! This cache fetches an account for the first read, and again only for the first read after a block wrote the
//! account. The cache knows every write at once. An account that was fetched at one commitment also serves a read
//! at another commitment, if the account's last write is the same at both. The parsed form (`jsonParsed`) and the
//! raw data of an account are cached separately.

use std::collections::HashMap;

use slotfront_rpc::methods::{Commitment, Pubkey, Slot};

/// The form of a cached account: true for the parsed form (`jsonParsed`), false for raw data.
type Parsed = bool;

/// The ideal cache. For each account, form and commitment, it holds the slot of the block that wrote the cached state.
#[derive(Default)]
pub struct IdealCache {
    held: HashMap<(Pubkey, Parsed), HashMap<Commitment, Slot>>,
}

impl IdealCache {
    /// Reads one or several accounts at a commitment. Returns true if the cache must fetch for this read.
    ///
    /// Beside each account is the slot of the last block that wrote the account, as seen at this commitment.
    pub fn read(
        &mut self,
        accounts: impl IntoIterator<Item = (Pubkey, Slot)>,
        parsed: Parsed,
        commitment: Commitment,
    ) -> bool {
        let mut fetches = false;
        for (account, written) in accounts {
            let held = self.held.entry((account, parsed)).or_default();
            fetches |= !held.values().any(|shown| *shown == written);
            held.insert(commitment, written);
        }
        fetches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Commitment::{Confirmed, Finalized};

    #[test]
    fn each_write_costs_one_fetch_at_each_commitment() {
        let mut cache = IdealCache::default();
        let (one, two) = (Pubkey([1; 32]), Pubkey([2; 32]));
        let mut read = |accounts: &[(Pubkey, Slot)], parsed, commitment| {
            cache.read(accounts.to_vec(), parsed, commitment)
        };
        for (accounts, parsed, commitment, expected) in [
            (&[(one, 5)][..], false, Confirmed, true),
            (&[(one, 5)], false, Confirmed, false),
            (&[(one, 5)], true, Confirmed, true),
            // The finalized state is the state that was cached at confirmed.
            (&[(one, 5)], false, Finalized, false),
            (&[(one, 9)], false, Confirmed, true),
            (&[(one, 5)], false, Finalized, false),
            (&[(one, 9)], false, Finalized, false),
            (&[(one, 9), (two, 5)], false, Confirmed, true),
            (&[(one, 9), (two, 5)], false, Confirmed, false),
            (&[(one, 12), (two, 5)], false, Finalized, true),
        ] {
            assert_eq!(read(accounts, parsed, commitment), expected, "{accounts:?} {parsed} {commitment:?}");
        }
    }
}
