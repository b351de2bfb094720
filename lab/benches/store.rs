//! The cost of a lookup and of an insert, in a store of a thousand entries and in a store of a million entries.
//!
//! Run with `cargo bench --package slotfront-lab --bench store`. The lookups reach all entries in turn, so that, as in
//! production, a large store does not fit into the processor's caches. The benchmark needs about 500 MB of memory.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use slotfront::cache::entry::{Class, Entry, EntryBody, EntryMeta, Payload, TextParts};
use slotfront::cache::key::Key;
use slotfront::cache::store::EntryStore;
use slotfront::methods::{AccountEncoding, AccountForm, Commitment, Pubkey};
use slotfront::telemetry::Metrics;
use tokio::time::Instant;

/// The distance, in entries, between two successive operations. It shares no factor with the number of entries, so
/// the operations reach all entries.
const STEP: u64 = 7_919;

fn key(number: u64) -> Key {
    let form = AccountForm { encoding: AccountEncoding::Base64, slice: None };
    let mut pubkey = [0; 32];
    for (i, part) in pubkey.chunks_mut(8).enumerate() {
        part.copy_from_slice(&(number ^ (i as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    Key::Account(Pubkey(pubkey), form, Commitment::Confirmed)
}

fn entry(slot: u64) -> Arc<Entry> {
    let body = EntryBody::Verbatim(Payload::Result(TextParts::One(Bytes::from_static(b"null"))));
    let class = Class::Account(Commitment::Confirmed);
    let meta = EntryMeta { slot, sent_at: Instant::now(), class, derived: false, carried: false, node: None };
    Arc::new(Entry::new(body, meta, None))
}

fn store(c: &mut Criterion) {
    for (name, entries) in [("1,000", 1_000), ("1,000,000", 1_000_000)] {
        let store = EntryStore::new(u64::MAX, u64::MAX, Metrics::new());
        for number in 0..entries {
            store.insert(key(number), &entry(1), |_| false);
        }
        assert_eq!(store.usage().1, entries);
        let mut numbers = (0..entries).map(|at| at * STEP % entries).cycle();
        c.bench_function(&format!("store: look up, {name} entries"), |b| {
            b.iter(|| black_box(store.get(&key(numbers.next().expect("endless"))).is_some()));
        });
        c.bench_function(&format!("store: look up what is not there, {name} entries"), |b| {
            b.iter(|| black_box(store.get(&key(entries + numbers.next().expect("endless"))).is_none()));
        });
        let newer = entry(2);
        c.bench_function(&format!("store: replace, {name} entries"), |b| {
            b.iter(|| black_box(store.insert(key(numbers.next().expect("endless")), &newer, |_| false)));
        });
    }
}

criterion_group!(benches, store);
criterion_main!(benches);
