//! Long answers and batches: a cached answer is looked up after what its batch has to fetch, and a long answer is
//! compressed only once.

use std::io::Read;

use serde_json::{Value, json};
use slotfront_testkit::{Reply, TestCall, TestGateway};

/// Returns a call for an account, and one for a block.
fn account_and_block(gateway: &TestGateway) -> [TestCall; 2] {
    let there = gateway.cluster.examples();
    let account = gateway.get_account(there.wallets[0]).processed().base64();
    [account, gateway.get_block(there.block_with_v0).version_0().id(2)]
}

#[tokio::test]
async fn a_batch_leaves_no_hit_past_its_bound() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let [account, block] = account_and_block(&gateway);
    let before = account.send().await.slot();
    let hold = gateway.cluster.node(0).hold("getBlock");
    let batch = gateway.batch([account.clone(), block]);
    let (answers, ()) = tokio::join!(batch.send(), async {
        hold.arrived(1).await;
        gateway.step_by(3).await;
        hold.release();
    });
    let after = answers.json()[0]["result"]["context"]["slot"].as_u64();
    assert!(after >= Some(before + 2), "{before}, {after:?}: more than one slot behind");
    assert_eq!(gateway.upstream_calls(), 3);
}

/// Sends `body` with this Accept-Encoding. Returns the reply with its text decompressed, and the text as
/// JSON.
async fn in_coding(gateway: &TestGateway, accepts: &str, body: &Value) -> (Reply, Value) {
    let client = reqwest::Client::builder().no_proxy().no_gzip().no_zstd().build().unwrap();
    let request = gateway.post(body.to_string()).client(&client).header("accept-encoding", accepts);
    let response = request.build().send().await.unwrap();
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
async fn stored_texts_are_compressed_once() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let done = || gateway.front().metrics.compressions.at(slotfront::telemetry::Compression::Done).get();
    let [account, block] = account_and_block(&gateway);
    let long = block.json();
    let (first, truth) = in_coding(&gateway, "gzip", &long).await;
    assert_eq!((first.header("content-encoding"), done()), ("gzip", 1));
    let short = account.json();
    let (_, other) = in_coding(&gateway, "gzip", &short).await;
    for (accepts, asked, coding, told) in [
        ("gzip", json!([long]), "gzip", json!([truth])),
        ("gzip, zstd", json!([long, short, long]), "gzip", json!([truth, other, truth])),
        ("gzip", json!([short, short]), "", json!([other, other])),
        // An answer in zstd can reuse only one stored compressed text, so an answer with two texts is sent
        // uncompressed.
        ("zstd", json!([long, long]), "", json!([truth, truth])),
    ] {
        let (reply, text) = in_coding(&gateway, accepts, &asked).await;
        assert_eq!((reply.header("content-encoding"), text == told), (coding, true), "{asked}");
        assert_eq!(done(), 1, "{asked}");
    }
    let (reply, text) = in_coding(&gateway, "zstd", &json!([long])).await;
    assert_eq!((reply.header("content-encoding"), text, done()), ("zstd", json!([truth]), 2));
}

#[tokio::test]
async fn batch_over_budget_is_answered_in_part() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.max_outgoing = 20_000).start().await;
    let [_, block] = account_and_block(&gateway);
    let single = block.send().await.text.len();
    let answers = gateway.batch(vec![block.clone(); 20]).send().await.json();
    let answers = answers.as_array().unwrap();
    let (there, refused): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.get("result").is_some());
    assert!(!there.is_empty() && there.len() * single <= 20_000, "{} of {single}", there.len());
    assert!(!refused.is_empty() && refused.iter().all(|answer| answer["error"]["code"] == -32094));
    gateway.until("the whole budget is released", || gateway.front().outgoing.used() == 0).await;
    assert_eq!(block.send().await.status, 200);
}
