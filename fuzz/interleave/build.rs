//! Copies the sources under test, word for word but for the primitives that the scheduler must see.

use std::path::Path;

const STAND_INS: [(&str, &str); 6] = [
    ("std::sync::atomic", "shuttle::sync::atomic"),
    ("std::sync::{Arc, Mutex}", "{std::sync::Arc, shuttle::sync::Mutex}"),
    ("std::sync::MutexGuard", "shuttle::sync::MutexGuard"),
    (
        "std::sync::{PoisonError, RwLock, RwLockReadGuard}",
        "{std::sync::PoisonError, shuttle::sync::RwLock, shuttle::sync::RwLockReadGuard}",
    ),
    ("tokio::sync::watch", "crate::watch"),
    ("tokio_util::task::TaskTracker", "crate::TaskTracker"),
];

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    for (name, source) in [
        ("flight", "../../src/cache/flight.rs"),
        ("generation", "../../src/cache/generation.rs"),
        ("slot_floor", "../../src/gateway/slot_floor.rs"),
    ] {
        println!("cargo::rerun-if-changed={source}");
        let text = std::fs::read_to_string(source).expect("the source is there");
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let mut copy: String = text.lines().filter(|line| !line.starts_with("//!")).map(|line| format!("{line}\n")).collect();
        for (theirs, ours) in STAND_INS {
            copy = copy.replace(theirs, ours);
        }
        copy = copy.replace("use arc_swap::ArcSwap;", "use crate::ArcSwap;");
        std::fs::write(Path::new(&out).join(format!("{name}.rs")), copy).expect("written");
    }
}
