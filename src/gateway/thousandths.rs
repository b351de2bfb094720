//! Units in thousandths, because a hit may cost a fraction of a unit.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub(crate) struct Thousandths(pub(crate) u64);

impl Thousandths {
    pub(crate) fn add(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl From<f64> for Thousandths {
    fn from(units: f64) -> Self {
        Self(thousandths(units))
    }
}

impl From<Thousandths> for f64 {
    fn from(Thousandths(number): Thousandths) -> Self {
        units(number)
    }
}

impl Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is meant"
)]
pub(super) fn thousandths(units: f64) -> u64 {
    (units * 1000.0).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "a million units a second take three hundred years to 2^53")]
pub(super) fn units(thousandths: u64) -> f64 {
    thousandths as f64 / 1000.0
}
