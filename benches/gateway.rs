//! What the door costs a call at 100,000 keys: the lookup and the limit check together are to stay under 500 ns; and
//! how long a reload of all keys holds up a call, which is to stay under 5 ms.
//!
//! Needs some 100 MB of memory. Everything is real but the clock's reading, which a call makes once and hands down.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

use std::fmt::Write;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use criterion::{Criterion, criterion_group, criterion_main};
use slotfront::config::Config;
use slotfront::gateway::Gateway;
use slotfront::gateway::keys::KeyHash;
use tokio::time::Instant;

const KEYS: usize = 100_000;
const RELOADS: u32 = 5;
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A key of the real length.
fn key(i: usize) -> String {
    format!("sf_{i:0>43}")
}

fn key_file() -> String {
    let mut text = String::new();
    for i in 0..KEYS {
        let hash = KeyHash::of(&key(i));
        writeln!(
            text,
            "[[key]]\nid = \"key-{i}\"\nname = \"n\"\nplan = \"dev\"\nsha256 = \"{hash}\"\ncreated = \"2026-11-21T00:00:00Z\"\n"
        )
        .expect("a text can be written");
    }
    text
}

/// One call at the door.
fn enter(gateway: &Gateway, key: &str, now: Instant) {
    let principal = gateway.authenticate(key, CLIENT, None, now).expect("a key in force");
    let _ = black_box(principal.take(now));
}

fn benches(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let any = "127.0.0.1:0".parse().expect("an address");
    let mut config = Config::dev(any, any, Vec::new());
    config.auth.keys_file = Some(dir.path().join("keys.toml"));
    std::fs::write(dir.path().join("keys.toml"), key_file()).expect("a key file");
    let gateway = Gateway::new(&config).expect("a gateway");
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let now = Instant::now();

    // A step that shares no factor with the number of keys visits all of them, and no cache line twice in a row.
    let mut i = 0;
    c.bench_function("gateway/key and limit, 100,000 keys", |b| {
        b.iter(|| {
            i = (i + 7919) % KEYS;
            enter(&gateway, black_box(&keys[i]), now);
        });
    });
    c.bench_function("gateway/key and limit, one key", |b| {
        b.iter(|| enter(&gateway, black_box(&keys[0]), now));
    });
    c.bench_function("gateway/a wrong key", |b| {
        b.iter(|| gateway.authenticate(black_box("sf_wrong"), CLIENT, None, now).is_err());
    });

    let stop = AtomicBool::new(false);
    let mut took = std::thread::scope(|threads| {
        let calls = threads.spawn(|| {
            let mut took = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                enter(&gateway, &keys[took.len() % KEYS], now);
                took.push(begun.elapsed());
            }
            took
        });
        let begun = Instant::now();
        for _ in 0..RELOADS {
            gateway.replace(&config).expect("a reload");
        }
        let each = begun.elapsed() / RELOADS;
        stop.store(true, Ordering::Relaxed);
        println!("gateway/reload of 100,000 keys: {each:?} each");
        calls.join().expect("calls")
    });
    took.sort_unstable();
    let all = took.len();
    let most = took.last().copied().unwrap_or_default();
    println!(
        "gateway/calls during reloads: {all} calls, p50 {:?}, p99.9 {:?}, longest {most:?}",
        took[all / 2],
        took[all - all / 1000 - 1]
    );
}

criterion_group!(group, benches);
criterion_main!(group);
