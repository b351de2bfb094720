//! A loopback HTTP server that records requests: in front of a node, or as a trace collector.

use std::sync::{Arc, Mutex, OnceLock};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

/// One request: its head and its body.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    head: String,
    pub(crate) body: String,
}

impl Seen {
    /// Returns the values of a header.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    pub(crate) fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }
}

/// The recorded requests, and the address to which they are forwarded.
#[derive(Clone)]
pub(crate) struct Spy {
    pub(crate) url: String,
    /// The address that answers requests. Without it the answer is `{}`.
    pub(crate) node: Arc<OnceLock<String>>,
    /// A method, and the raw answer to its calls.
    pub(crate) instead: Arc<OnceLock<(&'static str, Vec<u8>)>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Created once. On a busy machine its creation takes longer than a probe waits, and a probe that times
    /// out opens another connection.
    client: Arc<OnceLock<reqwest::Client>>,
}

impl Spy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (node, instead, seen, client) = Default::default();
        let spy = Self { url, node, instead, seen, client };
        let (tasks, by) = (TaskTracker::new(), spy.clone());
        tasks.clone().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let by = by.clone();
                tasks.spawn(async move { by.serve(stream).await });
            }
        });
        spy
    }

    /// Returns the recorded requests whose bodies contain `words`.
    pub(crate) fn seen(&self, words: &str) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.body.contains(words)).cloned().collect()
    }

    fn client(&self) -> &reqwest::Client {
        self.client.get_or_init(|| reqwest::Client::builder().no_proxy().build().unwrap())
    }

    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if stream.read_line(&mut head).await.ok()? == 0 {
                    return None;
                }
            }
            let mut seen = Seen { head, body: String::new() };
            let mut body = vec![0; seen.header("content-length").first()?.parse().ok()?];
            stream.read_exact(&mut body).await.ok()?;
            seen.body = String::from_utf8(body.clone()).ok()?;
            let called = |method: &str| seen.body.contains(&format!("\"{method}\""));
            let instead = self.instead.get().filter(|(method, _)| called(method));
            self.seen.lock().unwrap().push(seen);
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
    }
}
