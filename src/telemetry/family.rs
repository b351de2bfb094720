//! One metric with its handles, each found by the positions of its labels.
//!
//! Looking a series up by label text costs a hash and a lock. Here a series is looked up once, on its first use, and
//! from then on its handle is an array element. A series that was never used is not exported, except that small
//! families of counters start at zero: `rate()` would miss the step from "absent" to 1.

use std::marker::PhantomData;
use std::sync::OnceLock;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec};
use prometheus::{Histogram, IntGauge, IntGaugeVec, Opts, Registry};

use super::labels::Label;

/// Counters start at zero in families of at most this many series; beyond, zeros would be most of the text.
const START_AT_ZERO: usize = 40;

/// The labels of a metric, in order: none, one, or a tuple of two or three.
pub trait Labels: Copy {
    /// How many combinations there are.
    const COMBINATIONS: usize;
    /// This combination's position, below [`Labels::COMBINATIONS`].
    fn place(self) -> usize;
    /// The labels' names.
    fn names() -> Vec<&'static str>;
    /// The labels' texts at that position.
    fn texts(place: usize) -> Vec<&'static str>;
}

impl Labels for () {
    const COMBINATIONS: usize = 1;

    fn place(self) -> usize {
        0
    }

    fn names() -> Vec<&'static str> {
        Vec::new()
    }

    fn texts(_: usize) -> Vec<&'static str> {
        Vec::new()
    }
}

impl<A: Label> Labels for A {
    const COMBINATIONS: usize = A::COUNT;

    fn place(self) -> usize {
        self.position()
    }

    fn names() -> Vec<&'static str> {
        vec![A::NAME]
    }

    fn texts(place: usize) -> Vec<&'static str> {
        vec![A::text(place)]
    }
}

impl<A: Label, B: Label> Labels for (A, B) {
    const COMBINATIONS: usize = A::COUNT * B::COUNT;

    fn place(self) -> usize {
        self.0.position() * B::COUNT + self.1.position()
    }

    fn names() -> Vec<&'static str> {
        vec![A::NAME, B::NAME]
    }

    fn texts(place: usize) -> Vec<&'static str> {
        vec![A::text(place / B::COUNT), B::text(place % B::COUNT)]
    }
}

impl<A: Label, B: Label, C: Label> Labels for (A, B, C) {
    const COMBINATIONS: usize = A::COUNT * B::COUNT * C::COUNT;

    fn place(self) -> usize {
        (self.0, self.1).place() * C::COUNT + self.2.position()
    }

    fn names() -> Vec<&'static str> {
        vec![A::NAME, B::NAME, C::NAME]
    }

    fn texts(place: usize) -> Vec<&'static str> {
        let mut texts = <(A, B)>::texts(place / C::COUNT);
        texts.push(C::text(place % C::COUNT));
        texts
    }
}

/// A kind of series: what it is registered as, and whether it may start at zero.
pub trait Series: Sized {
    /// All series of one name.
    type Vec: Collector + Clone + 'static;
    /// Whether an unused series tells the truth at zero: true of counters only.
    const ZERO_IS_TRUE: bool;
    /// All series of `name`; `buckets` are for histograms.
    fn family(opts: Opts, labels: &[&str], buckets: &[f64]) -> prometheus::Result<Self::Vec>;
    /// The series with these label texts.
    fn series(family: &Self::Vec, texts: &[&str]) -> Self;
}

macro_rules! series {
    ($($series:ty, $vec:ident, $zero:literal, $opts:ident $buckets:ident => $built:expr;)+) => { $(
        impl Series for $series {
            type Vec = $vec;
            const ZERO_IS_TRUE: bool = $zero;

            fn family($opts: Opts, labels: &[&str], $buckets: &[f64]) -> prometheus::Result<$vec> {
                $vec::new($built, labels)
            }

            fn series(family: &$vec, texts: &[&str]) -> Self {
                family.with_label_values(texts)
            }
        }
    )+ };
}

series! {
    IntCounter, IntCounterVec, true, opts _buckets => opts;
    IntGauge, IntGaugeVec, false, opts _buckets => opts;
    Gauge, GaugeVec, false, opts _buckets => opts;
    Histogram, HistogramVec, false, opts buckets => HistogramOpts { common_opts: opts, buckets: buckets.to_vec() };
}

/// One metric and its handles.
pub struct Family<S: Series, L> {
    all: S::Vec,
    handles: Box<[OnceLock<S>]>,
    labels: PhantomData<fn(L)>,
}

/// Whole numbers that only grow.
pub type Counters<L> = Family<IntCounter, L>;
/// Whole numbers that come and go; not exported before they are first set.
pub type Gauges<L> = Family<IntGauge, L>;
/// Numbers that come and go; not exported before they are first set.
pub type FloatGauges<L> = Family<Gauge, L>;
/// Distributions.
pub type Histograms<L> = Family<Histogram, L>;

impl<S: Series, L: Labels> Family<S, L> {
    /// The series at `labels`: an array element, but for its first use.
    pub fn at(&self, labels: L) -> &S {
        self.handle(labels.place())
    }

    /// The series that are in use, each with its position among `L`'s combinations.
    pub fn used(&self) -> impl Iterator<Item = (usize, &S)> {
        self.handles.iter().enumerate().filter_map(|(position, handle)| Some((position, handle.get()?)))
    }

    fn handle(&self, position: usize) -> &S {
        self.handles[position].get_or_init(|| S::series(&self.all, &L::texts(position)))
    }
}

/// A metric that can be made and registered under a name.
pub(super) trait Register: Sized {
    /// Makes it, and registers it.
    fn register(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Self>;
}

impl<S: Series, L: Labels> Register for Family<S, L> {
    fn register(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Self> {
        let all = S::family(Opts::new(name, help), &L::names(), buckets)?;
        registry.register(Box::new(all.clone()))?;
        let handles = (0..L::COMBINATIONS).map(|_| OnceLock::new()).collect();
        let made = Self { all, handles, labels: PhantomData };
        if S::ZERO_IS_TRUE && L::COMBINATIONS <= START_AT_ZERO {
            (0..L::COMBINATIONS).for_each(|position| {
                made.handle(position);
            });
        }
        Ok(made)
    }
}

impl Register for IntGauge {
    fn register(registry: &Registry, name: &str, help: &str, _: &[f64]) -> prometheus::Result<Self> {
        let gauge = Self::new(name, help)?;
        registry.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{Commitment, Method};
    use crate::telemetry::Outcome;

    type Three = (Option<Method>, Option<Commitment>, Outcome);

    #[test]
    fn every_position_has_its_own_texts() {
        let all: std::collections::BTreeSet<_> = (0..Three::COMBINATIONS).map(Three::texts).collect();
        assert_eq!(all.len(), Three::COMBINATIONS);
        let labels = (Some(Method::GetFeeForMessage), None::<Commitment>, Outcome::Stale);
        assert_eq!(Three::texts(labels.place()), ["getFeeForMessage", "none", "stale"]);
    }

    #[test]
    fn large_families_show_what_was_used_and_small_counters_start_at_zero() {
        let registry = Registry::new();
        let large = Counters::<Three>::register(&registry, "large", "help", &[]).unwrap();
        let small = Counters::<Outcome>::register(&registry, "small", "help", &[]).unwrap();
        let gauge = Gauges::<()>::register(&registry, "gauge", "help", &[]).unwrap();
        assert_eq!((large.used().count(), small.used().count(), gauge.used().count()), (0, 10, 0));
        large.at((None, None, Outcome::Hit)).inc();
        gauge.at(()).set(3);
        assert_eq!((large.used().count(), gauge.used().count()), (1, 1));
    }
}
