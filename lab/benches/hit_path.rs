//! The cost of a cache hit, in parts and as a whole: parsing the envelope and the params, the lookup, and writing
//! the answer.
//!
//! Run with `cargo bench --package slotfront-lab --bench hit_path`. A simulated node answers the first call, and
//! every later call is a hit.

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use slotfront::cache::key::LookupPlan;
use slotfront::cache::{CallOptions, Charge, NoConditions, Sizes};
use slotfront::frontier::Frontier;
use slotfront::jsonrpc::envelope::{self, Element, Request};
use slotfront::jsonrpc::{Id, reply};
use slotfront::methods::{Method, Profile, Query};
use slotfront::pool::CallerId;
use slotfront::telemetry::Trace;
use slotfront_testkit::CacheScene;
use tokio::time::Instant;

fn call(body: &Bytes) -> slotfront::jsonrpc::Call {
    match envelope::parse(body) {
        Request::One(Element::Call(call)) => call,
        other => panic!("no call: {other:?}"),
    }
}

fn hit_path(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let CacheScene { cache, cluster, .. } = runtime.block_on(CacheScene::start());
    let body = CacheScene::body(&cluster.examples().wallets[0]);
    let query = |call: &slotfront::jsonrpc::Call| {
        Query::parse(Method::GetAccountInfo, &call.params, Profile::Node).expect("params of a call")
    };
    let options = || CallOptions {
        bypass: false,
        asked_at: Instant::now(),
        timeout: Duration::from_secs(10),
        coding: None,
        caller: CallerId::default(),
        trace: Trace::default(),
    };
    let charge = Charge::free();
    // The future of a hit is ready at its first poll.
    let hit = |query: &Query| {
        let answer = cache.answer(query, options(), &charge, &NoConditions);
        answer.now_or_never().expect("a hit")
    };
    let (frontier, sizes) = (Frontier::new(1), Sizes::default());
    let (parsed, asked) = (call(&body), query(&call(&body)));
    runtime.block_on(cache.answer(&asked, options(), &charge, &NoConditions)).expect("a first answer");

    c.bench_function("envelope: split", |b| b.iter(|| black_box(envelope::parse(black_box(&body)))));
    c.bench_function("params: read into a query", |b| b.iter(|| black_box(query(black_box(&parsed)))));
    c.bench_function("key: plan", |b| {
        b.iter(|| black_box(LookupPlan::new(black_box(&asked), &frontier, &sizes)));
    });
    c.bench_function("cache: hit", |b| {
        b.iter(|| black_box(hit(&asked).is_ok()));
    });
    let result = vec![b'x'; 250];
    c.bench_function("reply: splice 250 bytes", |b| {
        b.iter(|| {
            let mut out = Vec::with_capacity(300);
            reply::result(&mut out, &Id::Number(7), black_box(&result));
            black_box(out)
        });
    });
    c.bench_function("reply: head and tail of a long result", |b| {
        b.iter(|| black_box(reply::head_and_tail(black_box(&Id::Number(7)))));
    });
    c.bench_function("whole: body to reply", |b| {
        b.iter(|| {
            let call = call(&body);
            let answer = hit(&query(&call)).expect("a hit");
            let slotfront::cache::entry::Payload::Result(result) = &answer.payload else {
                panic!("an error")
            };
            let mut out = Vec::with_capacity(512);
            reply::result(&mut out, &call.id, &result.pieces()[0]);
            black_box(out)
        });
    });
}

criterion_group!(benches, hit_path);
criterion_main!(benches);
