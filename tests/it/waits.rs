//! Long answers: they are checked again after a wait, and compressed once, in batches, too.

use std::io::Read;

use serde_json::{Value, json};
use slotfront::methods::{Commitment, Method};
use slotfront::telemetry::Outcome;

use crate::harness::{Reply, Stage};

fn call(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn account_and_block(stage: &Stage) -> (Value, Value) {
    let there = stage.cluster.examples();
    let account = json!([there.wallets[0].to_string(), {"encoding": "base64", "commitment": "processed"}]);
    (account, json!([there.block_with_v0, {"maxSupportedTransactionVersion": 0}]))
}

#[tokio::test]
async fn a_batch_leaves_no_hit_past_its_bound() {
    let stage = Stage::of(1, |_| ()).await;
    let (account, block) = account_and_block(&stage);
    let before = stage.call("getAccountInfo", account.clone()).await.result()["context"]["slot"].clone();
    let hold = stage.cluster.node(0).hold("getBlock");
    let batch = json!([call(1, "getAccountInfo", &account), call(2, "getBlock", &block)]).to_string();
    let (answers, ()) = tokio::join!(stage.post(batch), async {
        hold.arrived(1).await;
        stage.step_by(3).await;
        hold.release();
    });
    let slot = |slot: &Value| slot.as_u64().unwrap();
    let after = &answers.json()[0]["result"]["context"]["slot"];
    assert!(slot(after) >= slot(&before) + 2, "{before}, {after}: more than one slot behind");
    assert_eq!(stage.upstream_calls(), 3);
}

#[tokio::test]
async fn batches_refetch_collapsed_answers_past_their_bound() {
    let stage = Stage::of(1, |_| ()).await;
    let (account, block) = account_and_block(&stage);
    let node = stage.cluster.node(0);
    let (hold_account, hold_block) = (node.hold("getAccountInfo"), node.hold("getBlock"));
    let labels = (Some(Method::GetAccountInfo), Some(Commitment::Processed), Outcome::Collapsed);
    let collapsed = || stage.front().metrics.requests.at(labels).get();
    let batch = json!([call(1, "getAccountInfo", &account), call(2, "getBlock", &block)]).to_string();
    let after_the_first = async {
        hold_account.arrived(1).await;
        stage.post(batch).await
    };
    let (before, answers, ()) =
        tokio::join!(stage.call("getAccountInfo", account.clone()), after_the_first, async {
            hold_block.arrived(1).await;
            hold_account.release();
            stage.until("the batch has the answer of the first caller's call", || collapsed() == 1).await;
            stage.step_by(3).await;
            hold_block.release();
        });
    let slot = |slot: &Value| slot.as_u64().unwrap();
    let (before, after) =
        (&before.result()["context"]["slot"], &answers.json()[0]["result"]["context"]["slot"]);
    assert!(slot(after) >= slot(before) + 2, "{before}, {after}: more than one slot behind");
    assert_eq!(stage.upstream_calls(), 3);
}

/// Returns the answer to `body`, and its text before compression.
async fn in_coding(stage: &Stage, accepts: &str, body: &Value) -> (Reply, Value) {
    let client = reqwest::Client::builder().no_proxy().no_gzip().no_zstd().build().unwrap();
    let request = client.post(&stage.url).header("content-type", "application/json");
    let response = request.header("accept-encoding", accepts).body(body.to_string()).send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let sent = response.bytes().await.unwrap();
    let mut text = String::new();
    match headers.get("content-encoding").map(|coding| coding.to_str().unwrap()) {
        Some("gzip") => {
            flate2::read::GzDecoder::new(&sent[..]).read_to_string(&mut text).unwrap();
        }
        Some("zstd") => text = String::from_utf8(zstd::decode_all(&sent[..]).unwrap()).unwrap(),
        _ => text = String::from_utf8(sent.to_vec()).unwrap(),
    }
    let value = serde_json::from_str(&text).unwrap();
    (Reply { status, text, headers }, value)
}

#[tokio::test]
async fn held_texts_are_compressed_once() {
    let stage = Stage::of(1, |_| ()).await;
    let done = || stage.front().metrics.compressions.at(slotfront::telemetry::Compression::Done).get();
    let (account, block) = account_and_block(&stage);
    let long = call(1, "getBlock", &block);
    let (first, truth) = in_coding(&stage, "gzip", &long).await;
    assert_eq!((first.header("content-encoding"), done()), ("gzip", 1));
    let short = call(2, "getAccountInfo", &account);
    let (_, other) = in_coding(&stage, "gzip", &short).await;
    for (accepts, asked, coding, told) in [
        ("gzip", json!([long]), "gzip", json!([truth])),
        ("gzip, zstd", json!([long, short, long]), "gzip", json!([truth, other, truth])),
        ("gzip", json!([short, short]), "", json!([other, other])),
        // A zstd frame has room for one text that was compressed before.
        ("zstd", json!([long, long]), "", json!([truth, truth])),
    ] {
        let (reply, text) = in_coding(&stage, accepts, &asked).await;
        assert_eq!((reply.header("content-encoding"), text == told), (coding, true), "{asked}");
        assert_eq!(done(), 1, "{asked}");
    }
    let (reply, text) = in_coding(&stage, "zstd", &json!([long])).await;
    assert_eq!((reply.header("content-encoding"), text, done()), ("zstd", json!([truth]), 2));
}

#[tokio::test]
async fn batch_over_budget_is_answered_in_part() {
    let stage = Stage::of(1, |config| config.server.max_outgoing = 20_000).await;
    let (_, block) = account_and_block(&stage);
    let single = stage.call("getBlock", block.clone()).await.text.len();
    let batch = json!(vec![call(1, "getBlock", &block); 20]).to_string();
    let answers = stage.post(batch).await.json();
    let answers = answers.as_array().unwrap();
    let (there, refused): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.get("result").is_some());
    assert!(!there.is_empty() && there.len() * single <= 20_000, "{} of {single}", there.len());
    assert!(!refused.is_empty() && refused.iter().all(|answer| answer["error"]["code"] == -32094));
    stage.until("all is given back", || stage.front().outgoing.used() == 0).await;
    assert_eq!(stage.call("getBlock", block).await.status, 200);
}
