//! The nodes of one chain. Each node has a simulated network link with a delay and a bandwidth.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::Response;
use axum::routing::post;
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use slotfront_lab::mainnet::{self, Clock, Writes};
use slotfront_lab::wire::BoxError;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::TaskTracker;

/// The maximum number of bytes that a link sends in one piece.
const PIECE: usize = 16 * 1024;
/// The time by which a link may send bytes earlier than its bandwidth allows. It makes up for timers, which are
/// exact only to the millisecond.
const AHEAD: Duration = Duration::from_millis(2);

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long, value_delimiter = ',', required = true)]
    ports: Vec<u16>,
    #[arg(long, default_value_t = 2_000_000)]
    block_bytes: usize,
    /// The time of a round trip in milliseconds, half of it before and half after the node's work
    #[arg(long, default_value_t = 30)]
    delay_ms: u64,
    /// The additional time of a round trip for a block, in milliseconds
    #[arg(long, default_value_t = 0)]
    block_delay_ms: u64,
    /// The bandwidth of each node's link, in megabits per second
    #[arg(long, default_value_t = 1000)]
    megabits: u64,
    /// The content coding of blocks
    #[arg(long, value_enum, default_value_t = BlockCoding::Identity)]
    coding: BlockCoding,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BlockCoding {
    Identity,
    Gzip,
    Zstd,
}

impl BlockCoding {
    fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    fn encode(self, text: String) -> Vec<u8> {
        let done = "writing into memory succeeds";
        match self {
            Self::Identity => text.into_bytes(),
            Self::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(5));
                encoder.write_all(text.as_bytes()).expect(done);
                encoder.finish().expect(done)
            }
            Self::Zstd => zstd::encode_all(text.as_bytes(), 3).expect(done),
        }
    }
}

/// A node of the chain.
struct Node {
    clock: Clock,
    templates: Arc<[String]>,
    accounts: HashMap<String, Writes>,
    options: Arc<Options>,
    link: Mutex<Link>,
}

/// The network link of a node, and the counts of the node's answers.
struct Link {
    free_at: Instant,
    counts: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: String,
    params: Option<Value>,
}

/// Serves the nodes until the program is ended.
pub(crate) async fn serve(clock: Clock, options: Options) -> Result<(), BoxError> {
    let template = |number| mainnet::transactions(number, options.block_bytes);
    let templates: Arc<[String]> = (0..mainnet::TEMPLATES).map(template).collect();
    let options = Arc::new(options);
    let (tasks, mut served) = (TaskTracker::new(), Vec::new());
    for port in &options.ports {
        let node = Arc::new(Node {
            clock,
            templates: Arc::clone(&templates),
            accounts: mainnet::asked().into_iter().collect(),
            options: Arc::clone(&options),
            link: Mutex::new(Link { free_at: Instant::now(), counts: BTreeMap::new() }),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await?;
        let router = Router::new().fallback(post(answer)).with_state(node);
        served.push(tasks.spawn(async move { axum::serve(listener, router).await }));
    }
    for server in served {
        server.await??;
    }
    Ok(())
}

/// Answers one call.
async fn answer(State(node): State<Arc<Node>>, body: Bytes) -> Response {
    let Ok(Call { id, method, params }) = serde_json::from_slice::<Call<'_>>(&body) else {
        return Response::new(Body::from("not JSON"));
    };
    let params = params.unwrap_or_default();
    let is_block = method == "getBlock" && params[1]["transactionDetails"] == "accounts";
    let coding = if is_block { node.options.coding } else { BlockCoding::Identity };
    let delay = node.options.delay_ms + if is_block { node.options.block_delay_ms } else { 0 };
    let one_way = Duration::from_millis(if method == "counts" { 0 } else { delay / 2 });
    sleep(one_way).await;
    let member = match node.member(&method, &params) {
        Ok(result) => format!(r#""result":{result}"#),
        Err(error) => format!(r#""error":{error}"#),
    };
    let text = format!(r#"{{"jsonrpc":"2.0",{member},"id":{}}}"#, id.get());
    let encode = async {
        match coding {
            BlockCoding::Identity => text.into_bytes(),
            _ => tokio::task::spawn_blocking(move || coding.encode(text)).await.unwrap_or_default(),
        }
    };
    let (encoded, ()) = tokio::join!(encode, sleep(one_way));
    node.count(&method, 1);
    if is_block {
        node.count("block bytes", encoded.len() as u64);
    }
    let length = encoded.len();
    let mut response = Response::new(node.paced(encoded.into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(CONTENT_TYPE, "application/json; charset=utf-8".parse().expect("a valid header"));
    if coding != BlockCoding::Identity {
        headers.insert(CONTENT_ENCODING, coding.name().parse().expect("a valid header"));
    }
    response
}

impl Node {
    fn count(&self, what: &str, by: u64) {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        *link.counts.entry(what.to_owned()).or_default() += by;
    }

    /// Returns a body that is sent piece by piece, at the bandwidth of the node's link. All answers of a node
    /// share this link.
    fn paced(self: &Arc<Self>, mut text: Bytes) -> Body {
        let node = Arc::clone(self);
        let pieces =
            std::iter::from_fn(move || (!text.is_empty()).then(|| text.split_to(PIECE.min(text.len()))));
        Body::from_stream(stream::iter(pieces).then(move |piece| {
            let node = Arc::clone(&node);
            async move {
                sleep_until(node.sent_at(piece.len()) - AHEAD).await;
                Ok::<_, Infallible>(piece)
            }
        }))
    }

    /// Returns the time at which the link will have sent `bytes` more bytes, and counts the link as busy until
    /// then.
    fn sent_at(&self, bytes: usize) -> Instant {
        let took = Duration::from_micros(bytes as u64 * 8 / self.options.megabits);
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.free_at = link.free_at.max(Instant::now()) + took;
        link.free_at
    }

    /// Returns the result of a call as JSON text, or the error object of the call.
    fn member(&self, method: &str, params: &Value) -> Result<String, Value> {
        let newest = |config: &Value| {
            self.clock.newest(config["commitment"].as_str().unwrap_or("finalized"), mainnet::now_ms())
        };
        Ok(match method {
            "getHealth" => r#""ok""#.to_owned(),
            "getSlot" => newest(&params[0]).to_string(),
            "getVersion" => r#"{"feature-set":1,"solana-core":"4.1.0"}"#.to_owned(),
            "getGenesisHash" => json!(mainnet::blockhash(0)).to_string(),
            "getFirstAvailableBlock" => "0".to_owned(),
            "getEpochSchedule" => json!({
                "firstNormalEpoch": 0, "firstNormalSlot": 0, "leaderScheduleSlotOffset": mainnet::EPOCH,
                "slotsPerEpoch": mainnet::EPOCH, "warmup": false,
            })
            .to_string(),
            "getRecentPerformanceSamples" => {
                let slots = 60_000 / self.clock.slot_ms;
                json!([{ "numNonVoteTransactions": 1, "numSlots": slots, "numTransactions": 1,
                    "samplePeriodSecs": 60, "slot": newest(&Value::Null) }])
                .to_string()
            }
            "getBlocks" => {
                let (first, last) = (params[0].as_u64().unwrap_or(0), params[1].as_u64().unwrap_or(0));
                json!((first..=last.min(newest(&params[2]))).collect::<Vec<_>>()).to_string()
            }
            "getBlock" => self.block(params[0].as_u64().unwrap_or(0), &params[1], newest(&params[1]))?,
            "getAccountInfo" => self.account(&params[0], newest(&params[1])),
            "counts" => json!(self.link.lock().unwrap_or_else(PoisonError::into_inner).counts).to_string(),
            _ => return Err(json!({ "code": -32601, "message": "Method not found" })),
        })
    }

    fn block(&self, slot: u64, config: &Value, newest: u64) -> Result<String, Value> {
        if slot > newest {
            let message = format!("Block not available for slot {slot}");
            return Err(json!({ "code": -32004, "message": message }));
        }
        let head = mainnet::head(slot);
        let template = usize::try_from(slot % mainnet::TEMPLATES).expect("templates are few");
        Ok(match config["transactionDetails"].as_str() {
            Some("accounts") => format!("{head}{}]}}", self.templates[template]),
            _ => format!("{head}]}}"),
        })
    }

    /// Returns the result of getAccountInfo at `slot`. The balance of the account is the slot of the account's last
    /// write. The value is null for an address that callers do not request.
    fn account(&self, address: &Value, slot: u64) -> String {
        let writes = address.as_str().and_then(|address| self.accounts.get(address));
        let value = writes.map_or(Value::Null, |writes| {
            json!({
                "data": ["AQIDBAUGBwgJCgsMDQ4PEA==", "base64"], "executable": false,
                "lamports": writes.last(slot), "owner": mainnet::blockhash(1),
                "rentEpoch": u64::MAX, "space": 16,
            })
        });
        json!({ "context": { "apiVersion": "4.1.0", "slot": slot }, "value": value }).to_string()
    }
}
