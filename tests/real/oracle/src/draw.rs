//! Random numbers from a seed, and random changes of bytes. Each case has a generator of its own, so that the seed and
//! the number of a case are enough to make it again.

/// A SplitMix64 generator.
pub struct Draw(u64);

impl Draw {
    pub fn of_case(seed: u64, case: u64) -> Self {
        let mut draw = Self(seed ^ case.wrapping_mul(0xd1b5_4a32_d192_ed03));
        draw.number();
        draw
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// Returns true once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn byte(&mut self) -> u8 {
        self.number() as u8
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Changes `bytes` once: flips, replaces, cuts, removes, inserts or repeats.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        let end = (at + self.below(9)).min(bytes.len());
        match self.below(7) {
            0 | 1 if at < bytes.len() => bytes[at] = *self.pick(&[0, 1, 2, 3, 0x7f, 0x80, 0x81, 0xfe, 0xff]),
            2 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..end)),
            5 => {
                let length = self.below(9);
                let inserted = self.bytes(length);
                drop(bytes.splice(at..at, inserted));
            }
            _ => {
                let again = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, again));
            }
        }
    }
}

/// Returns the elements in another order.
pub fn shuffled<T>(draw: &mut Draw, mut elements: Vec<T>) -> Vec<T> {
    for last in (1..elements.len()).rev() {
        elements.swap(last, draw.below(last + 1));
    }
    elements
}
