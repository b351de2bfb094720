//! Checks that the tables of docs/caching.md state the defaults.

use std::path::Path;
use std::time::Duration;

use crate::config::reader::Section;
use crate::config::{CacheSettings, PoolSettings};
use crate::frontier::{ASSUMED_SLOT_TIME, SINGLE_NODE_LEAD};
use crate::methods::Commitment;

/// Returns a time as docs/caching.md writes it.
fn in_words(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (86_400, 0) => "a day".to_owned(),
        (0, ms) => format!("{ms} ms"),
        (seconds, _) => format!("{seconds} s"),
    }
}

#[test]
fn caching_page_states_the_defaults() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/caching.md")).unwrap();
    let cache = CacheSettings::defaults();
    let ttl = &cache.ttl;
    let row = |name: &str, cell: &dyn Fn(Commitment) -> String| {
        format!("| {name} | {} |\n", Commitment::ALL.map(cell).join(" | "))
    };
    let slots = |c| match cache.max_lag_slots.get(c) {
        1 => "1 slot".to_owned(),
        lag => format!("{lag} slots"),
    };
    let stretch = |c| match cache.stale_while_revalidate.get(c) {
        0.5 => "by half".to_owned(),
        other if *other > 0.0 => format!("by {other}"),
        _ => "none".to_owned(),
    };
    let in_fault = |c| match c {
        Commitment::Processed => "not served".to_owned(),
        Commitment::Confirmed => in_words(cache.stale_if_error.confirmed),
        Commitment::Finalized => in_words(cache.stale_if_error.finalized),
    };
    let mut rows = vec![
        row("maximum age of accounts, token balances and fees", &|c| in_words(*ttl.account.get(c))),
        row("maximum lag behind the newest known slot", &slots),
        row("extension of both bounds while a fresh answer is fetched", &stretch),
        row("maximum age when no node answers", &in_fault),
    ];
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    for row in &rows {
        assert!(readme.contains(row), "README.md lacks {row}");
    }
    let [one, two, three] = Commitment::ALL.map(|c| ttl.vote_accounts.get(c).as_secs());
    rows.push(format!(
        "| vote accounts, at processed, confirmed and finalized | {one}, {two} and {three} s |\n"
    ));
    for (name, ttl) in [
        ("performance samples", ttl.performance_samples),
        ("cluster nodes", ttl.cluster_nodes),
        ("a final block, fetched at finalized from a node that has reached it", ttl.block_finalized),
        ("a block that is only confirmed, for callers at confirmed", ttl.block_confirmed),
        (
            "a skipped slot, if a stored later block names an earlier slot as its parent's",
            ttl.no_block_skipped,
        ),
        ("a skipped slot according to nodes, which may only have lost its block", ttl.no_block_unconfirmed),
        ("a block that does not exist yet", ttl.no_block_not_yet),
        ("a scan over many accounts", ttl.scan),
    ] {
        rows.push(format!("| {name} | {} |\n", in_words(ttl)));
    }
    rows.extend(
        Commitment::ALL.map(|c| format!("| {c}: {} or {} | ", slots(c), in_words(*ttl.account.get(c)))),
    );
    rows.push(format!("| `pool.max_slot_lag`: {} slots; ", PoolSettings::defaults().max_slot_lag));
    let lead = SINGLE_NODE_LEAD.as_millis() / ASSUMED_SLOT_TIME.as_millis();
    rows.push(format!(" | {lead} slots |\n"));
    let missing: Vec<_> = rows.iter().filter(|row| !page.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/caching.md lacks {missing:#?}");
}
