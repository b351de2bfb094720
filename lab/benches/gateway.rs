//! The time that a call needs for its API key among 100,000 keys: the lookup of the key and the check of its
//! limits. The benchmark also measures the delay of calls while all keys are reloaded.
//!
//! This delay must stay below 5 ms. The benchmark needs about 100 MB of memory. The measured time does not include
//! a reading of the clock, because a call reads the clock only once for all its steps.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::fmt::Write;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use slotfront::config::Config;
use slotfront::gateway::Gateway;
use slotfront::gateway::keys::KeyHash;
use slotfront::low_priority::lower_priority;
use slotfront::telemetry::Metrics;
use tokio::time::Instant;

const KEYS: usize = 100_000;
/// The length of an API key: `sf_` and 43 characters.
const KEY_LEN: usize = 46;
const STEP: usize = 7919;
const RELOADS: u32 = 5;
/// The duration above which a call counts as slow.
const SLOW: Duration = Duration::from_millis(1);
const CLIENT: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));

/// Returns the key with the number `i`, in the length of a real API key.
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

/// Authenticates and admits one call.
fn enter(gateway: &Gateway, key: &str, now: Instant) {
    let principal = gateway.authenticate(key, CLIENT, None, now).expect("a key in force");
    let _ = black_box(principal.take());
}

fn benches(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let any = "127.0.0.1:0".parse().expect("an address");
    let mut config = Config::dev(any, any, Vec::new());
    config.auth.keys_file = Some(dir.path().join("keys.toml"));
    std::fs::write(dir.path().join("keys.toml"), key_file()).expect("a key file");
    let gateway = Gateway::new(&config, Metrics::new()).expect("a gateway");
    let now = Instant::now();

    // `STEP` shares no factor with the number of keys, so the calls use all keys. The gateway's entries for two
    // successive keys never share a cache line. The texts of the keys lie in the order of the calls, because a
    // real request has just read its key from the connection.
    let keys: Vec<[u8; KEY_LEN]> =
        (0..KEYS).map(|i| key(i * STEP % KEYS).into_bytes().try_into().expect("the length")).collect();
    let text = |key| std::str::from_utf8(key).expect("ASCII");
    let mut calls = keys.iter().cycle();
    c.bench_function("gateway/key and limit, 100,000 keys", |b| {
        b.iter(|| enter(&gateway, text(black_box(calls.next().expect("endless"))), now));
    });
    c.bench_function("gateway/key and limit, one key", |b| {
        b.iter(|| enter(&gateway, text(black_box(&keys[0])), now));
    });
    let principal = gateway.authenticate(text(&keys[0]), CLIENT, None, now).expect("a key in force");
    c.bench_function("gateway/limit alone", |b| b.iter(|| principal.take().is_ok()));
    c.bench_function("gateway/hash of a key", |b| b.iter(|| KeyHash::of(text(black_box(&keys[0])))));
    c.bench_function("gateway/a wrong key", |b| {
        b.iter(|| gateway.authenticate(black_box("sf_wrong"), CLIENT, None, now).is_err());
    });

    // Other work on the machine stalls calls, too. For comparison, the same calls run beside a thread that only spins.
    // The number of sleeps shows how often a call waited for a lock or a page of memory that the reload held.
    let mut reload = Duration::ZERO;
    beside("reloads", &gateway, &keys, now, || {
        lower_priority();
        let begun = Instant::now();
        for _ in 0..RELOADS {
            gateway.replace(&config).expect("a reload");
        }
        reload = begun.elapsed();
    });
    println!("gateway/reload of 100,000 keys: {:?} each", reload / RELOADS);
    beside("a thread that spins", &gateway, &keys, now, || {
        lower_priority();
        let begun = Instant::now();
        while begun.elapsed() < reload {
            std::hint::spin_loop();
        }
    });
}

/// Makes calls until `work` has ended. Prints the numbers of all calls and of slow calls, and the duration of the
/// longest call.
fn beside(what: &str, gateway: &Gateway, keys: &[[u8; KEY_LEN]], now: Instant, work: impl FnOnce() + Send) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let calls = threads.spawn(|| {
            let (mut all, mut slow, mut longest) = (0_u64, 0_u64, Duration::ZERO);
            let slept = times_slept();
            for key in keys.iter().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                let begun = Instant::now();
                enter(gateway, std::str::from_utf8(key).expect("ASCII"), now);
                let took = begun.elapsed();
                all += 1;
                slow += u64::from(took > SLOW);
                longest = longest.max(took);
            }
            let slept = times_slept() - slept;
            println!(
                "gateway/calls beside {what}: {all}, of which {slow} over {SLOW:?}, longest {longest:?}; slept {slept} times"
            );
        });
        threads.spawn(work).join().expect("work");
        stop.store(true, Ordering::Relaxed);
        calls.join().expect("calls");
    });
}

/// Returns how often this thread has waited for anything but a core, or 0 if the system does not count it.
fn times_slept() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    field.and_then(|times| times.trim().parse().ok()).unwrap_or(0)
}

criterion_group!(group, benches);
criterion_main!(group);
