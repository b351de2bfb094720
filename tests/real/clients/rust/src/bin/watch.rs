//! Watches an account, a program and signatures with `solana-pubsub-client`, unmodified. `WATCH` is JSON: the address `ws`,
//! the account, the program, the signatures, and the account's balances. Once all has been told, one line of JSON says what.

use std::time::Duration;

use serde_json::{Map, Value, json};
use solana_account_decoder_client_types::UiAccountEncoding;
use solana_commitment_config::CommitmentConfig;
use solana_pubkey::Pubkey;
use solana_pubsub_client::pubsub_client::PubsubClient;
use solana_rpc_client_api::config::{
    RpcAccountInfoConfig, RpcProgramAccountsConfig, RpcSignatureSubscribeConfig,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let watch: Value = serde_json::from_str(&std::env::var("WATCH").expect("WATCH is set")).expect("JSON");
    let text = |name: &str| watch[name].as_str().expect("a text").to_owned();
    let key = |name: &str| text(name).parse::<Pubkey>().expect("an address");
    let (ws, account, confirmed) = (text("ws"), key("account"), CommitmentConfig::confirmed());
    let last = watch["balances"].as_array().and_then(|all| all.last()?.as_u64()).expect("balances");
    let form = RpcAccountInfoConfig {
        encoding: Some(UiAccountEncoding::Base64),
        commitment: Some(confirmed),
        ..RpcAccountInfoConfig::default()
    };
    let (_a, accounts) =
        PubsubClient::account_subscribe(&ws, &account, Some(form.clone())).expect("accounts");
    let of_program = RpcProgramAccountsConfig { account_config: form, ..RpcProgramAccountsConfig::default() };
    let (_b, programs) =
        PubsubClient::program_subscribe(&ws, &key("program"), Some(of_program)).expect("programs");
    let at = RpcSignatureSubscribeConfig { commitment: Some(confirmed), enable_received_notification: None };
    let signatures: Vec<_> = watch["signatures"]
        .as_array()
        .expect("signatures")
        .iter()
        .map(|signature| {
            let signature = signature.as_str().expect("a text").to_owned();
            let parsed = signature.parse().expect("a signature");
            (
                signature,
                PubsubClient::signature_subscribe(&ws, &parsed, Some(at.clone())).expect("signatures"),
            )
        })
        .collect();

    let until_last = |next: &dyn Fn() -> Option<u64>| {
        let mut told = Vec::new();
        while told.last() != Some(&last) {
            told.extend(next());
        }
        told
    };
    let of_account =
        until_last(&|| Some(accounts.recv_timeout(PATIENCE).expect("a notification").value.lamports));
    let in_program = until_last(&|| {
        let told = programs.recv_timeout(PATIENCE).expect("a notification").value;
        (told.pubkey == account.to_string()).then_some(told.account.lamports)
    });
    let mut ends = Map::new();
    for (signature, (_of, told)) in &signatures {
        let end = told.recv_timeout(PATIENCE).expect("an end").value;
        let end = serde_json::to_value(end).expect("JSON");
        ends.insert(signature.clone(), end["err"].clone());
    }
    println!("{}", json!({"account": of_account, "program": in_program, "signatures": ends}));
    // The subscriptions would otherwise wait for their servers when they are dropped.
    std::process::exit(0);
}
