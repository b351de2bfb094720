//! The fuzz targets without a fuzzer: each runs on its seeds, on past crashes, and on random changes of both.

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[path = "../../fuzz/seeds.rs"]
mod seeds;
#[path = "../../fuzz/targets.rs"]
mod targets;

/// The number of changed inputs for each target. A fuzzer runs millions.
const CHANGED: u32 = 1_000;

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 5] = [
    ("envelope", targets::envelope),
    ("params", targets::params),
    ("answer", targets::answer),
    ("account", targets::account),
    ("config", targets::config),
];

/// Returns the seeds of a target, and past crashes from `fuzz/regressions/<target>-*`.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut inputs: Vec<Vec<u8>> =
        seeds::seeds(root).into_iter().filter(|(name, _)| *name == target).map(|(_, seed)| seed).collect();
    for crash in std::fs::read_dir(root.join("fuzz/regressions")).unwrap() {
        let crash = crash.unwrap();
        if crash.file_name().to_string_lossy().starts_with(&format!("{target}-")) {
            inputs.push(std::fs::read(crash.path()).unwrap());
        }
    }
    inputs
}

#[test]
fn every_target_accepts_seeds_and_old_crashes() {
    for (name, target) in TARGETS {
        let inputs = inputs(name);
        assert!(inputs.len() >= 2, "{name} has {} seeds", inputs.len());
        for input in &inputs {
            target(input);
        }
    }
}

/// A change to an input, as a fuzzer makes it: bytes are changed, removed or repeated, or a meaningful word
/// is inserted.
#[derive(Debug, Clone)]
enum Change {
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index, u8),
    Repeat(prop::sample::Index, u8),
    Word(prop::sample::Index, &'static str),
}

const WORDS: [&str; 20] = [
    "null",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "\\u0000",
    "\\ud800",
    "18446744073709551615",
    "-1",
    "1e400",
    "{}",
    "\"\"",
    "\"id\":",
    "\"context\":",
    "\"data\":",
    "\"base58\"",
    "\"jsonParsed\"",
    "\u{e9}",
    "[[[[[[[[",
];

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (at(), any::<u8>()).prop_map(|(at, length)| Change::Cut(at, length)),
        (at(), 1..40_u8).prop_map(|(at, length)| Change::Repeat(at, length)),
        (at(), prop::sample::select(WORDS.to_vec())).prop_map(|(at, word)| Change::Word(at, word)),
    ]
}

fn changed(mut input: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let place = |at: &prop::sample::Index| at.index(input.len() + 1);
        match change {
            Change::Byte(at, byte) => match place(at) {
                end if end == input.len() => input.push(*byte),
                at => input[at] = *byte,
            },
            Change::Cut(at, length) => {
                let at = place(at);
                drop(input.drain(at..input.len().min(at + usize::from(*length))));
            }
            Change::Repeat(at, length) => {
                let at = place(at);
                let piece = input[at..input.len().min(at + usize::from(*length))].to_vec();
                drop(input.splice(at..at, piece));
            }
            Change::Word(at, word) => {
                let at = place(at);
                drop(input.splice(at..at, word.bytes()));
            }
        }
    }
    input
}

fn changed_seeds_break_no_target(name: &str) {
    let (_, target) = TARGETS.into_iter().find(|(target, _)| *target == name).unwrap();
    let config = Config { cases: CHANGED, failure_persistence: None, ..Config::default() };
    let changes = proptest::collection::vec(change(), 1..6);
    let input = (prop::sample::select(inputs(name)), changes);
    let input = input.prop_map(|(input, changes)| changed(input, &changes));
    TestRunner::new(config)
        .run(&input, |input| {
            target(&input);
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{name}: {e}"));
}

/// Declares a test for each target, so that they run side by side.
macro_rules! of_targets {
    ($($test:ident: $target:ident),*) => {
        $(#[test]
        fn $test() {
            changed_seeds_break_no_target(stringify!($target));
        })*
    };
}

of_targets! {
    changed_envelopes_break_nothing: envelope,
    changed_params_break_nothing: params,
    changed_answers_break_nothing: answer,
    changed_accounts_break_nothing: account,
    changed_configurations_break_nothing: config
}

/// Writes the files with which `fuzz/all_targets` begins: each seed once, for its target.
#[test]
fn seeds_are_written() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-seeds");
    let _ = std::fs::remove_dir_all(&folder);
    let seeds = seeds::seeds(Path::new(env!("CARGO_MANIFEST_DIR")));
    for (number, (target, seed)) in seeds.iter().enumerate() {
        std::fs::create_dir_all(folder.join(target)).unwrap();
        std::fs::write(folder.join(target).join(format!("seed-{number:04}")), seed).unwrap();
    }
    let written = |target: &str| std::fs::read_dir(folder.join(target)).unwrap().count();
    assert_eq!(TARGETS.iter().map(|(target, _)| written(target)).sum::<usize>(), seeds.len());
}
