//! A simulated cluster, and the WebSockets of the clients of the gateway in front of it.
//!
//! The program serves the nodes, says so with the line `serving`, and wants a line of input before each of its stages:
//!
//! 1. It opens connections that do nothing, and closes them at the next line.
//! 2. Clients watch one account that each block writes. At the next line begins a bare fan-out: the server `fanout` of
//!    `yardsticks` sends the same text to as many clients.
//! 3. Clients watch different accounts, which each block writes. One client more reads nothing.
//!
//! A stage prints its name when it is ready to be measured, and its figures, a name and a value in each line, at its end.
//! Times are in microseconds. They begin when a node gets the call for the account, when the bare server gets the text,
//! and, in the last stage, when the slot is confirmed. They end when the clients have read the whole frame.

#![expect(clippy::print_stdout, reason = "the caller reads the output")]

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Parser;
use slotfront_lab::wire::BoxError;
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};
use slotfront_sim::{Cluster, PacedAccounts, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const SLOT_TIME: Duration = Duration::from_millis(400);
/// The time within which connections that were opened must answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// The handshakes that are under way at once.
const HANDSHAKES: usize = 64;

#[derive(Parser)]
struct Options {
    /// The port of the gateway
    port: u16,
    /// The path of the gateway's WebSockets
    path: String,
    /// The port of the bare fan-out
    #[arg(long)]
    bare: u16,
    /// The ports of the nodes
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<u16>,
    /// The number of connections that do nothing
    #[arg(long, default_value_t = 10_000)]
    idle: usize,
    /// The number of clients that watch one account
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// The number of clients that watch different accounts
    #[arg(long, default_value_t = 10_000)]
    clients: usize,
    /// The number of accounts that each block writes
    #[arg(long, default_value_t = 1_000)]
    accounts: u64,
    /// The duration of each stage in seconds
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// A WebSocket that sends one message, and then only reads.
struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    async fn open(stream: TcpStream, path: &str) -> Result<Self, BoxError> {
        stream.set_nodelay(true)?;
        let mut client = Self { stream, read: Vec::new() };
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        client.stream.write_all(head.as_bytes()).await?;
        while !client.read.windows(4).any(|part| part == b"\r\n\r\n") {
            client.more().await?;
        }
        let end = client.read.windows(4).position(|part| part == b"\r\n\r\n").map_or(0, |at| at + 4);
        if !client.read.starts_with(b"HTTP/1.1 101") {
            return Err(String::from_utf8_lossy(&client.read).into());
        }
        client.read.drain(..end);
        Ok(client)
    }

    async fn more(&mut self) -> Result<(), BoxError> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => Err("the connection ended".into()),
            _ => Ok(()),
        }
    }

    /// Sends a text of at most 65,535 bytes. The mask is 0.
    async fn send(&mut self, text: &str) -> Result<(), BoxError> {
        let mut frame = vec![0x81, 0xfe];
        frame.extend(u16::try_from(text.len())?.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        Ok(self.stream.write_all(&frame).await?)
    }

    /// Returns the next text, and answers pings.
    async fn text(&mut self) -> Result<String, BoxError> {
        loop {
            let head = self.read.get(..2).map(|head| (head[0] & 15, usize::from(head[1])));
            let extended = |from: usize, to: usize| {
                let bytes = self.read.get(from..to)?;
                Some(bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
            };
            let payload = match head {
                Some((_, 127)) => extended(2, 10).map(|length| (10, length)),
                Some((_, 126)) => extended(2, 4).map(|length| (4, length)),
                Some((_, length)) => Some((2, length)),
                None => None,
            };
            match (head, payload) {
                (Some((kind, _)), Some((start, length))) if self.read.len() >= start + length => {
                    let text = String::from_utf8_lossy(&self.read[start..start + length]).into_owned();
                    self.read.drain(..start + length);
                    match kind {
                        1 => return Ok(text),
                        8 => return Err("closed".into()),
                        9 => self.stream.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await?,
                        _ => {}
                    }
                }
                _ => self.more().await?,
            }
        }
    }
}

/// Opens connections, some at once, and sends each the message of its number.
async fn open(
    port: u16,
    path: &str,
    number: usize,
    message: impl Fn(usize) -> Option<String>,
) -> Result<Vec<Client>, BoxError> {
    use futures_util::{StreamExt as _, TryStreamExt as _};
    futures_util::stream::iter(0..number)
        .map(|i| {
            let message = message(i);
            async move {
                let opened = async {
                    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
                    let mut client = Client::open(stream, path).await?;
                    if let Some(message) = message {
                        client.send(&message).await?;
                        // The answer.
                        client.text().await?;
                    }
                    Ok(client)
                };
                tokio::time::timeout(PATIENCE, opened).await?
            }
        })
        .buffered(HANDSHAKES)
        .try_collect()
        .await
}

/// When each slot began, and when each notification of it arrived.
#[derive(Default)]
struct Arrivals {
    began: HashMap<Slot, Instant>,
    arrived: BTreeMap<Slot, Vec<Instant>>,
}

type Shared = Arc<Mutex<Arrivals>>;

fn lock(arrivals: &Shared) -> MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Arrivals {
    /// Returns the times from the beginning of a slot to its notifications. Slots whose notifications have not reached
    /// all `clients` are left out: the first and the last.
    fn complete(&self, clients: usize) -> Vec<Vec<Duration>> {
        let of_slot = |(slot, arrived): (&Slot, &Vec<Instant>)| {
            let began = self.began.get(slot)?;
            (arrived.len() >= clients).then(|| arrived.iter().map(|at| at.duration_since(*began)).collect())
        };
        self.arrived.iter().filter_map(of_slot).collect()
    }
}

fn watch(clients: Vec<Client>, arrivals: &Shared, stop: &CancellationToken) -> TaskTracker {
    let tasks = TaskTracker::new();
    for mut client in clients {
        let (arrivals, stop) = (Arc::clone(arrivals), stop.clone());
        tasks.spawn(async move {
            let read = async {
                loop {
                    let text = client.text().await?;
                    let at = Instant::now();
                    if let Some(slot) = slot(&text) {
                        lock(&arrivals).arrived.entry(slot).or_default().push(at);
                    }
                }
            };
            let read: Option<Result<(), BoxError>> = stop.run_until_cancelled(read).await;
            if let Some(Err(error)) = read {
                println!("# a client: {error}");
            }
        });
    }
    tasks.close();
    tasks
}

fn slot(text: &str) -> Option<Slot> {
    let rest = text.split_once(r#""slot":"#)?.1;
    rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}

fn subscription(account: &Pubkey) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"accountSubscribe","params":["{account}",{{"commitment":"confirmed","encoding":"base64"}}]}}"#
    )
}

fn print_times(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    for part in [50, 99] {
        let at = times.get(times.len() * part / 100).copied().unwrap_or_default();
        println!("{name}-p{part} {}", at.as_micros());
    }
}

fn account_calls(cluster: &Cluster) -> u64 {
    let methods = ["getAccountInfo", "getMultipleAccounts"];
    cluster.nodes().iter().flat_map(|node| methods.map(|method| node.calls(method))).sum()
}

async fn next_line() -> Result<(), BoxError> {
    Ok(tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await?.map(drop)?)
}

/// Lets `clients` watch for the time of a stage, and prints what it cost. Returns the times of each slot whose
/// notifications have reached all of them.
async fn measure(
    options: &Options,
    cluster: &Cluster,
    clients: Vec<Client>,
    arrivals: &Shared,
) -> Result<Vec<Vec<Duration>>, BoxError> {
    println!("watching");
    let (count, stop) = (clients.len(), CancellationToken::new());
    let tasks = watch(clients, arrivals, &stop);
    let (before, from) = (account_calls(cluster), cluster.slot(Commitment::Confirmed));
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    let slots = cluster.slot(Commitment::Confirmed) - from;
    println!("slots {slots}\ncalls {}", account_calls(cluster) - before);
    println!("watched");
    next_line().await?;
    stop.cancel();
    tasks.wait().await;
    let complete = lock(arrivals).complete(count);
    println!("complete-slots {}", complete.len());
    Ok(complete)
}

/// Clients that watch one account. Returns the text of a notification, and prints the times to the last client.
async fn watch_one(options: &Options, cluster: &Arc<Cluster>, account: &Pubkey) -> Result<String, BoxError> {
    let arrivals = Shared::default();
    for node in cluster.nodes() {
        let (arrivals, of) = (Arc::clone(&arrivals), Arc::clone(cluster));
        node.observe(move |call| {
            if matches!(&call.method[..], b"getAccountInfo" | b"getMultipleAccounts") {
                let slot = of.slot(Commitment::Confirmed);
                lock(&arrivals).began.entry(slot).or_insert_with(Instant::now);
            }
        });
    }
    let mut clients =
        open(options.port, &options.path, options.watchers, |_| Some(subscription(account))).await?;
    let text = clients[0].text().await?;
    let complete = measure(options, cluster, clients, &arrivals).await?;
    print_times("last-client", complete.into_iter().filter_map(|times| times.into_iter().max()).collect());
    Ok(text)
}

/// The same text to as many clients, from a server that does nothing else.
async fn fan_out_bare(options: &Options, text: &str) -> Result<(), BoxError> {
    let arrivals = Shared::default();
    let clients = open(options.bare, "/", options.watchers, |_| None).await?;
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, options.bare)).await?;
    let mut publisher = Client::open(stream, "/").await?;
    let number = slot(text).ok_or("a notification with a slot")?;
    let stop = CancellationToken::new();
    let tasks = watch(clients, &arrivals, &stop);
    let rounds = options.seconds * 1_000 / u64::try_from(SLOT_TIME.as_millis())?;
    for round in 0..rounds {
        let next = number + round;
        lock(&arrivals).began.insert(next, Instant::now());
        publisher.send(&text.replacen(&number.to_string(), &next.to_string(), 1)).await?;
        // The publisher gets the text, too.
        publisher.text().await?;
        tokio::time::sleep(SLOT_TIME).await;
    }
    stop.cancel();
    tasks.wait().await;
    let complete = lock(&arrivals).complete(options.watchers);
    println!("bare-rounds {}", complete.len());
    print_times(
        "bare-last-client",
        complete.into_iter().filter_map(|times| times.into_iter().max()).collect(),
    );
    Ok(())
}

/// Many clients, each of which watches one of many accounts, and one that reads nothing.
async fn watch_many(options: &Options, cluster: &Arc<Cluster>, accounts: &[Pubkey]) -> Result<(), BoxError> {
    let arrivals = Shared::default();
    let (stop, clock) = (CancellationToken::new(), TaskTracker::new());
    clock.spawn({
        let (arrivals, cluster, stop) = (Arc::clone(&arrivals), Arc::clone(cluster), stop.clone());
        async move {
            while !stop.is_cancelled() {
                let slot = cluster.slot(Commitment::Confirmed);
                lock(&arrivals).began.entry(slot).or_insert_with(Instant::now);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let narrow = TcpSocket::new_v4()?;
    narrow.set_recv_buffer_size(1)?;
    let narrow = narrow.connect((Ipv4Addr::LOCALHOST, options.port).into()).await?;
    let mut mute = Client::open(narrow, &options.path).await?;
    for account in accounts.iter().take(100) {
        mute.send(&subscription(account)).await?;
    }
    let message = |i: usize| Some(subscription(&accounts[i % accounts.len()]));
    let clients = open(options.port, &options.path, options.clients, message).await?;
    let complete = measure(options, cluster, clients, &arrivals).await?;
    stop.cancel();
    drop(mute);
    print_times("notification", complete.into_iter().flatten().collect());
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let mut listeners = Vec::new();
    for port in &options.nodes {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).await?);
    }
    let cluster = Cluster::new(Settings {
        nodes: options.nodes.len(),
        slot_time: Some(SLOT_TIME),
        skipped_per_mille: 0,
        paced_accounts: vec![PacedAccounts { accounts: options.accounts, every_slots: Some(1) }],
        ..Settings::default()
    });
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    Arc::clone(&cluster).serve(listeners, &tasks, stop.clone()).await;
    let accounts = cluster.paced_accounts().concat();
    println!("serving");
    next_line().await?;
    let idle = open(options.port, &options.path, options.idle, |_| None).await?;
    println!("opened");
    next_line().await?;
    drop(idle);
    let text = watch_one(&options, &cluster, &accounts[0]).await?;
    println!("bare");
    fan_out_bare(&options, &text).await?;
    watch_many(&options, &cluster, &accounts).await?;
    println!("done");
    stop.cancel();
    Ok(())
}
