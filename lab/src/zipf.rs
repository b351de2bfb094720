//! Zipf's law.

use crate::dice::Dice;

/// A distribution in which the r-th most popular rank has a probability in proportion to 1/r.
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// Returns the distribution over `ranks` ranks. `ranks` must be at least 1.
    pub fn new(ranks: usize) -> Self {
        let sums = (1..=ranks).scan(0.0, |sum, rank| {
            *sum += weight(rank);
            Some(*sum)
        });
        Self(sums.collect())
    }

    /// Returns a random rank. Rank 0 is the most popular.
    pub fn draw(&self, dice: &mut Dice) -> usize {
        let total = self.0.last().copied().unwrap_or(0.0);
        let drawn = dice.fraction() * total;
        self.0.partition_point(|sum| *sum <= drawn).min(self.0.len() - 1)
    }

    /// Assigns each rank to one of several classes, so that the probability of each class is close to its share in
    /// `shares`.
    ///
    /// Each rank, from the most popular on, goes to the class that is furthest below its share.
    pub fn split(&self, shares: &[f64]) -> Vec<usize> {
        let total_share: f64 = shares.iter().sum();
        let (mut given, mut total) = (vec![0.0; shares.len()], 0.0);
        let class = |rank| {
            total += weight(rank);
            let lack = |class: usize| shares[class] / total_share * total - given[class];
            let class = (0..shares.len()).max_by(|a, b| lack(*a).total_cmp(&lack(*b))).unwrap_or(0);
            given[class] += weight(rank);
            class
        };
        (1..=self.0.len()).map(class).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "ranks are small")]
fn weight(rank: usize) -> f64 {
    1.0 / rank as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_get_their_shares_of_the_reads() {
        let zipf = Zipf::new(2_000);
        let classes = zipf.split(&[40.0, 30.0, 30.0]);
        let mut reads = [0; 3];
        for number in 0..100_000 {
            reads[classes[zipf.draw(&mut Dice::new(1, number))]] += 1;
        }
        for (read, share) in reads.into_iter().zip([40_000, 30_000, 30_000]) {
            assert!(i32::abs(read - share) < 1_000, "{reads:?}");
        }
    }
}
