//! The simulated cluster (`crates/sim`): its accounts and its blocks in every shape.

use serde_json::{Value, json};
use slotfront_rpc::methods::Pubkey;
use slotfront_sim::{Cluster, Node, Settings};
use solana_account::Account;

use crate::accounts::{self, AccountShape};
use crate::blocks::{self, BlockShape};
use crate::draw::{Draw, shuffled};

/// The number of blocks that are judged in every shape.
const BLOCKS: usize = 24;

/// Creates a cluster whose slots do not pass.
pub fn still(seed: u64) -> std::sync::Arc<Cluster> {
    Cluster::new(Settings { seed, nodes: 1, slot_time: None, ..Settings::default() })
}

/// Returns the number of accounts and blocks that were compared, each in one shape.
pub fn judge(seed: u64) -> Result<usize, String> {
    let cluster = still(seed);
    let node = cluster.node(0);
    Ok(judge_accounts(&cluster, node)? + judge_blocks(&cluster, node, seed)?)
}

/// Returns an account of the cluster in the node's type.
pub fn account(cluster: &Cluster, key: &Pubkey, slot: u64) -> Option<Account> {
    let account = cluster.account_at(key, slot)?;
    Some(Account {
        lamports: account.lamports,
        data: account.data.to_vec(),
        owner: account.owner.0.into(),
        executable: account.executable,
        rent_epoch: account.rent_epoch,
    })
}

fn judge_accounts(cluster: &Cluster, node: &Node) -> Result<usize, String> {
    let mut compared = 0;
    for key in cluster.addresses() {
        let slot = node.slot(slotfront_rpc::methods::Commitment::Confirmed);
        let Some(held) = account(cluster, &key, slot) else { continue };
        let mint = |key: &solana_pubkey::Pubkey| account(cluster, &Pubkey(key.to_bytes()), slot);
        for shape in AccountShape::all(held.data.len()) {
            let ours = call(node, "getAccountInfo", &json!([key.to_string(), shape.config()]));
            let expected = shape.value(&key.0.into(), &held, mint);
            let agrees = match &expected {
                Ok(value) => accounts::same(&ours["result"]["value"], value),
                Err(error) => ours["error"] == *error,
            };
            if !agrees {
                return Err(format!("account {key} as {shape:?}: {ours}, node: {expected:?}"));
            }
            compared += 1;
        }
        if let Some(value) = accounts::balance(&held, mint) {
            let ours = call(
                node,
                "getTokenAccountBalance",
                &json!([key.to_string(), { "commitment": "confirmed" }]),
            );
            if ours["result"]["value"].to_string() != value.to_string() {
                return Err(format!("balance of {key}: {ours}, node: {value}"));
            }
            compared += 1;
        }
    }
    Ok(compared)
}

fn judge_blocks(cluster: &Cluster, node: &Node, seed: u64) -> Result<usize, String> {
    let mut compared = 0;
    let newest = node.slot(slotfront_rpc::methods::Commitment::Finalized);
    let slots = (Settings::default().first_slot..newest).filter(|slot| cluster.has_block(*slot));
    let examples = cluster.examples();
    // The blocks of special interest, and any others.
    let mut judged = vec![examples.block_with_v0];
    judged.extend(examples.legacy_block);
    judged.extend(slots.clone().find(|slot| *slot % 432_000 < 8));
    judged.extend(shuffled(&mut Draw::of_case(seed, 0), slots.collect()).into_iter().take(BLOCKS));
    for slot in judged {
        let whole = call(node, "getBlock", &json!([slot, BlockShape::WHOLE.config()]));
        let block =
            blocks::read(&whole["result"]).ok_or_else(|| format!("block {slot} cannot be read: {whole}"))?;
        for shape in BlockShape::all() {
            let ours = call(node, "getBlock", &json!([slot, shape.config()]));
            let (member, expected) = match shape.result(&block) {
                Ok(result) => ("result", result),
                Err(error) => ("error", error),
            };
            if ours[member].to_string() != expected.to_string() {
                return Err(format!("block {slot} as {shape:?}: {}, node: {expected}", ours[member]));
            }
            compared += 1;
        }
    }
    Ok(compared)
}

fn call(node: &Node, method: &str, params: &Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    serde_json::from_slice(&node.answer(body.as_bytes())).expect("a node answers in JSON")
}
