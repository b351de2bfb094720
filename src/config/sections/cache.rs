//! `[cache]`: capacity, lifetimes and lag.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::reader::TableReader;
use crate::config::value::{ByteSize, OrForever, OrOff};
use crate::config::{CacheSettings, StaleIfError, Ttl, defaults};
use crate::methods::PerCommitment;

/// The bounds of lifetimes. More than ten years is not plausible.
const TTL: RangeInclusive<OrOff> = OrOff(Duration::ZERO)..=OrOff(Duration::from_hours(87600));

/// Reads the section `[cache]`.
pub(super) fn read(r: &TableReader<'_>) -> CacheSettings {
    let lag = r.table("max_lag_slots");
    let lags = defaults::MAX_LAG_SLOTS;
    let revalidate = r.table("stale_while_revalidate");
    let factors = defaults::STALE_WHILE_REVALIDATE;
    CacheSettings {
        capacity: r.within("capacity", ByteSize(defaults::CAPACITY), ByteSize(1 << 20)..=ByteSize(1 << 40)).0,
        max_entry: r
            .within("max_entry", ByteSize(defaults::MAX_ENTRY), ByteSize(1 << 10)..=ByteSize(1 << 40))
            .0,
        assemble: r.get("assemble", defaults::ASSEMBLE),
        max_lag_slots: PerCommitment {
            processed: lag.within("processed", lags.processed, 0..=432_000),
            confirmed: lag.within("confirmed", lags.confirmed, 0..=432_000),
            finalized: lag.within("finalized", lags.finalized, 0..=432_000),
        },
        stale_while_revalidate: PerCommitment {
            processed: factors.processed,
            confirmed: revalidate.within("confirmed", factors.confirmed, 0.0..=10.0),
            finalized: revalidate.within("finalized", factors.finalized, 0.0..=10.0),
        },
        stale_if_error: stale_if_error(&r.table("stale_if_error")),
        ttl: ttl(&r.table("ttl")),
    }
}

fn stale_if_error(r: &TableReader<'_>) -> StaleIfError {
    StaleIfError {
        confirmed: lifetime(r, "confirmed", defaults::STALE_IF_ERROR_CONFIRMED),
        finalized: lifetime(r, "finalized", defaults::STALE_IF_ERROR_FINALIZED),
        block: r.get("block", OrForever(defaults::STALE_IF_ERROR_BLOCK)).0,
    }
}

fn ttl(r: &TableReader<'_>) -> Ttl {
    let per_commitment = |key: &str, default: PerCommitment<Duration>| {
        let r = r.table(key);
        PerCommitment {
            processed: lifetime(&r, "processed", default.processed),
            confirmed: lifetime(&r, "confirmed", default.confirmed),
            finalized: lifetime(&r, "finalized", default.finalized),
        }
    };
    let block = r.table("block");
    let no_block = r.table("no_block");
    Ttl {
        account: per_commitment("account", defaults::TTL_STATE),
        fee: per_commitment("fee", defaults::TTL_STATE),
        vote_accounts: per_commitment("vote_accounts", defaults::TTL_VOTE_ACCOUNTS),
        block_confirmed: lifetime(&block, "confirmed", defaults::TTL_BLOCK_CONFIRMED),
        block_finalized: lifetime(&block, "finalized", defaults::TTL_BLOCK_FINALIZED),
        no_block_not_yet: lifetime(&no_block, "not_yet", defaults::TTL_NO_BLOCK_NOT_YET),
        no_block_unconfirmed: lifetime(&no_block, "unconfirmed", defaults::TTL_NO_BLOCK_UNCONFIRMED),
        no_block_skipped: lifetime(&no_block, "skipped", defaults::TTL_NO_BLOCK_SKIPPED),
        performance_samples: lifetime(r, "performance_samples", defaults::TTL_PERFORMANCE_SAMPLES),
        cluster_nodes: lifetime(r, "cluster_nodes", defaults::TTL_CLUSTER_NODES),
    }
}

/// Reads the lifetime `key`. `"off"` is zero.
fn lifetime(r: &TableReader<'_>, key: &str, default: Duration) -> Duration {
    r.within(key, OrOff(default), TTL).0
}
