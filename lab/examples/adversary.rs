//! A client of a gateway whose other clients pay, for `lab/confirm.py --adversary`: he does all that might delay what they
//! are told.
//!
//! He joins and leaves the watch of each signature, which the lines of the input name, watches accounts and asks for others,
//! searches the history for signatures that nobody has sent, and is refused again and again. His load is bounded, so that a
//! gateway of one core can carry it. At the end of the input he prints how often he has done each.

#![expect(clippy::print_stdout, reason = "the caller reads the output")]

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use slotfront_lab::wire::{BoxError, Connections};
use slotfront_rpc::methods::{Pubkey, Signature};
use slotfront_testkit::TestSocket;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The newest signatures, which he joins and leaves.
const NEWEST: usize = 32;
/// The sockets on which he does so, and the pause between two joins on each: 250 joins a second in all.
const JOINERS: u32 = 4;
const JOIN_EVERY: Duration = Duration::from_millis(16);
/// The accounts that he watches at each commitment, and the pause between two reads of others.
const ACCOUNTS: u64 = 100;
const READ_EVERY: Duration = Duration::from_millis(4);
/// The searches under way at once, the signatures of each, and the pause between two.
const SEARCHERS: u64 = 4;
const SEARCHED: u64 = 256;
const SEARCH_EVERY: Duration = Duration::from_millis(100);
/// The pause between two watches of a signature that nobody has sent.
const UNKNOWN_EVERY: Duration = Duration::from_millis(20);
/// The pause before a socket that was closed is opened again.
const REOPEN_AFTER: Duration = Duration::from_millis(100);
const CLOCK: &str = "SysvarC1ock11111111111111111111111111111111";

#[derive(Parser)]
struct Options {
    /// The port of the gateway
    port: u16,
    /// The path of its calls and WebSockets, with the adversary's key
    path: String,
}

#[derive(Default)]
struct Counts {
    joined: AtomicU64,
    watched: AtomicU64,
    read: AtomicU64,
    searched: AtomicU64,
    refused: AtomicU64,
    closed: AtomicU64,
}

struct Adversary {
    options: Options,
    calls: Connections,
    newest: Mutex<VecDeque<String>>,
    counts: Counts,
    last: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Adversary {
    /// Returns bytes that nobody has had yet.
    fn fresh<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [9; N];
        bytes[..8].copy_from_slice(&self.last.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        bytes
    }

    fn unknown(&self) -> String {
        Signature(self.fresh()).to_string()
    }

    async fn socket(&self) -> TestSocket {
        loop {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.options.port));
            if let Ok(stream) = TcpStream::connect(address).await
                && let Ok(socket) = TestSocket::open(stream, &self.options.path, "").await
            {
                return socket;
            }
            count(&self.counts.closed);
            sleep(REOPEN_AFTER).await;
        }
    }

    /// Makes a call on `socket`, which is opened again if it is closed. Returns the id of a subscription.
    async fn call(&self, socket: &mut TestSocket, method: &str, params: Value) -> Option<u64> {
        let Ok(answer) = socket.try_call(method, params).await else {
            count(&self.counts.closed);
            sleep(REOPEN_AFTER).await;
            *socket = self.socket().await;
            return None;
        };
        if answer.get("error").is_some() {
            count(&self.counts.refused);
        }
        socket.take_notified();
        answer["result"].as_u64()
    }

    async fn post(&self, method: &str, params: Value) {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        // A refusal is an answer, too.
        let _ = self.calls.post(&body.to_string()).await;
    }

    async fn join_and_leave(&self) {
        let (mut socket, mut round) = (self.socket().await, 0);
        let mut pace = paced(JOIN_EVERY);
        loop {
            pace.tick().await;
            round += 1;
            let signature = {
                let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
                newest.get(round % newest.len().max(1)).cloned()
            };
            let Some(signature) = signature else { continue };
            let watch = json!([signature, {"commitment": "confirmed"}]);
            if let Some(id) = self.call(&mut socket, "signatureSubscribe", watch).await {
                count(&self.counts.joined);
                // A landed one has ended already, so that this is refused.
                self.call(&mut socket, "signatureUnsubscribe", json!([id])).await;
            }
        }
    }

    async fn watch_accounts(&self) {
        let mut socket = self.socket().await;
        loop {
            for commitment in ["processed", "confirmed", "finalized"] {
                for i in 0..ACCOUNTS {
                    let (key, encoding) = match i {
                        0 => (CLOCK.to_owned(), "base64"),
                        1 => (CLOCK.to_owned(), "jsonParsed"),
                        2 => (CLOCK.to_owned(), "base64+zstd"),
                        _ => (Pubkey(self.fresh()).to_string(), "base64"),
                    };
                    let form = json!([key, {"commitment": commitment, "encoding": encoding}]);
                    if self.call(&mut socket, "accountSubscribe", form).await.is_some() {
                        count(&self.counts.watched);
                    }
                }
            }
            while socket.next().await.is_ok() {}
            count(&self.counts.closed);
            sleep(REOPEN_AFTER).await;
            socket = self.socket().await;
        }
    }

    async fn read_accounts(&self) {
        let mut pace = paced(READ_EVERY);
        loop {
            pace.tick().await;
            let key = Pubkey(self.fresh()).to_string();
            self.post("getAccountInfo", json!([key, {"commitment": "confirmed", "encoding": "base64"}]))
                .await;
            count(&self.counts.read);
        }
    }

    async fn search(&self) {
        let mut pace = paced(SEARCH_EVERY);
        loop {
            pace.tick().await;
            let signatures: Vec<_> = (0..SEARCHED).map(|_| self.unknown()).collect();
            self.post("getSignatureStatuses", json!([signatures, {"searchTransactionHistory": true}])).await;
            count(&self.counts.searched);
        }
    }

    async fn watch_unknown(&self) {
        let mut socket = self.socket().await;
        let mut pace = paced(UNKNOWN_EVERY);
        loop {
            pace.tick().await;
            let watch = json!([self.unknown(), {"commitment": "confirmed"}]);
            if self.call(&mut socket, "signatureSubscribe", watch).await.is_some() {
                count(&self.counts.searched);
            }
        }
    }

    async fn get_refused(&self) {
        let mut socket = self.socket().await;
        loop {
            self.call(&mut socket, "logsSubscribe", json!(["all"])).await;
            self.call(&mut socket, "signatureSubscribe", json!(["none"])).await;
        }
    }
}

fn paced(every: Duration) -> tokio::time::Interval {
    let mut pace = interval(every);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let target = format!("http://127.0.0.1:{}{}", options.port, options.path).parse()?;
    let adversary = Arc::new(Adversary {
        options,
        calls: Connections::new(target, 16),
        newest: Mutex::default(),
        counts: Counts::default(),
        last: AtomicU64::new(1),
    });
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    // Each kind of work has a task of its own, so that none waits for another one.
    macro_rules! spawn {
        ($work:ident) => {{
            let (adversary, stop) = (Arc::clone(&adversary), stop.clone());
            tasks.spawn(async move { stop.run_until_cancelled(adversary.$work()).await });
        }};
    }
    for _ in 0..JOINERS {
        spawn!(join_and_leave);
    }
    for _ in 0..SEARCHERS {
        spawn!(search);
    }
    spawn!(watch_accounts);
    spawn!(read_accounts);
    spawn!(watch_unknown);
    spawn!(get_refused);
    let of_input = Arc::clone(&adversary);
    let read = move || -> Result<(), BoxError> {
        for line in std::io::stdin().lines() {
            let mut newest = of_input.newest.lock().unwrap_or_else(PoisonError::into_inner);
            newest.push_front(line?);
            newest.truncate(NEWEST);
        }
        Ok(())
    };
    tokio::task::spawn_blocking(read).await??;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    let Counts { joined, watched, read, searched, refused, closed } = &adversary.counts;
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} joins and leaves, {} accounts watched and {} read, {} searches, {} refusals, {} closed sockets",
        of(joined),
        of(watched),
        of(read),
        of(searched),
        of(refused),
        of(closed),
    );
    Ok(())
}
