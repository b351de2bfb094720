//! Counters and histograms that many threads update without contention.
//!
//! A number that all cores write moves between the cores' caches, and each hit updates a dozen numbers. Here each
//! thread writes to a shard, and a scrape adds up the shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use prometheus::Opts;
use prometheus::core::{Collector, Desc, Describer};
use prometheus::proto::{self, LabelPair, MetricFamily, MetricType};

use super::family::{Family, Series};

/// The number of shards. With more threads than shards, threads share them.
const SHARDS: usize = 8;
/// The number of values in a [`ShardLine`], which fills two cache lines, because processors prefetch cache lines
/// in pairs.
const NUMBERS_PER_LINE: usize = 16;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// A block of numbers that shares no cache line with other data.
#[repr(align(128))]
#[derive(Default)]
struct ShardLine([AtomicU64; NUMBERS_PER_LINE]);

/// A list of numbers. Each shard holds a partial value of every number, and the number is the sum of these values.
#[derive(Clone)]
struct ShardedNumbers {
    lines: Arc<[ShardLine]>,
    /// The number of [`ShardLine`]s in each shard.
    each: usize,
}

impl ShardedNumbers {
    fn new(count: usize) -> Self {
        let each = count.div_ceil(NUMBERS_PER_LINE);
        Self { lines: (0..each * SHARDS).map(|_| ShardLine::default()).collect(), each }
    }

    /// Returns the partial value of number `i` in this thread's shard.
    fn mine(&self, i: usize) -> &AtomicU64 {
        &self.lines[MINE.with(|mine| *mine) * self.each + i / NUMBERS_PER_LINE].0[i % NUMBERS_PER_LINE]
    }

    /// Returns the partial values of number `i` in all shards.
    fn all(&self, i: usize) -> impl Iterator<Item = u64> {
        (0..SHARDS).map(move |shard| {
            self.lines[shard * self.each + i / NUMBERS_PER_LINE].0[i % NUMBERS_PER_LINE]
                .load(Ordering::Relaxed)
        })
    }

    /// Adds `more` to number `i`, which holds the bits of an f64.
    fn add_float(&self, i: usize, more: f64) {
        let add = |bits| Some((f64::from_bits(bits) + more).to_bits());
        // Infallible: the closure always returns a value.
        let _ = self.mine(i).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Returns the value of number `i`, which holds the bits of an f64.
    fn float(&self, i: usize) -> f64 {
        self.all(i).map(f64::from_bits).sum()
    }
}

/// An integer counter that many threads update without contention.
#[derive(Clone)]
pub struct ShardedCounter(ShardedNumbers);

impl ShardedCounter {
    pub fn inc(&self) {
        self.inc_by(1);
    }

    pub fn inc_by(&self, more: u64) {
        self.0.mine(0).fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the value, which is the sum over all shards.
    pub fn get(&self) -> u64 {
        self.0.all(0).sum()
    }
}

/// A floating-point counter that many threads update without contention.
#[derive(Clone)]
pub struct ShardedFloatCounter(ShardedNumbers);

impl ShardedFloatCounter {
    pub fn inc_by(&self, more: f64) {
        self.0.add_float(0, more);
    }

    /// Returns the value, which is the sum over all shards.
    pub fn get(&self) -> f64 {
        self.0.float(0)
    }
}

/// A histogram that many threads update without contention.
#[derive(Clone)]
pub struct ShardedHistogram {
    /// The count of each bucket, the count above all bounds, and the sum.
    numbers: ShardedNumbers,
    bounds: Arc<[f64]>,
}

impl ShardedHistogram {
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.numbers.mine(bucket).fetch_add(1, Ordering::Relaxed);
        self.numbers.add_float(self.bounds.len() + 1, value);
    }

    /// Returns the number of values in each bucket (not cumulative). The last counts the values above all bounds.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        (0..=self.bounds.len()).map(|bucket| self.numbers.all(bucket).sum())
    }

    pub fn sum(&self) -> f64 {
        self.numbers.float(self.bounds.len() + 1)
    }
}

/// Integer counters for metrics that every call updates.
pub(crate) type HotCounters<L> = Family<ShardedCounter, L>;
/// Floating-point counters for metrics that every call updates.
pub(crate) type HotFloatCounters<L> = Family<ShardedFloatCounter, L>;
/// Histograms for metrics that every call updates.
pub(crate) type HotHistograms<L> = Family<ShardedHistogram, L>;

/// A series that a scrape can export.
pub trait ExportSeries: Clone + Send + Sync + 'static {
    const TYPE: MetricType;
    /// Creates a series at zero. `buckets` are the bucket bounds of a histogram; other types ignore them.
    fn new(buckets: &Arc<[f64]>) -> Self;
    /// Writes the current value to `shown`.
    fn export(&self, shown: &mut proto::Metric);
}

/// The collector that holds all series of one metric.
#[derive(Clone)]
pub struct ShardedVec<S> {
    desc: Arc<Desc>,
    buckets: Arc<[f64]>,
    series: Arc<Mutex<Vec<LabelledSeries<S>>>>,
}

type LabelledSeries<S> = (Vec<LabelPair>, S);

impl<S: ExportSeries> Collector for ShardedVec<S> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(S::TYPE);
        let series = self.series.lock();
        let shown = series.iter().map(|(labels, series)| {
            let mut shown = proto::Metric::from_label(labels.clone());
            series.export(&mut shown);
            shown
        });
        family.set_metric(shown.collect());
        vec![family]
    }
}

impl ExportSeries for ShardedCounter {
    const TYPE: MetricType = MetricType::COUNTER;

    fn new(_: &Arc<[f64]>) -> Self {
        Self(ShardedNumbers::new(1))
    }

    #[expect(clippy::cast_precision_loss, reason = "exact to 2^53")]
    fn export(&self, shown: &mut proto::Metric) {
        let mut counter = proto::Counter::default();
        counter.set_value(self.get() as f64);
        shown.set_counter(counter);
    }
}

impl ExportSeries for ShardedFloatCounter {
    const TYPE: MetricType = MetricType::COUNTER;

    fn new(_: &Arc<[f64]>) -> Self {
        Self(ShardedNumbers::new(1))
    }

    fn export(&self, shown: &mut proto::Metric) {
        let mut counter = proto::Counter::default();
        counter.set_value(self.get());
        shown.set_counter(counter);
    }
}

impl ExportSeries for ShardedHistogram {
    const TYPE: MetricType = MetricType::HISTOGRAM;

    fn new(buckets: &Arc<[f64]>) -> Self {
        Self { numbers: ShardedNumbers::new(buckets.len() + 2), bounds: Arc::clone(buckets) }
    }

    fn export(&self, shown: &mut proto::Metric) {
        let counts: Vec<u64> = self.counts().collect();
        let mut below = 0;
        let buckets = self.bounds.iter().zip(&counts).map(|(bound, count)| {
            below += count;
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(below);
            bucket
        });
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(counts.iter().sum());
        histogram.set_sample_sum(self.sum());
        shown.set_histogram(histogram);
    }
}

macro_rules! series {
    ($($series:ty, $zero:literal;)+) => { $(
        impl Series for $series {
            type Vec = ShardedVec<Self>;
            const ZERO_IS_TRUE: bool = $zero;

            fn family(opts: Opts, labels: &[&str], buckets: &[f64]) -> prometheus::Result<Self::Vec> {
                let labels = labels.iter().map(ToString::to_string).collect();
                let desc = Arc::new(opts.variable_labels(labels).describe()?);
                Ok(ShardedVec { desc, buckets: buckets.into(), series: Arc::default() })
            }

            fn series(family: &Self::Vec, texts: &[&str]) -> Self {
                let made = <Self as ExportSeries>::new(&family.buckets);
                let mut labels: Vec<_> = family.desc.variable_labels.iter().zip(texts).map(|(name, text)| {
                    let mut label = LabelPair::default();
                    label.set_name(name.clone());
                    label.set_value((*text).to_owned());
                    label
                }).collect();
                // The prometheus crate exports labels in this order.
                labels.sort_by(|one, other| one.name().cmp(other.name()));
                family.series.lock().push((labels, made.clone()));
                made
            }
        }
    )+ };
}

series! {
    ShardedCounter, true;
    ShardedFloatCounter, true;
    ShardedHistogram, false;
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder, HistogramOpts, HistogramVec, IntCounterVec, Registry, TextEncoder};

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut out = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn output_equals_that_of_the_prometheus_crate() {
        let (ours, theirs) = (Registry::new(), Registry::new());
        let bounds = [0.001, 0.5, 2.0];
        let counters = ShardedCounter::family(Opts::new("calls", "Calls."), &["method", "by"], &[]).unwrap();
        let times = ShardedHistogram::family(Opts::new("times", "Times."), &["method"], &bounds).unwrap();
        let floats = ShardedFloatCounter::family(Opts::new("units", "Units."), &[], &[]).unwrap();
        ours.register(Box::new(counters.clone())).unwrap();
        ours.register(Box::new(times.clone())).unwrap();
        ours.register(Box::new(floats.clone())).unwrap();
        let their_counters = IntCounterVec::new(Opts::new("calls", "Calls."), &["method", "by"]).unwrap();
        let their_times =
            HistogramVec::new(HistogramOpts::new("times", "Times.").buckets(bounds.to_vec()), &["method"])
                .unwrap();
        let their_floats = prometheus::Counter::new("units", "Units.").unwrap();
        theirs.register(Box::new(their_counters.clone())).unwrap();
        theirs.register(Box::new(their_times.clone())).unwrap();
        theirs.register(Box::new(their_floats.clone())).unwrap();
        let units = ShardedFloatCounter::series(&floats, &[]);
        for (method, by) in [("a", "x"), ("a", "y"), ("b", "x")] {
            let (one, other) = (
                ShardedCounter::series(&counters, &[method, by]),
                their_counters.with_label_values(&[method, by]),
            );
            one.inc();
            other.inc();
            one.inc_by(5);
            other.inc_by(5);
            assert_eq!(one.get(), 6);
            units.inc_by(0.25);
            their_floats.inc_by(0.25);
        }
        let (one, other) = (ShardedHistogram::series(&times, &["a"]), their_times.with_label_values(&["a"]));
        // Values on a bound, between two bounds, and above all bounds.
        for value in [0.0, 0.001, 0.25, 0.5, 1.0, 2.0, 64.0] {
            one.observe(value);
            other.observe(value);
        }
        assert_eq!(text(&ours), text(&theirs));
        assert_eq!(one.counts().collect::<Vec<_>>(), [2, 2, 2, 1]);
    }

    /// The number of threads, more than [`SHARDS`].
    const THREADS_OF_TEST: u64 = 17;

    #[test]
    fn concurrent_updates_are_all_counted() {
        let buckets: Arc<[f64]> = [1.0].into();
        let (counter, histogram) = (ShardedCounter::new(&buckets), ShardedHistogram::new(&buckets));
        std::thread::scope(|threads| {
            for _ in 0..THREADS_OF_TEST {
                threads.spawn(|| {
                    for i in 0..1000_u32 {
                        counter.inc();
                        histogram.observe(f64::from(i % 2) * 2.0);
                    }
                });
            }
        });
        let all = THREADS_OF_TEST * 1000;
        let half = all / 2;
        assert_eq!((counter.get(), histogram.counts().collect::<Vec<_>>()), (all, vec![half, half]));
        assert!((histogram.sum() / 2.0 - f64::from(u32::try_from(half).unwrap())).abs() < 1e-9);
    }
}
