//! Everything that slotfront makes of what it holds: the gateway is in front of a node that writes accounts and blocks with
//! the node's crates. It is asked for each of them in every shape, in random order, and every answer has to be the
//! node's, byte for byte, whether the gateway fetched it or made it from another shape.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use slotfront::config::Secret;
use slotfront_rpc::methods::Commitment;
use slotfront_sim::Node;
use slotfront_testkit::{TestCluster, TestGateway};
use solana_account::Account;
use solana_transaction_status::ConfirmedBlock;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::accounts::{self, AccountShape};
use crate::blocks::BlockShape;
use crate::draw::{Draw, shuffled};
use crate::newer::News;
use crate::recorded::Recorded;
use crate::{cluster, made};

/// The number of random accounts and of random blocks. Half of these blocks are of a newer node.
const MADE: usize = 32;

/// The length in bytes up to which an account is asked for in every shape.
const SHORT: usize = 5_000;

/// The methods whose answers are made from what is stored for other calls.
const DERIVED: [&str; 3] = ["getAccountInfo", "getBlock", "getMultipleAccounts"];

/// An address without an account.
const ABSENT: &str = "Absent1111111111111111111111111111111111111";

/// The gateway, and the node behind it.
struct Judge<'a> {
    gateway: &'a TestGateway,
    node: &'a JudgedNode,
    /// The number of answers that were compared.
    compared: usize,
    /// The number of these answers that the gateway made from another shape, by method.
    derived: BTreeMap<String, usize>,
}

/// The accounts and blocks that the node has. It answers every other call as a simulated node does.
struct JudgedNode {
    accounts: BTreeMap<String, Account>,
    blocks: BTreeMap<u64, (ConfirmedBlock, Option<News>)>,
    /// The slots at finalized and at confirmed, which stand still.
    slots: [u64; 2],
    others: Arc<Node>,
}

/// Returns what was compared.
pub async fn judge(seed: u64, recorded: &Recorded) -> Result<String, String> {
    let draw = &mut Draw::of_case(seed, 0);
    let cluster = TestCluster::serve(cluster::still(seed)).await;
    let others = Arc::clone(cluster.node(0));
    let slots = [Commitment::Finalized, Commitment::Confirmed].map(|commitment| others.slot(commitment));
    let mut node = JudgedNode { accounts: recorded.accounts.clone(), blocks: BTreeMap::new(), slots, others };
    let held: Vec<Account> =
        recorded.accounts.values().filter(|account| account.data.len() <= SHORT).cloned().collect();
    for _ in 0..MADE {
        let account = made::account(draw, &held);
        node.accounts.insert(solana_pubkey::Pubkey::from(draw.array::<32>()).to_string(), account);
    }
    let mut final_slots = (slots[0] - 130..slots[0]).rev().filter(|slot| cluster.has_block(*slot));
    for block in &recorded.blocks {
        let slot = final_slots.next().ok_or("more blocks than the cluster has final slots")?;
        node.blocks.insert(slot, (block.clone(), None));
    }
    for slot in final_slots.take(MADE) {
        let news = draw.once_in(2).then(|| *draw.pick(&News::ALL));
        node.blocks.insert(slot, (made::block(draw, slot), news));
    }
    let node = Arc::new(node);
    let url = serve(Arc::clone(&node)).await.map_err(|error| error.to_string())?;
    let gateway = TestGateway::builder().cluster(&cluster);
    let gateway = gateway.config(|config| config.upstreams[0].url = Secret::new(url)).start().await;
    let mut judge = Judge { gateway: &gateway, node: &node, compared: 0, derived: BTreeMap::new() };
    judge.blocks(draw).await?;
    judge.accounts(draw).await?;
    let Judge { compared, derived, .. } = judge;
    if let Some(method) = DERIVED.iter().find(|method| !derived.contains_key(**method)) {
        return Err(format!("no answer to {method} was derived"));
    }
    Ok(format!("{compared} answers (of which were derived: {derived:?})"))
}

impl Judge<'_> {
    async fn blocks(&mut self, draw: &mut Draw) -> Result<(), String> {
        for slot in self.node.blocks.keys() {
            for shape in shuffled(draw, BlockShape::all()) {
                self.call("getBlock", &json!([slot, shape.config()])).await?;
            }
        }
        Ok(())
    }

    async fn accounts(&mut self, draw: &mut Draw) -> Result<(), String> {
        let node = self.node;
        let keys: Vec<&String> = node.accounts.keys().collect();
        for (key, account) in &node.accounts {
            let is_long = account.data.len() > SHORT;
            let balance_at = draw.below(8);
            for (at, shape) in shuffled(draw, AccountShape::all(account.data.len())).into_iter().enumerate() {
                if at == balance_at && node.balance(key).is_some() {
                    self.call("getTokenAccountBalance", &json!([key, { "commitment": "confirmed" }])).await?;
                }
                // Long accounts have no forms of their own, and take long in base58 and zstd.
                if is_long && at > 8 {
                    break;
                }
                if draw.once_in(4) && !is_long {
                    let list = [key, *draw.pick(&keys), ABSENT];
                    self.call("getMultipleAccounts", &json!([list, shape.config()])).await?;
                } else {
                    self.call("getAccountInfo", &json!([key, shape.config()])).await?;
                }
            }
        }
        Ok(())
    }

    /// Makes a call, and compares its answer with the node's.
    async fn call(&mut self, method: &str, params: &Value) -> Result<(), String> {
        let reply = self.gateway.call(method, params.clone()).send().await;
        self.compared += 1;
        if reply.is_derived() {
            *self.derived.entry(method.to_owned()).or_default() += 1;
        }
        let expected = self.node.answer(method, params).expect("something that the node has");
        let text = answer_text(&expected, &json!(1));
        let agrees = match &expected {
            Ok(expected) if params[1]["encoding"] == "base64+zstd" => {
                let (ours, node) = (&reply.json()["result"]["value"], &expected["value"]);
                match (ours, node) {
                    (Value::Array(ours), Value::Array(node)) => {
                        ours.len() == node.len()
                            && ours.iter().zip(node).all(|(ours, node)| accounts::same(ours, node))
                    }
                    _ => accounts::same(ours, node),
                }
            }
            _ => reply.text == text,
        };
        if agrees {
            return Ok(());
        }
        Err(format!("{method} {params} ({}): {}", reply.cache_status(), difference(&reply.text, &text)))
    }
}

impl JudgedNode {
    fn account(&self, key: &solana_pubkey::Pubkey) -> Option<Account> {
        self.accounts.get(&key.to_string()).cloned()
    }

    fn balance(&self, key: &str) -> Option<Value> {
        accounts::balance(self.accounts.get(key)?, |mint| self.account(mint))
    }

    /// Answers a call about what this node has. `None` for every other call.
    fn answer(&self, method: &str, params: &Value) -> Option<Result<Value, Value>> {
        match method {
            "getBlock" => {
                let (block, news) = self.blocks.get(&params[0].as_u64()?)?;
                let shape = BlockShape::of_config(&params[1]);
                Some(shape.result(block).and_then(|mut result| {
                    news.map_or(Ok(()), |news| news.change(shape, &mut result))?;
                    Ok(result)
                }))
            }
            "getAccountInfo" => {
                let key = params[0].as_str().filter(|key| self.accounts.contains_key(*key))?;
                let value = self.value(key, &params[1]);
                Some(value.map(|value| self.contextual(&params[1], &value)))
            }
            "getMultipleAccounts" => {
                let keys: Vec<&str> = params[0].as_array()?.iter().filter_map(Value::as_str).collect();
                let values: Result<Vec<Value>, Value> =
                    keys.iter().map(|key| self.value(key, &params[1])).collect();
                Some(values.map(|values| self.contextual(&params[1], &values.into())))
            }
            "getTokenAccountBalance" => {
                let balance = self.balance(params[0].as_str()?)?;
                Some(Ok(self.contextual(&params[1], &balance)))
            }
            _ => None,
        }
    }

    fn value(&self, key: &str, config: &Value) -> Result<Value, Value> {
        let Some(account) = self.accounts.get(key) else { return Ok(Value::Null) };
        let key = key.parse().expect("an address");
        AccountShape::of_config(config).value(&key, account, |mint| self.account(mint))
    }

    fn contextual(&self, config: &Value, value: &Value) -> Value {
        let slot = self.slots[usize::from(config["commitment"] == "confirmed")];
        json!({ "context": { "apiVersion": "4.0.0", "slot": slot }, "value": value })
    }

    fn reply(&self, body: &[u8]) -> Vec<u8> {
        let call: Value = serde_json::from_slice(body).unwrap_or_default();
        match self.answer(call["method"].as_str().unwrap_or_default(), &call["params"]) {
            Some(answer) => answer_text(&answer, &call["id"]).into_bytes(),
            None => self.others.answer(body),
        }
    }
}

fn answer_text(answer: &Result<Value, Value>, id: &Value) -> String {
    let (member, value) = match answer {
        Ok(result) => ("result", result),
        Err(error) => ("error", error),
    };
    format!("{{\"jsonrpc\":\"2.0\",\"{member}\":{value},\"id\":{id}}}\n")
}

/// Returns the first place where the texts differ, with what surrounds it.
fn difference(ours: &str, node: &str) -> String {
    let at = ours.bytes().zip(node.bytes()).take_while(|(ours, node)| ours == node).count();
    let around = |text: &str| {
        String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(60)..(at + 60).min(text.len())])
            .into_owned()
    };
    format!("{:?}, node: {:?}", around(ours), around(node))
}

/// Serves the node at a free port, and returns its URL.
async fn serve(node: Arc<JudgedNode>) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream, Arc::clone(&node)));
        }
    });
    Ok(url)
}

async fn serve_connection(stream: TcpStream, node: Arc<JudgedNode>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let answer = node.reply(&body);
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all(&[head.as_bytes(), &answer].concat()).await.ok()?;
    }
}
