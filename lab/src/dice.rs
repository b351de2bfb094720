//! Randomness that a seed and a number decide: splitmix64, which is no cryptography.

/// A stream of values.
pub struct Dice(u64);

impl Dice {
    /// The stream number `number` of `seed`.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut dice = Self(seed);
        dice.0 = dice.bits() ^ number;
        dice
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value in `0..n`, for `n` from 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// A value in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A part of one, in `0.0..1.0`.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what such a number holds")]
    pub fn part(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
