//! A loopback HTTP server that records requests. It stands in front of a node, or acts as a trace collector.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use slotfront::config::Secret;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

#[derive(Debug, Clone)]
pub struct TappedRequest {
    head: String,
    pub body: String,
}

impl TappedRequest {
    pub fn header(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }
}

/// Returns true if the connection is closed in place of an answer to this request, which has this number on it, from 1.
type Cut = fn(usize, &TappedRequest) -> bool;

/// A loopback HTTP server that records requests, and forwards them to a node or answers them itself. Clones
/// share the records.
#[derive(Clone)]
pub struct LoopbackTap {
    url: String,
    node: Arc<OnceLock<String>>,
    instead: Arc<OnceLock<(&'static str, Vec<u8>)>>,
    cut: Arc<OnceLock<Cut>>,
    seen: Arc<Mutex<Vec<TappedRequest>>>,
    /// The client that forwards requests, created once for all clones of this value. On a busy machine, creating a
    /// client takes longer than the timeout of a probe. After a timeout, the prober would open another connection.
    client: Arc<OnceLock<reqwest::Client>>,
}

impl LoopbackTap {
    /// Listens at a free port. Requests are answered with `{}` until [`Self::forward_to`] names a node.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let (node, instead, cut, seen, client) = Default::default();
        let tap = Self { url, node, instead, cut, seen, client };
        let (tasks, by) = (TaskTracker::new(), tap.clone());
        tasks.clone().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let by = by.clone();
                tasks.spawn(async move { by.serve(stream).await });
            }
        });
        tap
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn secret_url(&self) -> Secret {
        Secret::new(self.url.clone())
    }

    /// Returns the URL of the node behind the tap. Panics if there is none.
    pub fn node_url(&self) -> &str {
        self.node.get().expect("a tap in front of a node")
    }

    /// Forwards all later requests to the node at this URL. Panics on a second call.
    pub fn forward_to(&self, node: &str) {
        self.node.set(node.to_owned()).expect("a tap has one node");
    }

    /// Answers calls of `method` with `answer`, the bytes of a whole HTTP response, and does not forward
    /// them. Panics on a second call.
    pub fn answer_instead(&self, method: &'static str, answer: Vec<u8>) {
        self.instead.set((method, answer)).expect("a tap has one answer of its own");
    }

    /// Closes a connection, without an answer, when `cut` says so of a request and its number on that connection, from 1.
    /// Panics on a second call.
    pub fn close_at(&self, cut: Cut) {
        self.cut.set(cut).expect("a tap has one rule for its connections");
    }

    /// Returns the recorded requests whose bodies contain `words`.
    pub fn seen(&self, words: &str) -> Vec<TappedRequest> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|seen| seen.body.contains(words)).cloned().collect()
    }

    fn client(&self) -> &reqwest::Client {
        // On a kept connection, the client would send a request again that the node resets.
        let builder = || reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0);
        self.client.get_or_init(|| builder().build().expect("a client"))
    }

    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        for number in 1.. {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if stream.read_line(&mut head).await.ok()? == 0 {
                    return None;
                }
            }
            let mut seen = TappedRequest { head, body: String::new() };
            let mut body = vec![0; seen.header("content-length").first()?.parse().ok()?];
            stream.read_exact(&mut body).await.ok()?;
            seen.body = String::from_utf8(body.clone()).ok()?;
            let called = |method: &str| seen.body.contains(&format!("\"{method}\""));
            let instead = self.instead.get().filter(|(method, _)| called(method));
            let is_cut = self.cut.get().is_some_and(|cut| cut(number, &seen));
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
            if is_cut {
                return None;
            }
            if let Some((_, answer)) = instead {
                stream.write_all(answer).await.ok()?;
                continue;
            }
            let (status, answer) = match self.node.get() {
                Some(node) => {
                    let call = self.client().post(node).header("content-type", "application/json").body(body);
                    let answer = call.send().await.ok()?;
                    (answer.status().as_u16(), answer.bytes().await.ok()?.to_vec())
                }
                None => (200, b"{}".to_vec()),
            };
            let head = format!("HTTP/1.1 {status} -\r\ncontent-length: {}\r\n\r\n", answer.len());
            stream.write_all(&[head.into_bytes(), answer].concat()).await.ok()?;
        }
        None
    }
}
