//! Tests of derived answers. One cached answer can also serve other calls, and each such answer equals a node's.

mod random;

use futures_util::future::join_all;
use serde_json::{Value, json};
use slotfront::config::Assemble;
use slotfront::methods::{Commitment, Slot};
use slotfront_sim::{Cluster, Fault, Node};
use slotfront_testkit::{Reply, TestCluster, TestGateway, node_answer};

const ENCODINGS: [&str; 4] = ["base58", "base64", "base64+zstd", "binary"];
const SLICES: [(u64, u64); 7] = [(0, 0), (0, 1), (1, 7), (3, 6), (32, 64), (9, u64::MAX), (u64::MAX, 1)];

/// The source of expected answers: a second simulated cluster of the same seed, without a gateway.
struct Truth(std::sync::Arc<Cluster>);

impl Truth {
    fn new() -> Self {
        Self::of(3)
    }

    fn of(nodes: usize) -> Self {
        Self(TestCluster::unserved(nodes))
    }

    /// Returns the answer of a node at which `slot` is the newest slot of `commitment`. `None` is the present
    /// slot.
    fn answer(&self, method: &str, params: &Value, commitment: Commitment, slot: Option<u64>) -> Value {
        let node = self.0.node(0);
        let mut lag = 0;
        node.set_lag(lag);
        while slot.is_some_and(|slot| node.slot(commitment) > slot) {
            lag += 1;
            assert!(lag <= 256, "no node was ever at {slot:?}");
            node.set_lag(lag);
        }
        assert!(slot.is_none_or(|slot| node.slot(commitment) == slot), "{commitment} never was at {slot:?}");
        let answer = node_answer(node, method, params);
        node.set_lag(0);
        unpacked(answer)
    }

    /// Returns true if some node gives `answer` at the present slot or at one of the slots shortly before it.
    fn ever(&self, method: &str, params: &Value, commitment: Commitment, answer: &Value) -> bool {
        if method == "getRecentPerformanceSamples" {
            let same = |node: &Node| node_answer(node, method, params) == *answer;
            return self.0.nodes().iter().any(|node| {
                let same = (0..64).any(|lag| {
                    node.set_lag(lag);
                    same(node)
                });
                node.set_lag(0);
                same
            });
        }
        let newest = self.0.slot(commitment);
        let node = self.0.node(0);
        (0..48).any(|lag| {
            node.set_lag(lag);
            newest - node.slot(commitment) <= 24
                && self.answer(method, params, commitment, Some(node.slot(commitment))) == *answer
        })
    }
}

/// Returns the value with zstd-packed data unpacked and votes sorted, because encoders and hash maps may
/// differ.
fn unpacked(mut value: Value) -> Value {
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD;
    match &mut value {
        Value::Array(pair) if pair.len() == 2 && pair[1] == "base64+zstd" => {
            let packed = base64.decode(pair[0].as_str().unwrap()).unwrap();
            pair[0] = base64.encode(zstd::stream::decode_all(&packed[..]).unwrap()).into();
        }
        Value::Array(list) => list.iter_mut().for_each(|element| *element = unpacked(element.take())),
        Value::Object(members) => {
            members.values_mut().for_each(|member| *member = unpacked(member.take()));
            for list in ["current", "delinquent"] {
                if let Some(Value::Array(votes)) = members.get_mut(list) {
                    votes.sort_by_key(|vote| vote["votePubkey"].to_string());
                }
            }
        }
        _ => {}
    }
    value
}

fn answer(reply: &Reply) -> Value {
    unpacked(reply.json())
}

/// Returns the configuration objects for every raw encoding of an account: one for the whole data, and others for
/// slices.
fn forms() -> impl Iterator<Item = Value> {
    ENCODINGS.iter().flat_map(|encoding| {
        let slices = SLICES.iter().map(move |(offset, length)| {
            json!({"encoding": encoding, "dataSlice": {"offset": offset, "length": length}})
        });
        std::iter::once(json!({ "encoding": encoding })).chain(slices)
    })
}

#[tokio::test]
async fn one_fetch_serves_every_form_of_an_account() {
    let (gateway, truth) = (TestGateway::start().await, Truth::new());
    let there = gateway.cluster.examples();
    let accounts =
        [there.wallets[0], there.token_accounts[0], there.lookup_tables[0], there.stake_accounts[0]]
            .map(|pubkey| pubkey.to_string());
    for account in &accounts {
        let first = gateway.get_account(account).base64().send().await;
        assert_eq!(first.cache_status(), "fwd=miss; stored");
    }
    let calls = gateway.upstream_calls();
    for form in forms() {
        for account in &accounts {
            let params = json!([account, form]);
            let reply = gateway.call("getAccountInfo", params.clone()).send().await;
            let expected = truth.answer("getAccountInfo", &params, Commitment::Finalized, None);
            assert_eq!(answer(&reply), expected, "{params}");
            assert!(reply.is_hit(), "{params}: {}", reply.cache_status());
        }
        let params = json!([accounts, form]);
        let reply = gateway.call("getMultipleAccounts", params.clone()).send().await;
        let expected = truth.answer("getMultipleAccounts", &params, Commitment::Finalized, None);
        assert_eq!(answer(&reply), expected, "{params}");
        assert!(reply.is_derived(), "{params}: {}", reply.cache_status());
    }
    assert_eq!(gateway.upstream_calls(), calls, "every answer was derived without a node");
}

#[tokio::test]
async fn one_list_serves_its_accounts_in_every_form() {
    let (gateway, truth) = (TestGateway::start().await, Truth::new());
    let there = gateway.cluster.examples();
    let accounts = [there.wallets[1], there.token_accounts[1], there.wallets[1], there.mints[0]]
        .map(|pubkey| pubkey.to_string());
    gateway.get_accounts(&accounts).confirmed().send().await;
    let calls = gateway.upstream_calls();
    for mut form in forms() {
        form["commitment"] = "confirmed".into();
        for (method, params) in [
            ("getMultipleAccounts", json!([accounts, form])),
            ("getMultipleAccounts", json!([[accounts[3], accounts[0]], form])),
            ("getAccountInfo", json!([accounts[1], form])),
        ] {
            let reply = gateway.call(method, params.clone()).send().await;
            let expected = truth.answer(method, &params, Commitment::Confirmed, None);
            assert_eq!(answer(&reply), expected, "{params}");
        }
    }
    assert_eq!(gateway.upstream_calls(), calls, "every answer was derived without a node");
}

#[tokio::test]
async fn parsed_account_serves_every_slice() {
    let (gateway, truth) = (TestGateway::start().await, Truth::new());
    let there = gateway.cluster.examples();
    for (account, calls) in [
        (there.token_accounts[0], 1),
        (there.uninitialized_token_account, 1),
        (there.wallets[0], 1),
        (there.nonce_account, 1),
        (there.stake_accounts[0], 1),
    ] {
        let before = gateway.upstream_calls();
        for (offset, length) in SLICES {
            let slice = json!({"offset": offset, "length": length});
            let params = json!([account.to_string(), {"encoding": "jsonParsed", "dataSlice": slice}]);
            let reply = gateway.call("getAccountInfo", params.clone()).send().await;
            let expected = truth.answer("getAccountInfo", &params, Commitment::Finalized, None);
            assert_eq!(answer(&reply), expected, "{params}");
        }
        assert_eq!(gateway.upstream_calls() - before, calls, "{account}");
    }
}

#[tokio::test]
async fn accounts_of_unknown_size_are_fetched_in_part() {
    let (gateway, truth) = (TestGateway::start().await, Truth::new());
    let token = gateway.cluster.examples().token_accounts[0].to_string();
    let ask = async |form: Value| {
        let before = gateway.upstream_calls();
        let params = json!([token, form]);
        let reply = gateway.call("getAccountInfo", params.clone()).send().await;
        let expected = truth.answer("getAccountInfo", &params, Commitment::Finalized, None);
        assert_eq!(answer(&reply), expected, "{params}");
        (gateway.upstream_calls() - before, reply.cache_status().to_owned())
    };
    let slice = |offset: u64, length: u64| json!({"encoding": "base64", "dataSlice": {"offset": offset, "length": length}});
    // A node refuses base58 for this account of 165 bytes, because 128 bytes are the limit. The gateway fetches
    // only 129 bytes, which show that the account exceeds the limit.
    assert_eq!(ask(json!({})).await, (1, "fwd=miss; stored".to_owned()));
    assert_eq!(ask(json!({})).await.0, 0, "the refusal is kept");
    assert_eq!(ask(slice(0, 129)).await.0, 0, "the held part serves");
    assert_eq!(ask(slice(0, 32)).await.0, 1, "the account is known to be small, so it is fetched whole");
    assert_eq!(ask(slice(32, 32)).await.0, 0);
    assert_eq!(ask(json!({"encoding": "base64+zstd"})).await.0, 0);
    // The first answer about a short account has all its data, whatever the encoding. Such an answer then serves
    // other encodings, too.
    let wallet = gateway.cluster.examples().wallets[2].to_string();
    gateway.get_account(&wallet).send().await;
    let before = gateway.upstream_calls();
    let whole = gateway.get_account(&wallet).base64().send().await;
    assert_eq!((whole.status, gateway.upstream_calls()), (200, before));
}

#[tokio::test]
async fn lists_are_assembled_by_the_setting() {
    for (assemble, same_slot) in [(Assemble::Off, 1), (Assemble::SameSlot, 0)] {
        let gateway = TestGateway::builder().config(|config| config.cache.assemble = assemble).start().await;
        let there = gateway.cluster.examples();
        let keys = [there.wallets[0], there.wallets[1], there.wallets[2]].map(|key| key.to_string());
        let single = async |key: &str| {
            let reply = gateway.get_account(key).base64().send().await;
            reply.slot()
        };
        let list = async |keys: &[&str]| {
            let before = gateway.upstream_calls();
            let reply = gateway.get_accounts(keys).send().await;
            (gateway.upstream_calls() - before, reply)
        };
        let low = single(&keys[0]).await;
        single(&keys[1]).await;
        assert_eq!(list(&[&keys[0], &keys[1]]).await.0, same_slot, "{assemble:?}");
        gateway.step_by(3).await;
        let high = single(&keys[2]).await;
        assert!(high > low);
        let (calls, reply) = list(&[&keys[0], &keys[2]]).await;
        assert_eq!((calls, reply.slot()), (1, high), "{assemble:?}: accounts of two slots make no list");
    }
}

/// Returns the params of getBlock in every shape but jsonParsed.
fn shapes(slot: Slot) -> Vec<Value> {
    let mut shapes = Vec::new();
    for (details, encoding) in [
        ("full", "json"),
        ("full", "base58"),
        ("full", "binary"),
        ("full", "base64"),
        ("accounts", "jsonParsed"),
        ("signatures", "json"),
        ("none", "base58"),
    ] {
        for (rewards, version) in
            [(true, Some(0)), (false, Some(0)), (true, None), (false, None), (true, Some(9))]
        {
            let mut config = json!({"transactionDetails": details, "encoding": encoding, "rewards": rewards});
            if let Some(version) = version {
                config["maxSupportedTransactionVersion"] = json!(version);
            }
            shapes.push(json!([slot, config]));
        }
    }
    shapes
}

#[tokio::test]
async fn one_block_in_base64_serves_every_shape_but_json_parsed() {
    let (gateway, truth) = (TestGateway::start().await, Truth::new());
    let there = gateway.cluster.examples();
    for slot in [there.block_with_v0, gateway.cluster.slot(Commitment::Finalized)] {
        let shapes = shapes(slot);
        for first in ["json", "binary", "base64"] {
            gateway.front().cache.purger().clear();
            let before = gateway.upstream_calls();
            let asked = gateway.get_block(slot).encoding(first).version_0();
            assert_eq!(asked.send().await.cache_status(), "fwd=miss; stored");
            assert!(
                asked.send().await.cache_status().starts_with("hit; ttl"),
                "fetched for it, so not derived"
            );
            for params in &shapes {
                let expected = truth.answer("getBlock", params, Commitment::Finalized, None);
                let reply = gateway.call("getBlock", params.clone()).send().await;
                assert_eq!(answer(&reply), expected, "{params}");
                assert!(reply.is_hit(), "{params}: {}", reply.cache_status());
            }
            assert_eq!(gateway.upstream_calls() - before, 1, "every shape is made of one block");
        }
    }
}

/// Nodes of different versions write different heights beside the instructions of a transaction itself.
#[tokio::test]
async fn json_is_made_only_if_the_height_of_its_instructions_is_known() {
    for (versions, height) in [
        (["4.0.0", "2.3.1"], Some(json!(1))),
        (["2.2.14", "2.0.3"], Some(Value::Null)),
        (["2.2.14", "4.0.0"], None),
    ] {
        let prepare = |cluster: &Cluster| {
            cluster.nodes().iter().zip(versions).for_each(|(node, version)| node.set_version(version));
        };
        let gateway = TestGateway::builder().nodes(2).prepare(prepare).start().await;
        let slot = gateway.cluster.examples().block_with_v0;
        let ask = |encoding: &str| gateway.get_block(slot).encoding(encoding).version_0();
        let mut block = ask("base64").result_of(gateway.cluster.node(0));
        for transaction in block["transactions"].as_array_mut().unwrap() {
            // Blocks from before 2.3 do not have it.
            transaction["meta"].as_object_mut().unwrap().remove("costUnits").unwrap();
        }
        gateway.cluster.fault_everywhere("getBlock", &Fault::Result(block));
        let made = ask("json").send().await.result();
        let instruction = &made["transactions"][0]["transaction"]["message"]["instructions"][0];
        assert_eq!(instruction.get("stackHeight"), height.as_ref(), "{versions:?}");
        assert_eq!(gateway.upstream_calls(), if height.is_some() { 1 } else { 2 }, "{versions:?}");
    }
}

#[tokio::test]
async fn callers_of_several_shapes_share_one_call() {
    let (gateway, truth) = (TestGateway::builder().nodes(1).start().await, Truth::of(1));
    let slot = gateway.cluster.examples().block_with_v0;
    let before = gateway.upstream_calls();
    let is_long =
        |params: &Value| ["full", "accounts"].map(Value::from).contains(&params[1]["transactionDetails"]);
    let shapes: Vec<_> = shapes(slot).into_iter().filter(is_long).collect();
    let hold = gateway.cluster.node(0).hold("getBlock");
    let calls = join_all(shapes.iter().map(|params| gateway.call("getBlock", params.clone()).send()));
    let release = async {
        hold.arrived(1).await;
        hold.release();
    };
    let (replies, ()) = futures_util::join!(calls, release);
    for (params, reply) in shapes.iter().zip(&replies) {
        let expected = truth.answer("getBlock", params, Commitment::Finalized, None);
        assert_eq!(answer(reply), expected, "{params}");
    }
    assert_eq!(gateway.upstream_calls() - before, 1);
}

#[tokio::test]
async fn accounts_of_a_block_too_large_for_base64_are_fetched() {
    let truth = Truth::of(1);
    let slot = truth.0.examples().block_with_v0;
    let ask = |details: &str, encoding: &str| {
        let config =
            json!({"transactionDetails": details, "encoding": encoding, "maxSupportedTransactionVersion": 0});
        let params = json!([slot, config]);
        let answer = truth.answer("getBlock", &params, Commitment::Finalized, None);
        (params, answer)
    };
    let (params, expected) = ask("accounts", "json");
    let lengths = [expected.to_string().len(), ask("full", "base64").1.to_string().len()];
    assert!(lengths[0] + 200 < lengths[1], "{lengths:?}");
    let limit = lengths[1] - 100;
    let gateway =
        TestGateway::builder().nodes(1).config(move |config| config.pool.max_response = limit).start().await;
    let before = gateway.upstream_calls();
    assert_eq!(answer(&gateway.call("getBlock", params).send().await), expected);
    assert_eq!(gateway.upstream_calls() - before, 2);
    let (params, _) = ask("full", "json");
    assert!(gateway.call("getBlock", params).send().await.error()["message"].is_string());
    assert_eq!(gateway.upstream_calls() - before, 3, "json is longer still");
}

#[tokio::test]
async fn short_blocks_are_fetched_as_asked() {
    let (gateway, truth) = (TestGateway::start().await, Truth::new());
    let slot = gateway.cluster.examples().block_with_v0;
    for details in ["none", "signatures"] {
        let params = json!([slot, {"transactionDetails": details}]);
        let expected = truth.answer("getBlock", &params, Commitment::Finalized, None);
        let reply = gateway.call("getBlock", params).send().await;
        assert_eq!((answer(&reply), reply.cache_status()), (expected, "fwd=miss; stored"));
    }
    let before = gateway.upstream_calls();
    gateway.get_block(slot).encoding("base64").version_0().send().await;
    assert_eq!(gateway.upstream_calls() - before, 1, "neither is the block");
}

#[tokio::test]
async fn vote_account_comes_from_the_stored_list() {
    let (gateway, truth) = (TestGateway::start().await, Truth::new());
    let there = gateway.cluster.examples();
    gateway.get_votes().with("keepUnstakedDelinquents", true).send().await;
    gateway.get_votes().send().await;
    let calls = gateway.upstream_calls();
    for vote in
        [there.vote_accounts[0], there.delinquent_vote_account, there.unstaked_vote_account, there.wallets[0]]
    {
        for keep in [true, false] {
            let params = json!([{"votePubkey": vote.to_string(), "keepUnstakedDelinquents": keep}]);
            let expected = truth.answer("getVoteAccounts", &params, Commitment::Finalized, None);
            for _ in 0..2 {
                let reply = gateway.call("getVoteAccounts", params.clone()).send().await;
                assert_eq!(answer(&reply), expected, "{params}");
                assert!(reply.is_derived(), "{params}: {}", reply.cache_status());
            }
        }
    }
    assert_eq!(gateway.upstream_calls(), calls);
    let params = json!([{"votePubkey": there.vote_accounts[0].to_string(), "delinquentSlotDistance": 5}]);
    assert_eq!(
        gateway.call("getVoteAccounts", params).send().await.cache_status(),
        "fwd=miss; stored",
        "another distance is another question"
    );
}
