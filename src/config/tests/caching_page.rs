//! The tables of docs/caching.md and the defaults are equal.

use std::path::Path;
use std::time::Duration;

use crate::config::defaults::{
    MAX_LAG_SLOTS, MAX_SLOT_LAG, STALE_IF_ERROR_CONFIRMED, STALE_IF_ERROR_FINALIZED, STALE_WHILE_REVALIDATE,
    TTL_BLOCK_CONFIRMED, TTL_BLOCK_FINALIZED, TTL_CLUSTER_NODES, TTL_PERFORMANCE_SAMPLES, TTL_STATE,
    TTL_VOTE_ACCOUNTS,
};
use crate::frontier::{ASSUMED_SLOT_TIME, UNCONFIRMED_LEAD};
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
    let cells = |cell: &dyn Fn(Commitment) -> String| Commitment::ALL.map(cell).join(" | ");
    let stretch = |c| match STALE_WHILE_REVALIDATE.get(c) {
        0.5 => "half".to_owned(),
        other => other.to_string(),
    };
    let in_fault = |c| match c {
        Commitment::Processed => "never".to_owned(),
        Commitment::Confirmed => in_words(STALE_IF_ERROR_CONFIRMED),
        Commitment::Finalized => in_words(STALE_IF_ERROR_FINALIZED),
    };
    let votes = TTL_VOTE_ACCOUNTS;
    let [one, two, three] = [votes.processed, votes.confirmed, votes.finalized].map(|ttl| ttl.as_secs());
    let lead = UNCONFIRMED_LEAD.as_millis() / ASSUMED_SLOT_TIME.as_millis();
    let mut rows = vec![
        ("accounts, token balances, fees: at most this old", cells(&|c| in_words(*TTL_STATE.get(c)))),
        ("and at most so many slots behind the newest known", cells(&|c| MAX_LAG_SLOTS.get(c).to_string())),
        ("while a fresh one is fetched, both bounds stretch by", cells(&stretch)),
        ("when no node answers, at most this old", cells(&in_fault)),
        ("vote accounts, at processed, confirmed and finalized", format!("{one}, {two} and {three} s")),
        ("performance samples", in_words(TTL_PERFORMANCE_SAMPLES)),
        ("cluster nodes", in_words(TTL_CLUSTER_NODES)),
        (
            "a final block, fetched at finalized from a node that has reached it",
            in_words(TTL_BLOCK_FINALIZED),
        ),
        (
            "a block that is only confirmed, kept apart for callers at confirmed",
            in_words(TTL_BLOCK_CONFIRMED),
        ),
    ]
    .into_iter()
    .map(|(name, cells)| format!("| {name} | {cells} |\n"))
    .collect::<Vec<_>>();
    rows.extend(Commitment::ALL.map(|c| {
        let (lag, ttl) = (MAX_LAG_SLOTS.get(c), in_words(*TTL_STATE.get(c)));
        format!("| {lag} slot{} or {ttl}, {c} | ", if *lag == 1 { "" } else { "s" })
    }));
    rows.push(format!("| `pool.max_slot_lag`, {MAX_SLOT_LAG} slots: "));
    rows.push(format!(" | {lead} slots |\n"));
    let missing: Vec<_> = rows.iter().filter(|row| !page.contains(*row)).collect();
    assert!(missing.is_empty(), "docs/caching.md lacks {missing:#?}");
}
