//! The requests and answers for rate limits and quotas that all gateways share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::micros;

/// A gateway's request to lease (reserve) calls from a rate limit that all gateways share.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest {
    /// The number of calls that this gateway has allowed without a lease. A negative number gives leased calls back.
    pub used: i64,
    /// The maximum number of calls to lease.
    pub want: u32,
    /// The interval at which the limit allows one more call.
    pub cell: Duration,
    /// The maximum number of calls that the limit allows in one burst.
    pub burst: u32,
}

/// The store's answer to a [`LeaseRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// The number of calls that this gateway may now allow.
    pub calls: u32,
    /// The number of calls left for all gateways after this lease; negative after an overdraft.
    pub left: i64,
}

/// A request to add used units of an API key to the totals of all gateways. If the request is sent twice, it
/// counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booking {
    /// The UTC day and the UTC month, each counted from the beginning of 1970.
    pub windows: [u16; 2],
    /// The used units to book in the day and the month, in thousandths of a unit.
    pub units: [u64; 2],
    /// The totals of the day and the month as last known to this gateway, in thousandths of a unit.
    pub known: [u64; 2],
    /// The marks of these totals. The store passes over totals with another mark than its own, because an operator has set
    /// its own since.
    pub marks: [u32; 2],
    /// True if `known` and `marks` replace those in the store, because an operator sets them.
    pub sets: bool,
    /// The id of the gateway that sends the request.
    pub who: u64,
    /// The sequence number of the request among all bookings of this gateway.
    pub number: u64,
}

/// The store's answer to a [`Booking`]: the totals of its day and month over all gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub units: [u64; 2],
    /// Other marks than before say that an operator has set the totals.
    pub marks: [u32; 2],
}

/// The gateway that sends bookings, and the number of its last booking.
#[derive(Debug)]
pub struct Booker {
    /// The id of this process among all gateways.
    pub id: u64,
    last_number: AtomicU64,
}

impl Booker {
    #[expect(clippy::new_without_default, reason = "each instance has an id of its own")]
    pub fn new() -> Self {
        Self { id: identity(), last_number: AtomicU64::new(0) }
    }

    /// Returns the number of a new booking. It is higher than the numbers of all earlier bookings of all keys, also
    /// of keys whose usage was forgotten in the meantime.
    pub fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a mark for totals that an operator sets, which is very likely another one than any before, and not 0.
    pub fn new_mark(&self) -> u32 {
        u32::try_from(identity() >> 35).unwrap_or_default() + 1
    }
}

fn identity() -> u64 {
    // Without a random source, time and process id distinguish two gateways.
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        micros(since).rotate_left(20) ^ u64::from(std::process::id())
    })
}
