//! Metrics with labels. The series of each combination of label values is an array element.
//!
//! A lookup by label text would cost a hash and a lock. Here only the first use of a series looks the series up by
//! text. Unused series are not exported. Small families of counters are the exception: they start at zero, because
//! `rate()` misses the step from absent to 1.

use std::marker::PhantomData;
use std::sync::OnceLock;

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec};
use prometheus::{Histogram, IntGauge, IntGaugeVec, Opts, Registry};

use super::labels::Label;

/// The maximum number of series of a counter metric whose series all start at zero. Larger metrics would fill
/// `/metrics` with zeros.
const START_AT_ZERO: usize = 40;

/// The label values of one series: `()`, one [`Label`], or a tuple of two or three.
pub trait Labels: Copy {
    const COMBINATIONS: usize;
    /// Returns the position of this combination, below [`Labels::COMBINATIONS`].
    fn place(self) -> usize;
    fn names() -> Vec<&'static str>;
    /// Returns the label texts of the combination at `place`.
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

/// A kind of series, such as a counter.
pub trait Series: Sized {
    /// The collector that holds all series of one metric.
    type Vec: Collector + Clone + 'static;
    /// True if an unused series may be exported as zero. That holds for counters only.
    const ZERO_IS_TRUE: bool;
    /// Creates the collector. `buckets` are the bucket bounds of a histogram; other types ignore them.
    fn family(opts: Opts, labels: &[&str], buckets: &[f64]) -> prometheus::Result<Self::Vec>;
    /// Returns the series with these label texts, and creates it if it is new.
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

pub struct Family<S: Series, L> {
    all: S::Vec,
    handles: Box<[OnceLock<S>]>,
    labels: PhantomData<fn(L)>,
}

/// Integer counters, one for each combination of values of the labels `L`.
pub(crate) type Counters<L> = Family<IntCounter, L>;
/// Integer gauges, one for each combination of values of the labels `L`. A gauge is not exported until it is first
/// used.
pub(crate) type Gauges<L> = Family<IntGauge, L>;
/// Floating-point gauges, one for each combination of values of the labels `L`. A gauge is not exported until it is
/// first used.
pub(crate) type FloatGauges<L> = Family<Gauge, L>;
/// Histograms, one for each combination of values of the labels `L`.
pub(crate) type Histograms<L> = Family<Histogram, L>;

impl<S: Series, L: Labels> Family<S, L> {
    /// Returns the series with these label values. Its first use creates it; later uses are an array access.
    pub fn at(&self, labels: L) -> &S {
        self.handle(labels.place())
    }

    /// Returns the series in use, each with its label texts.
    pub fn used(&self) -> impl Iterator<Item = (Vec<&'static str>, &S)> {
        self.handles
            .iter()
            .enumerate()
            .filter_map(|(at, handle)| handle.get().map(|series| (L::texts(at), series)))
    }

    fn handle(&self, position: usize) -> &S {
        self.handles[position].get_or_init(|| S::series(&self.all, &L::texts(position)))
    }
}

/// A metric that can be created and registered under a name.
pub(super) trait Register: Sized {
    /// Returns the names of the labels, for the page about the metrics.
    #[cfg(test)]
    fn labels() -> Vec<&'static str> {
        Vec::new()
    }

    /// Creates the metric and registers it. `buckets` are the bucket bounds of a histogram.
    ///
    /// # Errors
    /// The name is invalid, or already registered.
    fn register(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Self>;
}

impl<S: Series, L: Labels> Register for Family<S, L> {
    #[cfg(test)]
    fn labels() -> Vec<&'static str> {
        L::names()
    }

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
    use crate::methods::{AnyMethod, Commitment, Method};
    use crate::telemetry::Outcome;

    type Three = (Option<AnyMethod>, Option<Commitment>, Outcome);

    #[test]
    fn positions_have_distinct_label_texts() {
        let methods = AnyMethod::built_in().map(Some).chain([None]);
        let place = |method| (method, None::<Commitment>, Outcome::Hit).place();
        let texts: Vec<_> = methods.map(|method| Three::texts(place(method))).collect();
        let distinct: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
        let labels = (Some(AnyMethod::Own(Method::GetFeeForMessage)), None::<Commitment>, Outcome::Stale);
        assert_eq!(Three::texts(labels.place()), ["getFeeForMessage", "none", "stale"]);
    }

    #[test]
    fn only_small_counter_families_start_at_zero() {
        let registry = Registry::new();
        let large = Counters::<Three>::register(&registry, "large", "help", &[]).unwrap();
        let small = Counters::<Outcome>::register(&registry, "small", "help", &[]).unwrap();
        let gauge = Gauges::<()>::register(&registry, "gauge", "help", &[]).unwrap();
        assert_eq!((large.used().count(), small.used().count(), gauge.used().count()), (0, 11, 0));
        large.at((None, None, Outcome::Hit)).inc();
        gauge.at(()).set(3);
        assert_eq!((large.used().count(), gauge.used().count()), (1, 1));
    }
}
