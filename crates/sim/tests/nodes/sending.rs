//! Tests of transactions that clients send: what a node refuses, and where a landed transaction shows.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use slotfront_rpc::methods::{Commitment, Pubkey};
use slotfront_sim::{Cluster, Node};

use super::{call, cluster, result};

/// The lamports of the developer's account.
const FUNDS: u64 = 1_000_000_000_000;

/// A client with a key pair.
pub(crate) struct Client(Ed25519KeyPair);

impl Client {
    /// Returns the owner of the cluster's funded account.
    pub(crate) fn funded(cluster: &Cluster) -> Self {
        let secret = cluster.funded_key();
        Self(Ed25519KeyPair::from_seed_and_public_key(&secret[..32], &secret[32..]).unwrap())
    }

    fn poor(seed: u8) -> Self {
        Self(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap())
    }

    pub(crate) fn address(&self) -> Pubkey {
        Pubkey(self.0.public_key().as_ref().try_into().unwrap())
    }

    /// Returns a transaction with one instruction: its program, its accounts after the payer, and its data. `v0` is
    /// true for a version 0 message.
    fn transaction(
        &self,
        v0: bool,
        blockhash: &str,
        program: Pubkey,
        accounts: &[Pubkey],
        data: &[u8],
    ) -> Vec<u8> {
        let keys: Vec<u8> =
            [self.address()].iter().chain(accounts).chain([&program]).flat_map(|key| key.0).collect();
        let others = u8::try_from(accounts.len()).unwrap();
        let mut message = if v0 { vec![0x80] } else { vec![] };
        message.extend([1, 0, 1, others + 2]);
        message.extend(keys);
        message.extend(Pubkey::parse(blockhash).unwrap().0);
        message.extend([1, others + 1]);
        message.push(others + u8::from(others > 0));
        message.extend(u8::from(others == 0)..=others);
        message.push(u8::try_from(data.len()).unwrap());
        message.extend(data);
        if v0 {
            message.push(0);
        }
        [&[1], self.0.sign(&message).as_ref(), &message].concat()
    }

    /// Returns a transfer of lamports.
    pub(crate) fn transfer(&self, blockhash: &str, to: Pubkey, lamports: u64) -> Vec<u8> {
        let data = [&2u32.to_le_bytes()[..], &lamports.to_le_bytes()].concat();
        self.transaction(lamports % 2 == 1, blockhash, Pubkey([0; 32]), &[to], &data)
    }
}

pub(crate) fn blockhash(node: &Node) -> String {
    let latest = result(node, "getLatestBlockhash", &json!([{ "commitment": "processed" }]));
    latest["value"]["blockhash"].as_str().unwrap().to_owned()
}

/// Sends a transaction, and returns the whole answer. `options` are added to its config.
pub(crate) fn send(node: &Node, wire: &[u8], options: &Value) -> Value {
    let mut config = json!({ "encoding": "base64", "preflightCommitment": "processed" });
    config.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    call(node, "sendTransaction", &json!([BASE64.encode(wire), config]))
}

fn status(node: &Node, signature: &Value, search: bool) -> Value {
    let params = json!([[signature], { "searchTransactionHistory": search }]);
    result(node, "getSignatureStatuses", &params)["value"][0].take()
}

fn balance(node: &Node, key: Pubkey) -> u64 {
    let params = json!([key.to_string(), { "commitment": "processed" }]);
    result(node, "getBalance", &params)["value"].as_u64().unwrap()
}

/// Checks that sending fails before it reaches the cluster, with this error.
#[track_caller]
fn refused(node: &Node, wire: &[u8], err: &Value, words: &str) {
    let error = send(node, wire, &json!({}))["error"].take();
    assert_eq!(error["code"], -32_002, "{error}");
    assert_eq!(error["message"], format!("Transaction simulation failed: {words}"));
    assert_eq!(error["data"]["err"], *err);
}

#[test]
fn a_transfer_lands_once_and_shows_on_every_node() {
    let cluster = cluster();
    let (client, to) = (Client::funded(&cluster), Client::poor(9).address());
    let [node, other, behind] = [0, 1, 2].map(|at| cluster.node(at));
    behind.set_lag(20);
    let mut sent = vec![];
    for lamports in [5_000_000, 5_000_001] {
        let wire = client.transfer(&blockhash(node), to, lamports);
        let signature = send(node, &wire, &json!({}))["result"].take();
        assert_eq!(send(other, &wire, &json!({}))["result"], signature, "it waits once");
        assert_eq!(status(node, &signature, true), json!(null));
        sent.push((wire, signature));
    }
    assert_eq!(balance(node, to), 0, "nothing changes before the next block");
    let slot = cluster.step_to_block();
    for node in [node, other] {
        assert_eq!(balance(node, to), 10_000_001);
        assert_eq!(balance(node, client.address()), FUNDS - 10_000_001 - 2 * 5_000);
    }
    assert_eq!(balance(behind, to), 0);
    for (wire, signature) in &sent {
        refused(node, wire, &json!("AlreadyProcessed"), "This transaction has already been processed");
        assert_eq!(send(node, wire, &json!({ "skipPreflight": true }))["result"], *signature);
        let expected = json!({ "confirmationStatus": "processed", "confirmations": 0, "err": null, "slot": slot,
            "status": { "Ok": null } });
        assert_eq!(status(other, signature, false), expected);
        assert_eq!(status(behind, signature, true), json!(null));
    }
    cluster.step_by(45);
    assert_eq!(balance(behind, to), 10_000_001, "a node behind gets there, and nothing landed twice");
    for (encoding, place) in
        [("base64", "/transaction/0"), ("json", ""), ("jsonParsed", ""), ("base58", "/transaction/0")]
    {
        let config = json!({ "encoding": encoding, "maxSupportedTransactionVersion": 0 });
        let block = result(node, "getBlock", &json!([slot, config]));
        for (wire, signature) in &sent {
            let found = result(other, "getTransaction", &json!([signature, config]));
            assert_eq!((&found["slot"], &found["blockTime"]), (&json!(slot), &block["blockTime"]));
            let shown =
                block["transactions"].as_array().unwrap().iter().find(|shown| {
                    shown["meta"] == found["meta"] && shown["transaction"] == found["transaction"]
                });
            assert_eq!(shown.unwrap()["version"], found["version"], "{encoding}");
            match encoding {
                "base64" => assert_eq!(found.pointer(place).unwrap(), &json!(BASE64.encode(wire))),
                "base58" => {
                    assert_eq!(found.pointer(place).unwrap(), &json!(bs58::encode(wire).into_string()));
                }
                _ => assert_eq!(found["transaction"]["signatures"], json!([signature])),
            }
            assert_eq!(found["meta"]["fee"], 5_000);
        }
    }
    let final_status = status(node, &sent[0].1, false);
    assert_eq!(final_status["confirmationStatus"], "finalized");
    assert_eq!(final_status["confirmations"], json!(null));
    cluster.step_by(350);
    assert_eq!(status(node, &sent[0].1, false), json!(null), "300 blocks later only a search finds it");
    assert_eq!(status(node, &sent[0].1, true)["slot"], slot);
}

#[test]
fn blockhashes_expire_at_their_last_valid_height() {
    let cluster = cluster();
    let (client, node) = (Client::funded(&cluster), cluster.node(0));
    let to = Client::poor(9).address();
    let latest = result(node, "getLatestBlockhash", &json!([{ "commitment": "processed" }]))["value"].take();
    let hash = latest["blockhash"].as_str().unwrap();
    let height = || result(node, "getBlockHeight", &json!([{ "commitment": "processed" }]));
    let is_valid =
        || result(node, "isBlockhashValid", &json!([hash, { "commitment": "processed" }]))["value"].take();
    while height() != latest["lastValidBlockHeight"] {
        assert_eq!(is_valid(), true);
        cluster.step_to_block();
    }
    let signature = send(node, &client.transfer(hash, to, 1_000_000), &json!({}))["result"].take();
    let slot = cluster.step_to_block();
    assert_eq!(status(node, &signature, false)["slot"], slot, "the block after that height is the last");
    assert_eq!(is_valid(), false);
    let late = client.transfer(hash, to, 2_000_000);
    refused(node, &late, &json!("BlockhashNotFound"), "Blockhash not found");
    let dropped = send(node, &late, &json!({ "skipPreflight": true }))["result"].take();
    cluster.step_to_block();
    assert_eq!(status(node, &dropped, true), json!(null));
    // A node behind does not know a new blockhash yet.
    cluster.node(1).set_lag(40);
    let fresh = client.transfer(&blockhash(node), to, 3_000_000);
    refused(cluster.node(1), &fresh, &json!("BlockhashNotFound"), "Blockhash not found");
    let minimum = json!({ "minContextSlot": cluster.slot(Commitment::Processed) });
    assert_eq!(send(cluster.node(1), &fresh, &minimum)["error"]["code"], -32_016);
    assert!(send(node, &fresh, &minimum)["result"].is_string());
}

#[test]
fn transactions_fail_as_on_a_node() {
    let cluster = cluster();
    let (client, node) = (Client::funded(&cluster), cluster.node(0));
    let (hash, to) = (blockhash(node), Client::poor(9).address());
    let instruction = |at: u64, reason: Value| json!({ "InstructionError": [at, reason] });
    let clock = Pubkey::parse("SysvarC1ock11111111111111111111111111111111").unwrap();
    let memo = Pubkey::parse("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr").unwrap();
    let system = Pubkey([0; 32]);
    let of =
        |program, accounts: &[Pubkey], data: &[u8]| client.transaction(false, &hash, program, accounts, data);
    for (wire, err, words) in [
        (
            client.transfer(&hash, to, FUNDS),
            instruction(0, json!({ "Custom": 1 })),
            "custom program error: 0x1",
        ),
        (
            client.transfer(&hash, clock, 9),
            instruction(0, json!("ReadonlyLamportChange")),
            "instruction changed the balance of a read-only account",
        ),
        (
            of(system, &[to], &[99]),
            instruction(0, json!("InvalidInstructionData")),
            "invalid instruction data",
        ),
        (of(memo, &[], &[0xff]), instruction(0, json!("InvalidInstructionData")), "invalid instruction data"),
        (
            of(memo, &[to], b"hi"),
            instruction(0, json!("MissingRequiredSignature")),
            "missing required signature for instruction",
        ),
        (of(to, &[], b"hi"), instruction(0, json!("UnsupportedProgramId")), "unsupported program id"),
    ] {
        refused(node, &wire, &err, &format!("Error processing Instruction 0: {words}"));
        // Without preflight it lands, pays its fee and does nothing else.
        let before = balance(node, client.address());
        let signature = send(node, &wire, &json!({ "skipPreflight": true }))["result"].take();
        cluster.step_to_block();
        assert_eq!(status(node, &signature, false)["err"], err);
        assert_eq!(status(node, &signature, false)["status"], json!({ "Err": err }));
        assert_eq!(balance(node, client.address()), before - 5_000);
    }
    let words = "Transaction results in an account (1) with insufficient funds for rent";
    let rent = json!({ "InsufficientFundsForRent": { "account_index": 1 } });
    refused(node, &client.transfer(&hash, to, 890_879), &rent, words);
    let words = "Attempt to debit an account but found no record of a prior credit.";
    refused(node, &Client::poor(3).transfer(&hash, to, 1), &json!("AccountNotFound"), words);
    let mut forged = client.transfer(&hash, to, 1_000_000);
    forged[5] ^= 1;
    refused(node, &forged, &json!("SignatureFailure"), "Transaction did not pass signature verification");
    let forged = send(node, &forged, &json!({ "skipPreflight": true }))["result"].take();
    cluster.step_to_block();
    assert_eq!(status(node, &forged, true), json!(null), "no block takes a forged transaction");
}

#[test]
fn an_emptied_account_is_gone() {
    let cluster = cluster();
    let (node, client) = (cluster.node(0), Client::poor(5));
    let address = client.address();
    for _ in 0..2 {
        // Equal airdrops are two transactions.
        assert!(call(node, "requestAirdrop", &json!([address.to_string(), 1_000_000]))["result"].is_string());
    }
    cluster.step_to_block();
    assert_eq!(balance(node, address), 2_000_000);
    let all = client.transfer(&blockhash(node), Client::funded(&cluster).address(), 2_000_000 - 5_000);
    assert!(send(node, &all, &json!({}))["result"].is_string());
    let slot = cluster.step_to_block();
    assert!(cluster.account_at(&address, slot - 1).is_some());
    let config = json!({ "commitment": "processed" });
    for method in ["getAccountInfo", "getBalance"] {
        let value = result(node, method, &json!([address.to_string(), config]))["value"].take();
        assert_eq!(value, if method == "getBalance" { json!(0) } else { json!(null) });
    }
    assert_eq!(
        result(node, "getMultipleAccounts", &json!([[address.to_string()], config]))["value"],
        json!([null])
    );
}

#[test]
fn malformed_transactions_are_refused_in_a_nodes_words() {
    let cluster = cluster();
    let (node, client) = (cluster.node(0), Client::funded(&cluster));
    let good = client.transfer(&blockhash(node), Client::poor(9).address(), 1_000_000);
    let name = "solana_transaction::versioned::VersionedTransaction";
    let base64 = json!({ "encoding": "base64" });
    for (params, words) in [
        (json!([]), "`params` should have at least 1 argument(s)".to_owned()),
        (json!([5]), "Invalid params: invalid type: integer `5`, expected a string.".to_owned()),
        (json!(["!!!", base64]), "invalid base64 encoding: InvalidByte(0, 33)".to_owned()),
        (json!(["+"]), "invalid base58 encoding: InvalidCharacter { character: '+', index: 0 }".to_owned()),
        (
            json!(["AQ==", base64]),
            format!("failed to deserialize {name}: io error: failed to fill whole buffer"),
        ),
        (
            json!([BASE64.encode([0; 1300]), base64]),
            format!("base64 encoded {name} too large: 1736 bytes (max: encoded/raw 1644/1232)"),
        ),
        (
            json!([BASE64.encode([0; 1233]), base64]),
            format!("decoded {name} too large: 1233 bytes (max: 1232 bytes)"),
        ),
        (
            json!(["1".repeat(1700)]),
            format!("base58 encoded {name} too large: 1700 bytes (max: encoded/raw 1683/1232)"),
        ),
        (
            json!([BASE64.encode([1; 300]), base64]),
            "invalid transaction: Transaction failed to sanitize accounts offsets correctly".to_owned(),
        ),
        (
            json!(["11", { "encoding": "jsonParsed" }]),
            "unsupported encoding: jsonParsed. Supported encodings: base58, base64".to_owned(),
        ),
    ] {
        let error = call(node, "sendTransaction", &params)["error"].take();
        assert_eq!(error, json!({ "code": -32_602, "message": words }), "{params}");
    }
    let shorter = |len: usize| call(node, "sendTransaction", &json!([BASE64.encode(&good[..len]), base64]));
    assert!((0..good.len()).all(|len| shorter(len)["error"]["code"] == -32_602));
    let base58 = bs58::encode(&good).into_string();
    let config = json!({ "preflightCommitment": "processed", "maxRetries": 0 });
    assert!(
        call(node, "sendTransaction", &json!([base58, config]))["result"].is_string(),
        "base58 is the default"
    );
}

#[test]
fn a_simulation_runs_and_changes_nothing() {
    let cluster = cluster();
    let (node, client) = (cluster.node(0), Client::funded(&cluster));
    let to = Client::poor(9).address();
    let simulate = |wire: &[u8], options: Value| {
        let mut config = json!({ "encoding": "base64", "commitment": "processed" });
        config.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        result(node, "simulateTransaction", &json!([BASE64.encode(wire), config]))["value"].take()
    };
    let good = client.transfer(&blockhash(node), to, 1_000_000);
    let value = simulate(&good, json!({ "sigVerify": true }));
    assert_eq!(
        (&value["err"], &value["fee"], &value["unitsConsumed"]),
        (&json!(null), &json!(5_000), &json!(150))
    );
    assert_eq!(value["postBalances"], json!([FUNDS - 1_005_000, 1_000_000, 1]));
    assert_eq!(value["logs"].as_array().unwrap().len(), 2);
    let old = client.transfer(&to.to_string(), to, 1_000_000);
    assert_eq!(simulate(&old, json!({}))["err"], "BlockhashNotFound");
    let replaced = simulate(&old, json!({ "replaceRecentBlockhash": true }));
    assert_eq!(
        (&replaced["err"], &replaced["replacementBlockhash"]["blockhash"]),
        (&json!(null), &json!(blockhash(node)))
    );
    cluster.step_to_block();
    assert_eq!(balance(node, client.address()), FUNDS);
}
