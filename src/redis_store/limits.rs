//! Limits and quotas that all gateways share.

use std::time::Duration;

use super::micros;

/// A gateway's request for calls of a limit.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest {
    /// The calls passed on credit. A negative number gives leased calls back.
    pub used: i64,
    /// The number of calls to lease.
    pub want: u32,
    /// The time after which a call no longer counts.
    pub cell: Duration,
    /// The most calls at once.
    pub burst: u32,
}

/// The store's answer to a [`LeaseRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// The calls leased to this gateway.
    pub calls: u32,
    /// The calls left for all gateways; negative after an overdraft.
    pub left: i64,
    /// The time until a call is left.
    pub wait: Duration,
}

/// A booking of units of a key. Repetitions count once.
#[derive(Debug, Clone, Copy)]
pub struct Booking {
    /// The numbers of the day and the month.
    pub windows: [u16; 2],
    /// The thousandths of units to book.
    pub units: u64,
    /// The totals of both windows that this gateway knows.
    pub known: [u64; 2],
    /// The id of the booking gateway.
    pub who: u64,
    /// The number of this gateway's booking for the key.
    pub number: u64,
}

/// The totals over all gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booked {
    /// The numbers of the day and the month.
    pub windows: [u16; 2],
    /// The thousandths of units in each window.
    pub units: [u64; 2],
}

/// Returns a number that identifies this process among all gateways.
pub fn identity() -> u64 {
    // Without a random source, time and process id distinguish two gateways.
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        micros(since).rotate_left(20) ^ u64::from(std::process::id())
    })
}
