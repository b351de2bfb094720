//! `solana-rpc-client`, unmodified, through slotfront: the eight methods in every commitment and encoding of the library.
//!
//! The program panics at the first answer that differs from the expected values in the environment variable
//! `SCENE`.

use serde_json::Value;
use solana_account_decoder_client_types::{UiAccountData, UiAccountEncoding, UiDataSliceConfig};
use solana_commitment_config::CommitmentConfig;
use solana_hash::Hash;
use solana_instruction::Instruction;
use solana_message::v0;
use solana_pubkey::Pubkey;
use solana_rpc_client::rpc_client::RpcClient;
use solana_rpc_client_api::client_error::{Error, ErrorKind};
use solana_rpc_client_api::config::{RpcAccountInfoConfig, RpcBlockConfig, RpcGetVoteAccountsConfig};
use solana_rpc_client_api::request::{RpcError, RpcRequest};
use solana_transaction_status_client_types::{TransactionDetails, UiTransactionEncoding};

const ACCOUNTS: [UiAccountEncoding; 4] = [
    UiAccountEncoding::Base58,
    UiAccountEncoding::Base64,
    UiAccountEncoding::Base64Zstd,
    UiAccountEncoding::JsonParsed,
];
const TRANSACTIONS: [UiTransactionEncoding; 4] = [
    UiTransactionEncoding::Json,
    UiTransactionEncoding::JsonParsed,
    UiTransactionEncoding::Base58,
    UiTransactionEncoding::Base64,
];

struct Scene(Value);

impl Scene {
    fn text(&self, path: &str) -> &str {
        self.0.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("no {path}"))
    }

    fn number(&self, path: &str) -> u64 {
        self.0.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path}"))
    }

    fn key(&self, path: &str) -> Pubkey {
        self.text(path).parse().expect("an address")
    }

    fn head(&self) -> Vec<u8> {
        serde_json::from_value(self.0["mint"]["head"].clone()).expect("bytes")
    }
}

fn commitments() -> [CommitmentConfig; 3] {
    [CommitmentConfig::processed(), CommitmentConfig::confirmed(), CommitmentConfig::finalized()]
}

/// Returns the code and message of a JSON-RPC error.
#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>) -> (i64, String) {
    match outcome.expect_err("refused").kind() {
        ErrorKind::RpcError(RpcError::RpcResponseError { code, message, .. }) => (*code, message.clone()),
        other => panic!("no JSON-RPC error: {other:?}"),
    }
}

#[track_caller]
fn status<T: std::fmt::Debug>(outcome: Result<T, Error>) -> u16 {
    match outcome.expect_err("refused").kind() {
        ErrorKind::Reqwest(error) => error.status().expect("a status").as_u16(),
        other => panic!("no HTTP error: {other:?}"),
    }
}

fn main() {
    let scene = Scene(serde_json::from_str(&std::env::var("SCENE").expect("SCENE")).expect("JSON"));
    for (name, part) in [
        ("accounts", accounts as fn(&Scene)),
        ("blocks", blocks),
        ("votes, balances and fees", votes_balances_and_fees),
        ("samples and nodes", samples_and_nodes),
        ("simulations, and writes", simulations),
        ("an unknown key", unknown_key),
        ("over the rate", over_the_rate),
    ] {
        part(&scene);
        println!("ok: {name}");
    }
}

fn client(scene: &Scene, commitment: CommitmentConfig) -> RpcClient {
    RpcClient::new_with_commitment(scene.text("/url").to_owned(), commitment)
}

fn accounts(scene: &Scene) {
    let [mint, absent, wallet] = ["/mint/address", "/absent", "/wallet"].map(|path| scene.key(path));
    for commitment in commitments() {
        let client = client(scene, commitment);
        let account = client.get_account(&mint).expect("a mint");
        assert_eq!(account.owner.to_string(), scene.text("/mint/owner"));
        assert_eq!(
            (account.data.len() as u64, account.lamports),
            (scene.number("/mint/space"), scene.number("/mint/lamports"))
        );
        assert_eq!(account.data[..4], scene.head());
        let answer = client.get_account_with_commitment(&absent, commitment).expect("an answer");
        assert!(answer.value.is_none() && answer.context.slot > scene.number("/block/slot"));
        for encoding in ACCOUNTS {
            let config = RpcAccountInfoConfig {
                encoding: Some(encoding),
                commitment: Some(commitment),
                ..Default::default()
            };
            let account = client
                .get_ui_account_with_config(&mint, config.clone())
                .expect("a mint")
                .value
                .expect("a mint");
            assert_eq!(account.owner, scene.text("/mint/owner"));
            match account.data {
                UiAccountData::Json(parsed) => {
                    assert_eq!(parsed.parsed["info"]["decimals"], scene.number("/tokenAccount/decimals"));
                }
                ref data => assert_eq!(data.decode().expect("decodes")[..4], scene.head(), "{encoding:?}"),
            }
            let several = client
                .get_multiple_ui_accounts_with_config(&[mint, absent, wallet], config)
                .expect("a list")
                .value;
            let owners: Vec<_> =
                several.iter().map(|one| one.as_ref().map(|one| one.owner.as_str())).collect();
            assert_eq!(
                owners,
                [Some(scene.text("/mint/owner")), None, Some("11111111111111111111111111111111")]
            );
        }
        let slice = RpcAccountInfoConfig {
            encoding: Some(UiAccountEncoding::Base64),
            data_slice: Some(UiDataSliceConfig { offset: 1, length: 3 }),
            commitment: Some(commitment),
            min_context_slot: Some(scene.number("/block/slot")),
        };
        let part =
            client.get_ui_account_with_config(&mint, slice.clone()).expect("a slice").value.expect("a mint");
        assert_eq!(part.data.decode().expect("decodes"), scene.head()[1..]);
        let far =
            RpcAccountInfoConfig { min_context_slot: Some(scene.number("/block/slot") + 1_000_000), ..slice };
        // The library replaces every error of this call by one of its own.
        let far = client.get_ui_account_with_config(&mint, far).expect_err("refused").to_string();
        assert!(far.contains("-32016: Minimum context slot has not been reached"), "{far}");
        assert_eq!(
            client.get_multiple_accounts(&[wallet, absent]).expect("a list").iter().flatten().count(),
            1
        );
    }
}

fn blocks(scene: &Scene) {
    let slot = scene.number("/block/slot");
    let transactions = usize::try_from(scene.number("/block/transactions")).expect("a count");
    for commitment in &commitments()[1..] {
        let client = client(scene, *commitment);
        let config = |encoding, details| RpcBlockConfig {
            encoding: Some(encoding),
            transaction_details: Some(details),
            commitment: Some(*commitment),
            max_supported_transaction_version: Some(0),
            rewards: Some(true),
        };
        for encoding in TRANSACTIONS {
            let full = client
                .get_block_with_config(slot, config(encoding, TransactionDetails::Full))
                .expect("a block");
            assert_eq!(
                (full.blockhash.as_str(), full.parent_slot),
                (scene.text("/block/blockhash"), scene.number("/block/parentSlot"))
            );
            assert_eq!(full.block_height, Some(scene.number("/block/blockHeight")));
            assert_eq!(full.rewards.expect("rewards").len() as u64, scene.number("/block/rewards"));
            let list = full.transactions.expect("transactions");
            assert_eq!(list.len(), transactions);
            assert_eq!(list[0].meta.as_ref().expect("meta").fee, scene.number("/block/fee"));
            if matches!(encoding, UiTransactionEncoding::Base58 | UiTransactionEncoding::Base64) {
                let first = list[0].transaction.decode().expect("a transaction");
                assert_eq!(first.signatures[0].to_string(), scene.text("/block/signature"));
            }
        }
        let signatures = client
            .get_block_with_config(slot, config(UiTransactionEncoding::Json, TransactionDetails::Signatures));
        assert_eq!(
            signatures.expect("a block").signatures.expect("signatures")[0],
            scene.text("/block/signature")
        );
        let accounts = client
            .get_block_with_config(slot, config(UiTransactionEncoding::Json, TransactionDetails::Accounts));
        assert_eq!(accounts.expect("a block").transactions.expect("transactions").len(), transactions);
        let none =
            client.get_block_with_config(slot, config(UiTransactionEncoding::Json, TransactionDetails::None));
        assert!(none.expect("a block").transactions.is_none());
        // This call sends an encoding only, and no highest transaction version, so the block is refused.
        assert_eq!(refused(client.get_block(slot)).0, -32015);
        let skipped = config(UiTransactionEncoding::Json, TransactionDetails::None);
        assert!(
            [-32007, -32009]
                .contains(&refused(client.get_block_with_config(scene.number("/skipped"), skipped)).0)
        );
    }
}

fn votes_balances_and_fees(scene: &Scene) {
    let (token, wallet, mint) =
        (scene.key("/tokenAccount/address"), scene.key("/wallet"), scene.key("/mint/address"));
    for commitment in commitments() {
        let client = client(scene, commitment);
        let votes = client.get_vote_accounts().expect("votes");
        let counts = (votes.current.len() as u64, votes.delinquent.len() as u64);
        assert_eq!(counts, (scene.number("/votes/current"), scene.number("/votes/delinquent")));
        let one = RpcGetVoteAccountsConfig {
            vote_pubkey: Some(scene.text("/votes/one").to_owned()),
            commitment: Some(commitment),
            ..Default::default()
        };
        let one = client.get_vote_accounts_with_config(one).expect("votes");
        assert_eq!((one.current.len(), one.current[0].vote_pubkey.as_str()), (1, scene.text("/votes/one")));
        let balance = client.get_token_account_balance(&token).expect("a balance");
        assert_eq!(u64::from(balance.decimals), scene.number("/tokenAccount/decimals"));
        let amount: f64 = balance.amount.parse().expect("a number");
        assert_eq!(balance.ui_amount, Some(amount / 10f64.powi(i32::from(balance.decimals))));
        let fresh = client
            .get_latest_blockhash_with_commitment(CommitmentConfig::finalized())
            .expect("a blockhash")
            .0;
        let message = |blockhash| {
            let call = Instruction::new_with_bytes(mint, &[1], Vec::new());
            v0::Message::try_compile(&wallet, &[call], &[], blockhash).expect("a message")
        };
        assert_eq!(client.get_fee_for_message(&message(fresh)).expect("a fee"), 5000);
        let stale = client.get_fee_for_message(&message(Hash::default())).expect_err("no fee");
        assert!(stale.to_string().contains("Invalid blockhash"), "{stale:?}");
        assert_eq!(refused(client.get_token_account_balance(&wallet)).0, -32602);
    }
}

fn samples_and_nodes(scene: &Scene) {
    let client = client(scene, CommitmentConfig::default());
    let samples = client.get_recent_performance_samples(Some(2)).expect("samples");
    assert!((1..=2).contains(&samples.len()) && samples[0].num_transactions > 0);
    let nodes = client.get_cluster_nodes().expect("nodes");
    assert_eq!(nodes.len() as u64, scene.number("/nodes"));
    assert!(nodes.iter().all(|node| node.rpc.is_some()));
}

fn simulations(scene: &Scene) {
    let client = client(scene, CommitmentConfig::confirmed());
    assert!(client.get_slot().expect("a slot") > scene.number("/block/slot"));
    assert!(client.get_balance(&scene.key("/wallet")).expect("a balance") > 0);
    assert!(client.get_version().expect("a version").solana_core.starts_with(|c: char| c.is_ascii_digit()));
    client.get_health().expect("healthy");
    let (code, message) =
        refused(client.send::<String>(RpcRequest::SendTransaction, serde_json::json!(["AQ=="])));
    assert!(code == -32601 && message.contains("sendTransaction writes"), "{code} {message}");
}

fn unknown_key(scene: &Scene) {
    assert_eq!(status(RpcClient::new(scene.text("/unknown").to_owned()).get_cluster_nodes()), 401);
}

/// Checks that the library waits for the time in `Retry-After`, and then retries.
fn over_the_rate(scene: &Scene) {
    let slow = RpcClient::new(scene.text("/slow/rust").to_owned());
    for _ in 0..5 {
        assert_eq!(slow.get_cluster_nodes().expect("nodes").len() as u64, scene.number("/nodes"));
    }
}
