//! Checks that the tables of docs/caching.md state the defaults.

use std::path::Path;
use std::time::Duration;

use crate::config::defaults::{
    MAX_LAG_SLOTS, MAX_SLOT_LAG, STALE_IF_ERROR_CONFIRMED, STALE_IF_ERROR_FINALIZED, STALE_WHILE_REVALIDATE,
    TTL_BLOCK_CONFIRMED, TTL_BLOCK_FINALIZED, TTL_CLUSTER_NODES, TTL_NO_BLOCK_NOT_YET, TTL_NO_BLOCK_SKIPPED,
    TTL_NO_BLOCK_UNCONFIRMED, TTL_PERFORMANCE_SAMPLES, TTL_STATE, TTL_VOTE_ACCOUNTS,
};
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
    let row = |name: &str, cell: &dyn Fn(Commitment) -> String| {
        format!("| {name} | {} |\n", Commitment::ALL.map(cell).join(" | "))
    };
    let slots = |c| match MAX_LAG_SLOTS.get(c) {
        1 => "1 slot".to_owned(),
        lag => format!("{lag} slots"),
    };
    let stretch = |c| match STALE_WHILE_REVALIDATE.get(c) {
        0.5 => "by half".to_owned(),
        other if *other > 0.0 => format!("by {other}"),
        _ => "none".to_owned(),
    };
    let in_fault = |c| match c {
        Commitment::Processed => "not served".to_owned(),
        Commitment::Confirmed => in_words(STALE_IF_ERROR_CONFIRMED),
        Commitment::Finalized => in_words(STALE_IF_ERROR_FINALIZED),
    };
    let mut rows = vec![
        row("maximum age of accounts, token balances and fees", &|c| in_words(*TTL_STATE.get(c))),
        row("maximum lag behind the newest known slot", &slots),
        row("extension of both bounds while a fresh answer is fetched", &stretch),
        row("maximum age when no node answers", &in_fault),
    ];
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    for row in &rows {
        assert!(readme.contains(row), "README.md lacks {row}");
    }
    let [one, two, three] = Commitment::ALL.map(|c| TTL_VOTE_ACCOUNTS.get(c).as_secs());
    rows.push(format!(
        "| vote accounts, at processed, confirmed and finalized | {one}, {two} and {three} s |\n"
    ));
    for (name, ttl) in [
        ("performance samples", TTL_PERFORMANCE_SAMPLES),
        ("cluster nodes", TTL_CLUSTER_NODES),
        ("a final block, fetched at finalized from a node that has reached it", TTL_BLOCK_FINALIZED),
        ("a block that is only confirmed, for callers at confirmed", TTL_BLOCK_CONFIRMED),
        (
            "a skipped slot, if a stored later block names an earlier slot as its parent's",
            TTL_NO_BLOCK_SKIPPED,
        ),
        ("a skipped slot according to nodes, which may only have lost its block", TTL_NO_BLOCK_UNCONFIRMED),
        ("a block that does not exist yet", TTL_NO_BLOCK_NOT_YET),
    ] {
        rows.push(format!("| {name} | {} |\n", in_words(ttl)));
    }
    rows.extend(
        Commitment::ALL.map(|c| format!("| {c}: {} or {} | ", slots(c), in_words(*TTL_STATE.get(c)))),
    );
    rows.push(format!("| `pool.max_slot_lag`: {MAX_SLOT_LAG} slots; "));
    let lead = SINGLE_NODE_LEAD.as_millis() / ASSUMED_SLOT_TIME.as_millis();
    rows.push(format!(" | {lead} slots |\n"));
    let missing: Vec<_> = rows.iter().filter(|row| !page.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/caching.md lacks {missing:#?}");
}
