//! Reproducible random values: splitmix64, which is not for cryptography.

/// A stream of random values, determined by a seed and a number.
pub struct Dice(u64);

impl Dice {
    /// Returns stream number `number` of `seed`.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut dice = Self(seed);
        dice.0 = dice.bits() ^ number;
        dice
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a value in `0..n`. `n` must be at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// Returns a value in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns a fraction in `0.0..1.0`.
    #[expect(clippy::cast_precision_loss, reason = "an f64 holds 53 bits")]
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns one of `choices`, which must not be empty. The probability of a choice is in proportion to the
    /// number beside it.
    pub fn choose(&mut self, choices: &[(&'static str, u64)]) -> &'static str {
        let mut drawn = self.below(choices.iter().map(|(_, share)| share).sum());
        for (choice, share) in choices {
            if drawn < *share {
                return choice;
            }
            drawn -= share;
        }
        choices[0].0
    }
}
