//! `[cache]`: capacity, lifetimes and lag.

use std::time::Duration;

use crate::config::setting::{Field, section};
use crate::methods::PerCommitment;

section! {
    /// Capacity, lifetimes and lag of cached answers.
    pub struct CacheSettings {
        /// Memory for cached answers. The default has room for about 250,000 accounts, or 95 full mainnet blocks. The
        /// process needs 1.2 times as much and 60 MB, and what `pool.max_buffered`,
        /// `server.max_outgoing` and `server.max_incoming` allow.
        capacity: u64 = restart.bytes("512MiB", "1MiB"..="1024GiB"),
        /// Maximum size of an entry. A longer answer is not cached.
        // A mainnet block of 2025 has 5.2 MB in base64 and 9.8 MB in jsonParsed. One entry takes at most 1/32 of the cache.
        max_entry: u64 = restart.bytes("16MiB", "1KiB"..="1024GiB"),
        /// Assembly of account lists from cached accounts: "same-slot" if all are of one slot, "off" never.
        // A list assembled from entries of one slot equals the list that a node gives at this slot.
        assemble: Assemble = restart.get("same-slot"),
        /// Maximum lag of a cached answer behind the newest known slot at its commitment, in slots.
        // About as long as the TTLs of accounts, at 400 ms a slot. An answer expires by its lag or by its TTL,
        // whichever comes first.
        max_lag_slots: PerCommitment<u64> = restart.each([1, 2, 12], |f, default| f.within(default, 0..=432_000)),
        /// After its TTL an answer is served for this share of the TTL, while a refresh runs. Never at processed.
        stale_while_revalidate: PerCommitment<f64> = restart.with(stale_while_revalidate),
        stale_if_error: StaleIfError = each.section(),
        ttl: Ttl = each.section(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assemble {
    SameSlot,
    Off,
}

section! {
    /// Maximum age of an answer while no node answers. Such an answer is marked. "off" serves none; "forever" is for
    /// final blocks. At processed, no stale answer is served.
    #[derive(Copy, Eq)]
    pub struct StaleIfError {
        // About the time that a failover to another node takes.
        confirmed: Duration = restart.lifetime("10s"),
        // The time until people notice that a node restarts.
        finalized: Duration = restart.lifetime("60s"),
        // A finalized block never changes, so it may be served at any age. `None` is unlimited.
        block: Option<Duration> = restart.lifetime_or_forever("forever"),
    }
}

section! {
    /// The maximum time for which an answer is served, in addition to the maximum lag. "off" does not cache it.
    pub struct Ttl {
        /// getAccountInfo, getMultipleAccounts, getBalance, getTokenAccountBalance, getTokenSupply,
        /// getTokenAccountsByOwner. The time at processed is also that of answers which may be others in each slot, such as
        /// getTransactionCount.
        // At 400 ms a slot, about one slot, two slots and 12 slots. A finalized state is some 32 slots old anyway.
        account: PerCommitment<Duration> = restart.lifetimes(["400ms", "800ms", "5s"]),
        /// getFeeForMessage.
        fee: PerCommitment<Duration> = restart.lifetimes(["400ms", "800ms", "5s"]),
        /// getVoteAccounts.
        // The answer is a megabyte, and each slot changes it only by one vote of each validator. The answer is
        // therefore served at least twice as long as an account.
        vote_accounts: PerCommitment<Duration> = restart.lifetimes(["1s", "2s", "10s"]),
        /// getBlock, getTransaction and full pages of getSignaturesForAddress at confirmed.
        // A confirmed block can still be dropped in theory.
        block_confirmed["block.confirmed"]: Duration = restart.lifetime("2s"),
        /// getBlock at finalized, other history that is final, and what a cluster keeps for an epoch or for ever.
        // A finalized block never changes. A day limits the effect of a faulty node.
        block_finalized["block.finalized"]: Duration = restart.lifetime("24h"),
        /// A block that does not exist yet (-32004).
        // Half a slot, because the block probably arrives soon.
        no_block_not_yet["no_block.not_yet"]: Duration = restart.lifetime("200ms"),
        /// A slot that was skipped according to nodes (-32007, -32009), which may only have lost its block.
        // A node that has the block may be added or come back at any time.
        no_block_unconfirmed["no_block.unconfirmed"]: Duration = restart.lifetime("5s"),
        /// A slot that was skipped according to a stored later block.
        // A proven skip never changes. A day limits the effect of a faulty node.
        no_block_skipped["no_block.skipped"]: Duration = restart.lifetime("24h"),
        /// getRecentPerformanceSamples.
        // A quarter of the minute that passes between two samples of a node.
        performance_samples: Duration = restart.lifetime("15s"),
        /// getProgramAccounts, getTokenLargestAccounts, getLargestAccounts, getSupply.
        // A node walks over many accounts for each of them, and whoever asks for all of them hardly minds their age.
        scan: Duration = restart.lifetime("30s"),
        /// getClusterNodes.
        // Gossip membership changes within hours.
        cluster_nodes: Duration = restart.lifetime("60s"),
    }
}

/// Reads the shares at confirmed and finalized. Callers choose processed for freshness.
fn stale_while_revalidate(f: &Field<'_, '_>) -> PerCommitment<f64> {
    let table = f.table();
    let share = |key| table.field(key, "").within(0.5, 0.0..=10.0);
    PerCommitment { processed: 0.0, confirmed: share("confirmed"), finalized: share("finalized") }
}
