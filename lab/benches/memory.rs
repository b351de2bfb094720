//! The memory of a cache entry beyond the bytes of its answer, at a million entries.
//!
//! Run with `cargo bench --package slotfront-lab --bench memory`. Prints, for each entry, the bytes of the answer,
//! the bytes that the store counts, and the resident bytes. `cache.capacity` does not cover resident bytes that
//! the store does not count.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use slotfront::cache::derive::list::read_single;
use slotfront::cache::entry::{Class, Entry, EntryMeta};
use slotfront::cache::key::Key;
use slotfront::cache::store::EntryStore;
use slotfront::telemetry::Metrics;
use slotfront_rpc::methods::{AccountEncoding, AccountForm, Commitment, Pubkey};
use tokio::time::Instant;

const ENTRIES: u64 = 1_000_000;

/// Returns the resident memory in bytes, as Linux counts it.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

/// Returns the cache entry of an account with `data` bytes of data. The text of the entry is allocated separately, as
/// after a fetch.
fn entry(number: u64, data: usize) -> (Key, Arc<Entry>) {
    let form = AccountForm { encoding: AccountEncoding::Base64, slice: None };
    let base64 = base64::engine::general_purpose::STANDARD.encode(vec![7; data]);
    let mut text = format!(
        r#"{{"context":{{"apiVersion":"4.0.0","slot":345600119}},"value":{{"data":["{base64}","base64"],"executable":false,"lamports":1461600,"owner":"11111111111111111111111111111111","rentEpoch":18446744073709551615,"space":{data}}}}}"#
    );
    text.shrink_to_fit();
    let single = read_single(&Bytes::from(text), form).expect("the form of a node");
    let body = single.into_body(Some(AccountEncoding::Base64));
    let class = Class::Account(Commitment::Confirmed);
    let entry = Entry::new(
        body,
        EntryMeta {
            slot: 345_600_119,
            sent_at: Instant::now(),
            class,
            derived: false,
            carried: false,
            node: None,
        },
        None,
    );
    let mut pubkey = [0; 32];
    for (i, part) in pubkey.chunks_mut(8).enumerate() {
        part.copy_from_slice(&(number ^ (i as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    (Key::Account(Pubkey(pubkey), form, Commitment::Confirmed), Arc::new(entry))
}

/// Measures entries of accounts with `data` bytes of data, and prints the result. Each measurement needs a new process,
/// because reused memory would falsify the result.
fn measure(data: usize) {
    let store = EntryStore::new(u64::MAX, u64::MAX, Metrics::new());
    let answer = entry(0, data).1.body.weight() as u64;
    let before = resident();
    let wanted = std::env::var("ENTRIES").ok().and_then(|n| n.parse().ok()).unwrap_or(ENTRIES);
    for number in 0..wanted {
        let (key, entry) = entry(number, data);
        store.insert(key, &entry, |_| false);
    }
    let (counted, entries) = store.usage();
    let (counted, each) = (counted / entries, (resident() - before) / entries);
    println!("{data:>10}  {answer:>10}  {counted:>10}  {each:>10}  {:>10}", each.saturating_sub(answer));
}

fn main() {
    // The flags that `cargo bench` adds to the arguments are no numbers, and are skipped.
    let data = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    if let Some(data) = data {
        return measure(data);
    }
    println!("bytes an entry at {ENTRIES} entries (Entry {}, Key {}):", size_of::<Entry>(), size_of::<Key>());
    println!("      data      answer     counted    resident      beyond");
    for data in ["0", "165", "1000"] {
        let program = std::env::current_exe().expect("Linux");
        std::process::Command::new(program).arg(data).status().expect("this program starts again");
    }
}
