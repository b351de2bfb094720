//! Limits and quotas that count for all gateways together.

use std::time::Duration;

use super::micros;

/// The request of a gateway for a part of a limit.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest {
    /// Calls that it let through on credit; negative gives back what was leased and not used.
    pub used: i64,
    /// Calls that it would lease.
    pub want: u32,
    /// The time after which a call is forgotten.
    pub cell: Duration,
    /// Calls at once.
    pub burst: u32,
}

/// The store's answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// Calls that are this gateway's now.
    pub calls: u32,
    /// Calls that are left for all; negative where more was used than there was.
    pub left: i64,
    /// How long until one is left.
    pub wait: Duration,
}

/// Units of a key, to be booked once.
#[derive(Debug, Clone, Copy)]
pub struct Booking {
    /// The day and the month, numbered.
    pub windows: [u16; 2],
    /// Thousandths of units.
    pub units: u64,
    /// The sums of both windows that were known before.
    pub known: [u64; 2],
    /// The gateway that books.
    pub who: u64,
    /// The number of its booking for this key.
    pub number: u64,
}

/// The sum that all gateways have booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booked {
    /// The day and the month, numbered.
    pub windows: [u16; 2],
    /// Thousandths of units in each.
    pub units: [u64; 2],
}

/// Returns a number that no other gateway has.
pub fn identity() -> u64 {
    // Without the system's randomness, the time and the process tell two gateways apart.
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        micros(since).rotate_left(20) ^ u64::from(std::process::id())
    })
}
