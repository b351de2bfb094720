//! The cost of counting a call in the metrics, with and without a second thread that increments the same series.
//! Every cache hit has this cost. Two more benchmarks count a call that has an API key, and render all metrics.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use slotfront::methods::{Commitment, Method};
use slotfront::telemetry::{Metrics, Outcome};

fn count(metrics: &Metrics) {
    let method = Some(black_box(Method::GetAccountInfo).into());
    metrics.call(method, Some(Commitment::Confirmed), Outcome::Hit, Duration::from_micros(120), 247);
}

fn benches(c: &mut Criterion) {
    let metrics = Metrics::new();
    c.bench_function("metrics/call", |b| b.iter(|| count(&metrics)));

    let key = metrics.key("k1");
    c.bench_function("metrics/key", |b| {
        b.iter(|| {
            key.requests.at(black_box(Outcome::Hit)).inc();
            key.units.at(()).inc_by(1.0);
        });
    });

    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                count(&metrics);
            }
        });
        c.bench_function("metrics/call contended", |b| b.iter(|| count(&metrics)));
        stop.store(true, Ordering::Relaxed);
    });

    c.bench_function("metrics/render", |b| b.iter(|| metrics.render()));
}

criterion_group!(group, benches);
criterion_main!(group);
