//! `[cache]`: what is kept, for how long, and how far behind it may be.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::reader::Reader;
use crate::config::value::{OrForever, OrOff, Size};
use crate::config::{Cache, StaleIfError, Ttl, defaults};
use crate::methods::PerCommitment;

/// Times to live: past ten years nothing is meant.
const TTL: RangeInclusive<OrOff> = OrOff(Duration::ZERO)..=OrOff(Duration::from_hours(87600));

/// Reads the section.
pub(super) fn read(r: &Reader<'_>) -> Cache {
    let lag = r.table("max_lag_slots");
    let lags = defaults::MAX_LAG_SLOTS;
    let revalidate = r.table("stale_while_revalidate");
    let factors = defaults::STALE_WHILE_REVALIDATE;
    Cache {
        capacity: r.within("capacity", Size(defaults::CAPACITY), Size(1 << 20)..=Size(1 << 40)).0,
        max_entry: r.within("max_entry", Size(defaults::MAX_ENTRY), Size(1 << 10)..=Size(1 << 40)).0,
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

fn stale_if_error(r: &Reader<'_>) -> StaleIfError {
    StaleIfError {
        confirmed: lifetime(r, "confirmed", defaults::STALE_IF_ERROR_CONFIRMED),
        finalized: lifetime(r, "finalized", defaults::STALE_IF_ERROR_FINALIZED),
        block: r.get("block", OrForever(defaults::STALE_IF_ERROR_BLOCK)).0,
    }
}

fn ttl(r: &Reader<'_>) -> Ttl {
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

/// Reads a time to live; `"off"` is none.
fn lifetime(r: &Reader<'_>, key: &str, default: Duration) -> Duration {
    r.within(key, OrOff(default), TTL).0
}
