//! Limits and quotas that count for all gateways together. To be waited for by no request.

use std::time::Duration;

use tokio::time::Instant;

use super::{Failed, Store, micros};
use crate::telemetry::{SharedOperation, SharedResult};

/// What a gateway asks of a limit.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Calls that it let through on credit; negative gives back what was leased and not used.
    pub used: i64,
    /// Calls that it would lease.
    pub want: u32,
    /// The time that a call takes to be forgotten.
    pub cell: Duration,
    /// Calls at once.
    pub burst: u32,
}

/// What the store says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// Calls that are this gateway's now.
    pub calls: u32,
    /// Calls that are left for all; negative where more was used than there was.
    pub left: i64,
    /// Until one is.
    pub wait: Duration,
}

/// Units of a key, to be booked once.
#[derive(Debug, Clone, Copy)]
pub struct Booking {
    /// The day and the month, numbered.
    pub windows: [u16; 2],
    /// Thousandths of units.
    pub units: u64,
    /// What was known of both windows before.
    pub known: [u64; 2],
    /// Who books.
    pub who: u64,
    /// Its how manieth booking for this key.
    pub number: u64,
}

/// What all together have booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booked {
    /// The day and the month, numbered.
    pub windows: [u16; 2],
    /// Thousandths of units in each.
    pub units: [u64; 2],
}

impl Store {
    /// Books what was used of the limit `of`, and leases calls ahead.
    ///
    /// # Errors
    /// Whatever came to nothing; it may have been booked all the same.
    pub async fn lease(&self, of: &str, ask: Ask) -> Result<Leased, Failed> {
        let operation = SharedOperation::Limit;
        let key = format!("{}:limit:{{{of}}}", self.namespace);
        let mut call = self.scripts.lease.key(&key);
        #[expect(clippy::cast_precision_loss, reason = "a period of an hour at most")]
        let micros = ask.cell.as_nanos() as f64 / 1000.0;
        call.arg(ask.used).arg(ask.want).arg(micros).arg(ask.burst);
        let asked_at = Instant::now();
        let (calls, left, wait): (u32, i64, u64) = self.write(operation, &key, self.timeout, &call).await?;
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(Leased { calls, left, wait: Duration::from_micros(wait) })
    }

    /// Books units of the key `of`.
    ///
    /// # Errors
    /// Whatever came to nothing; the same booking may be tried again.
    pub async fn book(&self, of: &str, booking: &Booking) -> Result<Booked, Failed> {
        let operation = SharedOperation::Quota;
        let key = format!("{}:units:{{{of}}}", self.namespace);
        let mut call = self.scripts.book.key(&key);
        let Booking { windows, units, known, who, number } = booking;
        call.arg(windows).arg(units).arg(known).arg(format!("{who:x}")).arg(number);
        let asked_at = Instant::now();
        let (day, day_units, month, month_units): (u16, u64, u16, u64) =
            self.write(operation, &key, self.timeout, &call).await?;
        self.count(operation, SharedResult::Ok, asked_at.elapsed());
        Ok(Booked { windows: [day, month], units: [day_units, month_units] })
    }
}

/// A number that no other gateway has.
pub fn identity() -> u64 {
    // Without the system's randomness there are still the time and the process to tell two apart.
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        micros(since).rotate_left(20) ^ u64::from(std::process::id())
    })
}
