//! Reproducible random values. Each stream of values depends only on a seed, a label and a number, and not on the
//! use of other streams.
//!
//! The generator is splitmix64, which is not for cryptography: nothing that the keys of the simulation protect has a
//! value. Keys and hashes only have to look right and must not collide.

/// A stream of random values, determined by a seed, a label and a number.
pub(crate) struct Draw {
    state: u64,
}

impl Draw {
    /// Returns the stream with the name `label` and the number `n`, for `seed`.
    pub(crate) fn new(seed: u64, label: &str, n: u64) -> Self {
        let mut draw = Self { state: seed };
        for byte in label.bytes() {
            draw.state = draw.next() ^ u64::from(byte);
        }
        draw.state = draw.next() ^ n;
        draw
    }

    /// Returns the next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a value in `0..n`, or 0 if `n` is 0. Some values are slightly more likely, which does not matter here.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Returns a value in `low..=high`.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with a probability of `per_mille` in a thousand.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns one of `items`, which must not be empty.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let at = self.below(items.len() as u64);
        &items[usize::try_from(at).unwrap_or(0)]
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn stream_depends_on_seed_label_and_number() {
        let first = |seed, label, n| Draw::new(seed, label, n).next();
        assert_eq!(first(1, "wallet", 2), first(1, "wallet", 2));
        let all = [
            first(1, "wallet", 2),
            first(2, "wallet", 2),
            first(1, "mint", 2),
            first(1, "wallet", 3),
            first(1, "walle", 2),
        ];
        let distinct: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
