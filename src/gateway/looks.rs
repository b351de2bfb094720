//! The price of looks at watched accounts.

/// The accounts and bytes of a key that are looked at for nothing in each slot, the looks that cost a unit together, and the
/// bytes that cost another one.
const FREE_ACCOUNTS: usize = 20;
pub(super) const LOOKS_OF_A_UNIT: f64 = 100.0;
const PIECE: usize = 64 << 10;

/// The looks of one slot that are counted so far. Each slot is a round of looks.
#[derive(Debug, Default)]
pub(super) struct Looks {
    round: u64,
    accounts: usize,
    bytes: usize,
}

impl Looks {
    /// Counts a look, and returns its price in units: a part of one, and one for each further piece that is begun.
    pub(super) fn units_of(&mut self, round: u64, bytes: usize) -> f64 {
        if round != self.round {
            *self = Self { round, ..Self::default() };
        }
        let before = self.bytes.div_ceil(PIECE).max(1);
        (self.accounts, self.bytes) = (self.accounts + 1, self.bytes.saturating_add(bytes));
        let pieces = self.bytes.div_ceil(PIECE).max(1) - before;
        let look = if self.accounts > FREE_ACCOUNTS { 1.0 / LOOKS_OF_A_UNIT } else { 0.0 };
        look + f64::from(u32::try_from(pieces).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_cost_by_number_and_length_beyond_what_is_free() {
        let day = |accounts: usize, bytes: usize| -> f64 {
            let mut looks = Looks::default();
            (1..=10)
                .flat_map(|slot| (0..accounts).map(move |_| slot))
                .map(|slot| looks.units_of(slot, bytes))
                .sum()
        };
        for (accounts, bytes, expected) in
            [(20, 200, 0.0), (120, 200, 10.0), (1, 10 << 20, 10.0 * 159.0), (2, 64 << 10, 10.0)]
        {
            let units = day(accounts, bytes);
            assert!((units - expected).abs() < 1e-6, "{accounts} accounts of {bytes} bytes: {units}");
        }
    }
}
