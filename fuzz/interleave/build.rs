//! Copies the sources under test, and replaces their synchronization primitives by those of the scheduler.

use std::path::Path;

const REPLACEMENTS: [(&str, &str); 10] = [
    ("std::sync::atomic", "shuttle::sync::atomic"),
    ("std::sync::{Arc, Mutex}", "{std::sync::Arc, shuttle::sync::Mutex}"),
    ("std::sync::MutexGuard", "shuttle::sync::MutexGuard"),
    (
        "std::sync::{PoisonError, RwLock, RwLockReadGuard}",
        "{std::sync::PoisonError, shuttle::sync::RwLock, shuttle::sync::RwLockReadGuard}",
    ),
    ("tokio::sync::watch", "crate::watch"),
    ("tokio_util::task::TaskTracker", "crate::TaskTracker"),
    ("use arc_swap::ArcSwap;", "use crate::ArcSwap;"),
    ("tokio::time::Instant", "std::time::Instant"),
    // The scheduler sees each atomic, so there must be few.
    ("if cfg!(test) { 1 << 12 } else { 1 << 21 }", "2"),
    ("MAX_SLOTS: u64 = 1 << 19", "MAX_SLOTS: u64 = 1 << 6"),
];

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    for (name, source) in [
        ("flight", "../../src/cache/flight.rs"),
        ("generation", "../../src/cache/generation.rs"),
        ("monotonic_slot", "../../src/gateway/monotonic_slot.rs"),
        ("chain", "../../src/follow/chain.rs"),
        ("last_writes", "../../src/follow/last_writes.rs"),
    ] {
        println!("cargo::rerun-if-changed={source}");
        let text = std::fs::read_to_string(source).expect("the source exists");
        let text = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
        let mut copy: String = text.lines().filter(|line| !line.starts_with("//!")).map(|line| format!("{line}\n")).collect();
        for (original, replacement) in REPLACEMENTS {
            copy = copy.replace(original, replacement);
        }
        std::fs::write(Path::new(&out).join(format!("{name}.rs")), copy).expect("written");
    }
}
