//! Pays with `solana-rpc-client` and `solana-pubsub-client`, unmodified, while the payer is watched in every way. The
//! libraries get the addresses `url` and `ws` of the environment variable `PAY`, and nothing else. Prints one line of
//! JSON: what each subscription and each read has shown of the payment.

use std::time::Duration;

use serde_json::{Value, json};
use solana_commitment_config::CommitmentConfig;
use solana_keypair::Keypair;
use solana_pubsub_client::pubsub_client::PubsubClient;
use solana_rpc_client::rpc_client::RpcClient;
use solana_rpc_client_api::config::{
    RpcAccountInfoConfig, RpcProgramAccountsConfig, RpcSignatureSubscribeConfig, RpcTransactionConfig,
    RpcTransactionLogsConfig, RpcTransactionLogsFilter,
};
use solana_signer::Signer;
use solana_transaction::Transaction;

const PATIENCE: Duration = Duration::from_secs(60);
const LAMPORTS: u64 = 5_000_000;

fn main() {
    let pay: Value = serde_json::from_str(&std::env::var("PAY").expect("PAY is set")).expect("JSON");
    let address = |name: &str| pay[name].as_str().expect("an address").to_owned();
    let (ws, confirmed) = (address("ws"), CommitmentConfig::confirmed());
    let client = RpcClient::new_with_timeout_and_commitment(address("url"), PATIENCE, confirmed);
    let (payer, payee) = (Keypair::new(), Keypair::new().pubkey());
    let airdrop = client.request_airdrop(&payer.pubkey(), 1_000_000_000).expect("an airdrop");
    client.poll_for_signature(&airdrop).expect("the airdrop lands");

    let form = RpcAccountInfoConfig { commitment: Some(confirmed), ..RpcAccountInfoConfig::default() };
    let (_a, accounts) =
        PubsubClient::account_subscribe(&ws, &payer.pubkey(), Some(form.clone())).expect("accounts");
    let mentions = RpcTransactionLogsFilter::Mentions(vec![payer.pubkey().to_string()]);
    let at = RpcTransactionLogsConfig { commitment: Some(confirmed) };
    let (_b, logs) = PubsubClient::logs_subscribe(&ws, mentions, at).expect("logs");
    let of_program = RpcProgramAccountsConfig { account_config: form, ..RpcProgramAccountsConfig::default() };
    let system = "11111111111111111111111111111111".parse().expect("a program");
    let (_c, programs) = PubsubClient::program_subscribe(&ws, &system, Some(of_program)).expect("programs");
    let (_d, slots) = PubsubClient::slot_subscribe(&ws).expect("slots");

    let transfer = solana_system_interface::instruction::transfer(&payer.pubkey(), &payee, LAMPORTS);
    let blockhash = client.get_latest_blockhash().expect("a blockhash");
    let paid = Transaction::new_signed_with_payer(&[transfer], Some(&payer.pubkey()), &[&payer], blockhash);
    let signature = paid.signatures[0];
    let watch = RpcSignatureSubscribeConfig {
        commitment: Some(confirmed),
        enable_received_notification: Some(false),
    };
    let (_e, signatures) =
        PubsubClient::signature_subscribe(&ws, &signature, Some(watch)).expect("signatures");
    client.send_and_confirm_transaction(&paid).expect("the payment is confirmed");

    let of_payer = std::iter::repeat_with(|| programs.recv_timeout(PATIENCE).expect("a notification"))
        .any(|seen| seen.value.pubkey == payer.pubkey().to_string());
    let status = signatures.recv_timeout(PATIENCE).expect("the signature's notification").value;
    let read = RpcTransactionConfig { commitment: Some(confirmed), ..RpcTransactionConfig::default() };
    let transaction = client.get_transaction_with_config(&signature, read).expect("the transaction");
    let seen = json!({
        "signature": serde_json::to_value(status).expect("JSON"),
        "account": accounts.recv_timeout(PATIENCE).expect("the account's notification").value.lamports,
        "logs": logs.recv_timeout(PATIENCE).expect("the logs").value.signature == signature.to_string(),
        "program": of_payer,
        "slot": slots.recv_timeout(PATIENCE).expect("a slot").slot,
        "balance": client.get_balance(&payee).expect("a balance"),
        "transaction": transaction.slot,
    });
    println!("{seen}");
    // The subscriptions would otherwise wait for their servers when they are dropped.
    std::process::exit(0);
}
