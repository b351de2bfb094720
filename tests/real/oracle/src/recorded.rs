//! The recorded answers of a real node (`tests/fixtures/recorded`). They judge the judge: what the node's crates write
//! here is what that node wrote. Their accounts and blocks are also input for the gateway.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use solana_account::Account;
use solana_account_decoder::{UiAccount, UiAccountEncoding};
use solana_transaction_status::ConfirmedBlock;

use crate::accounts::{self, AccountShape};
use crate::blocks::{self, BlockShape};

/// What the recordings hold.
#[derive(Default)]
pub struct Recorded {
    pub blocks: Vec<ConfirmedBlock>,
    /// Each account once, by address.
    pub accounts: BTreeMap<String, Account>,
    /// The answers that the node's crates wrote again, byte for byte.
    pub reproduced: usize,
    /// The jsonParsed accounts whose amounts depend on the node's clock.
    pub timed: usize,
}

/// Accounts of these mints have amounts that grow with the node's clock, or whose scale changes with it. The recordings
/// do not tell the clock.
const TIMED: [&str; 2] = ["interestBearingConfig", "scaledUiAmountConfig"];

pub fn read() -> Result<Recorded, String> {
    let mut recorded = Recorded::default();
    for file in ["getBlock", "getBlock-large", "epochs"] {
        read_blocks(&load(file)?, &mut recorded)?;
    }
    for file in ["getAccountInfo", "getAccountInfo-large"] {
        read_accounts(&load(file)?, &mut recorded)?;
    }
    Ok(recorded)
}

/// Adds the blocks of a folder. Each file has a node's answer to getBlock in base64 with rewards, or its result alone.
pub fn add_blocks(folder: &str, recorded: &mut Recorded) -> Result<(), String> {
    let failed =
        |path: &std::path::Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let files = std::fs::read_dir(folder).map_err(|error| failed(folder.as_ref(), &error))?;
    for file in files {
        let path = file.map_err(|error| failed(folder.as_ref(), &error))?.path();
        let text = std::fs::read(&path).map_err(|error| failed(&path, &error))?;
        let answer: Value = serde_json::from_slice(&text).map_err(|error| failed(&path, &error))?;
        let block = blocks::read(answer.get("result").unwrap_or(&answer));
        recorded.blocks.push(block.ok_or_else(|| failed(&path, &"no block in base64 with rewards"))?);
    }
    Ok(())
}

/// Returns the recorded lines by group. Lines without a group are left out.
fn load(file: &str) -> Result<Vec<Vec<Line>>, String> {
    let path = format!("{}/../../fixtures/recorded/{file}.jsonl.zst", env!("CARGO_MANIFEST_DIR"));
    let packed = std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let text = zstd::decode_all(&packed[..]).map_err(|error| format!("{path}: {error}"))?;
    let text = String::from_utf8(text).map_err(|error| format!("{path}: {error}"))?;
    let mut groups: Vec<Vec<Line>> = Vec::new();
    let mut places = HashMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).map_err(|error| format!("{path}: {error}"))?;
        let Some(group) = line["group"].as_str() else { continue };
        let place = *places.entry(group.to_owned()).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(Line {
            name: line["name"].to_string(),
            method: line["request"]["method"].as_str().unwrap_or_default().to_owned(),
            params: line["request"]["params"].clone(),
            response: line["response"].as_str().unwrap_or_default().to_owned(),
        });
    }
    Ok(groups)
}

struct Line {
    name: String,
    method: String,
    params: Value,
    response: String,
}

impl Line {
    fn member(&self, name: &str) -> Value {
        let answer: Value = serde_json::from_str(&self.response).expect("a recorded answer is JSON");
        answer[name].clone()
    }

    fn config(&self) -> Value {
        match &self.params[1] {
            Value::String(encoding) => serde_json::json!({ "encoding": encoding }),
            config => config.clone(),
        }
    }

    /// Compares the recorded answer with what the node's crates write.
    fn check(&self, written: Result<Value, Value>) -> Result<(), String> {
        let (member, written) = match written {
            Ok(result) => ("result", result),
            Err(error) => ("error", error),
        };
        let expected = format!("{{\"jsonrpc\":\"2.0\",\"{member}\":{written},\"id\":1}}\n");
        if expected == self.response {
            Ok(())
        } else {
            Err(format!("{}: {}, here {expected}", self.name, self.response))
        }
    }
}

fn read_blocks(groups: &[Vec<Line>], recorded: &mut Recorded) -> Result<(), String> {
    for group in groups {
        let lines = || group.iter().filter(|line| line.method == "getBlock");
        let is_whole = |line: &&Line| {
            let shape = BlockShape::of_config(&line.config());
            let text = serde_json::to_string(&shape.encoding).expect("a name");
            text == "\"base64\""
                && shape.rewards
                && line.member("result")["transactions"][0]["transaction"].is_array()
        };
        let Some(whole) = lines().find(is_whole) else { continue };
        let Some(block) = blocks::read(&whole.member("result")) else {
            return Err(format!("{} cannot be read", whole.name));
        };
        for line in lines() {
            line.check(BlockShape::of_config(&line.config()).result(&block))?;
            recorded.reproduced += 1;
        }
        recorded.blocks.push(block);
    }
    Ok(())
}

fn read_accounts(groups: &[Vec<Line>], recorded: &mut Recorded) -> Result<(), String> {
    // First the data, because the decimals of a token account are those of another account.
    let mut held: Vec<(&Line, Account)> = Vec::new();
    for group in groups {
        let mut wholes = HashMap::new();
        for line in group.iter().filter(|line| line.method == "getAccountInfo") {
            let shape = AccountShape::of_config(&line.config());
            if matches!(shape.encoding, UiAccountEncoding::Base64) && shape.slice.is_none() {
                let account: Option<UiAccount> =
                    serde_json::from_value(line.member("result")["value"].clone()).ok();
                if let Some(account) = account.and_then(|account| account.to_account()) {
                    recorded.accounts.insert(key_of(line), account.clone());
                    wholes.insert(key_of(line), account);
                }
            }
        }
        held.extend(group.iter().filter_map(|line| Some((line, wholes.get(&key_of(line))?.clone()))));
    }
    let mints = recorded.accounts.clone();
    for (line, account) in held {
        let mint = |key: &solana_pubkey::Pubkey| mints.get(&key.to_string()).cloned();
        let shape = AccountShape::of_config(&line.config());
        let key = key_of(line).parse().expect("a recorded address");
        let value = shape.value(&key, &account, mint);
        let recorded_value = line.member("result");
        if matches!(shape.encoding, UiAccountEncoding::JsonParsed) && is_timed(&account, &mints) {
            recorded.timed += 1;
            continue;
        }
        let agrees = match &value {
            Ok(value) => accounts::same(&recorded_value["value"], value),
            Err(error) => line.member("error") == *error,
        };
        if !agrees {
            return Err(format!("{}: {}, here {value:?}", line.name, line.response));
        }
        recorded.reproduced += 1;
    }
    Ok(())
}

fn key_of(line: &Line) -> String {
    line.params[0].as_str().unwrap_or_default().to_owned()
}

fn is_timed(account: &Account, mints: &BTreeMap<String, Account>) -> bool {
    let Some(mint) = accounts::token_mint(account).and_then(|key| mints.get(&key.to_string()).cloned())
    else {
        return false;
    };
    let shape = AccountShape { encoding: UiAccountEncoding::JsonParsed, slice: None };
    let parsed = shape.value(&solana_pubkey::Pubkey::default(), &mint, |_| None);
    let extensions = parsed.map(|value| value["data"]["parsed"]["info"]["extensions"].to_string());
    extensions.is_ok_and(|text| TIMED.iter().any(|name| text.contains(name)))
}
