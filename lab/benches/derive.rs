//! The cost of making an answer from cached answers of another form: for accounts, lists of accounts, blocks, vote
//! accounts and performance samples.
//!
//! Run with `cargo bench --package slotfront-lab --bench derive`. The cached answers are those of a simulated node.
//! The large account and the long block are lengthened copies of such answers.

use std::hint::black_box;
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use slotfront::cache::derive;
use slotfront::cache::derive::block::{BlockShape, reshape};
use slotfront::cache::derive::list::{
    SingleAccount, joined, read_list, read_single, write_list, write_single,
};
use slotfront::cache::entry::{Class, Entry, EntryMeta};
use slotfront::methods::{
    AccountEncoding, AccountForm, BlockDetails, BlockEncoding, Commitment, DataSlice, Pubkey,
};
use slotfront_sim::{Cluster, Settings};
use tokio::time::Instant;

const WHOLE: AccountForm = AccountForm { encoding: AccountEncoding::Base64, slice: None };
const LIST: usize = 100;
/// The number of bytes in the large account.
const LARGE: usize = 60_000;
/// The number of transactions in the long block.
const TRANSACTIONS: usize = 1_500;

/// Returns the `result` of a node's answer, without the JSON-RPC envelope.
fn result(cluster: &Cluster, method: &str, params: &Value) -> Bytes {
    #[derive(serde::Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        result: &'a RawValue,
    }
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let answer = cluster.node(0).answer(body.as_bytes());
    let answer: Answer<'_> = serde_json::from_slice(&answer).expect("a result");
    Bytes::copy_from_slice(answer.result.get().as_bytes())
}

fn single(text: &Bytes) -> SingleAccount {
    read_single(text, WHOLE).expect("as a node writes it")
}

fn accounts(c: &mut Criterion, cluster: &Cluster) {
    let token = cluster.examples().token_accounts[0].to_string();
    let small = result(cluster, "getAccountInfo", &json!([token, {"encoding": "base64"}]));
    let mut large: Value = serde_json::from_slice(&small).expect("JSON");
    let data: Vec<u8> = (0..LARGE).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
    large["value"]["data"][0] = base64::engine::general_purpose::STANDARD.encode(data).into();
    large["value"]["space"] = LARGE.into();
    let large = Bytes::from(large.to_string());

    let form = |encoding, length: Option<u64>| AccountForm {
        encoding,
        slice: length.map(|length| DataSlice { offset: 0, length }),
    };
    for (name, text, form) in [
        ("165 bytes, as kept", &small, WHOLE),
        ("165 bytes, a slice of 32", &small, form(AccountEncoding::Base64, Some(32))),
        ("165 bytes, 32 of them in base58", &small, form(AccountEncoding::Base58, Some(32))),
        ("165 bytes, base64+zstd", &small, form(AccountEncoding::Base64Zstd, None)),
        ("60 KB, a slice of 32", &large, form(AccountEncoding::Base64, Some(32))),
        ("60 KB, base64+zstd", &large, form(AccountEncoding::Base64Zstd, None)),
    ] {
        let kept = single(text);
        c.bench_function(&format!("derive: account of {name}"), |b| {
            b.iter(|| black_box(write_single(&kept.result, &kept.value, black_box(form)).is_ok()));
        });
    }
    c.bench_function("derive: read an account of 165 bytes", |b| {
        b.iter(|| black_box(single(&small).facts.space()));
    });
}

fn lists(c: &mut Criterion, cluster: &Cluster) {
    let examples = cluster.examples();
    let keys: Vec<String> = examples
        .wallets
        .iter()
        .chain(&examples.token_accounts)
        .cycle()
        .take(LIST)
        .map(Pubkey::to_string)
        .collect();
    let list = result(cluster, "getMultipleAccounts", &json!([keys, {"encoding": "base64"}]));
    let (_, singles) = read_list(&list, WHOLE, LIST).expect("a list");
    let class = Class::Account(Commitment::Finalized);
    let entry = |single: SingleAccount| {
        let body = single.into_body(Some(AccountEncoding::Base64));
        let meta =
            EntryMeta { slot: 1, sent_at: Instant::now(), class, derived: false, carried: false, node: None };
        Arc::new(Entry::new(body, meta, None))
    };
    let entries: Vec<_> = singles.into_iter().map(entry).collect();
    let (context, read) = read_list(&list, WHOLE, LIST).expect("a list");
    let values: Vec<_> = read.into_iter().map(|single| single.value).collect();
    let slice = AccountForm { slice: Some(DataSlice { offset: 0, length: 32 }), ..WHOLE };

    c.bench_function("derive: list of 100, taken apart", |b| {
        b.iter(|| black_box(read_list(&list, WHOLE, LIST).is_some()));
    });
    c.bench_function("derive: list of 100, put together", |b| {
        b.iter(|| black_box(joined(black_box(&entries)).is_some()));
    });
    for (name, form) in [("as kept", WHOLE), ("in slices of 32", slice)] {
        c.bench_function(&format!("derive: list of 100, written {name}"), |b| {
            b.iter(|| black_box(write_list(&context, &values, black_box(form)).is_ok()));
        });
    }
}

fn blocks(c: &mut Criterion, cluster: &Cluster) {
    let slot = cluster.examples().block_with_v0;
    let config = json!({"encoding": "base64", "maxSupportedTransactionVersion": 0, "rewards": true});
    let mut block: Value =
        serde_json::from_slice(&result(cluster, "getBlock", &json!([slot, config]))).expect("JSON");
    let transactions = block["transactions"].as_array().expect("transactions").clone();
    block["transactions"] = transactions.into_iter().cycle().take(TRANSACTIONS).collect();
    let block = Bytes::from(block.to_string());
    let mut group = c.benchmark_group("derive: block of 1,500 transactions");
    group.sample_size(20);
    group.throughput(Throughput::Bytes(block.len() as u64));
    for (name, details, encoding) in [
        ("json", BlockDetails::Full, BlockEncoding::Json),
        ("base58", BlockDetails::Full, BlockEncoding::Base58),
        ("accounts", BlockDetails::Accounts, BlockEncoding::Json),
        ("signatures", BlockDetails::Signatures, BlockEncoding::Json),
        ("none", BlockDetails::None, BlockEncoding::Json),
    ] {
        let asked = BlockShape { details, encoding, ..BlockShape::BASE64 };
        assert!(reshape(&block, asked, None).is_some(), "{name} can be made");
        group.bench_function(name, |b| b.iter(|| black_box(reshape(&block, asked, None).is_some())));
    }
}

fn rest(c: &mut Criterion, cluster: &Cluster) {
    let all = result(cluster, "getVoteAccounts", &json!([]));
    let one = cluster.examples().vote_accounts[0];
    c.bench_function("derive: one vote account", |b| {
        b.iter(|| black_box(derive::vote_account(&all, &one).is_some()));
    });
    let all = result(cluster, "getRecentPerformanceSamples", &json!([720]));
    c.bench_function("derive: 4 performance samples", |b| {
        b.iter(|| black_box(derive::Picked::First(4).of(&all).is_some()));
    });
}

fn derive(c: &mut Criterion) {
    let cluster = Cluster::new(Settings { nodes: 1, slot_time: None, ..Settings::default() });
    accounts(c, &cluster);
    lists(c, &cluster);
    blocks(c, &cluster);
    rest(c, &cluster);
}

criterion_group!(benches, derive);
criterion_main!(benches);
