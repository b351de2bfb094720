//! A minimal HTTP client: connections with one POST at a time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// The timeout of a call. It is far above slotfront's deadline, because a busy machine may stall for minutes.
const PATIENCE: Duration = Duration::from_mins(5);

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A URL of the form `http://host:port/path`, split into host and path.
#[derive(Clone)]
pub struct Target {
    host: String,
    path: String,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        let rest = url.strip_prefix("http://").ok_or("a URL that begins with http://")?;
        let (host, path) = rest.split_once('/').ok_or("a URL with a path")?;
        Ok(Self { host: host.to_owned(), path: format!("/{path}") })
    }
}

pub struct HttpResponse {
    pub status: u16,
    /// The value of the header `Cache-Status`. Empty if there is none.
    pub cache_status: String,
    /// The value of the header `Retry-After`. Empty if there is none.
    pub retry_after: String,
    pub body: Vec<u8>,
}

pub struct Connection {
    stream: TcpStream,
    target: Target,
    /// The bytes that were read but not parsed yet.
    read: Vec<u8>,
    /// True if the server has announced with `Connection: close` that it closes the connection.
    is_last: bool,
}

impl Connection {
    pub async fn open(target: &Target) -> Result<Self, BoxError> {
        let stream = TcpStream::connect(&target.host).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, target: target.clone(), read: Vec::with_capacity(16 * 1024), is_last: false })
    }

    /// Returns true if the server has not closed the connection and has not announced that it will.
    fn is_open(&self) -> bool {
        let mut byte = [0];
        let waits = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        !self.is_last && self.stream.try_read(&mut byte).is_err_and(waits)
    }

    pub async fn post(&mut self, body: &str) -> Result<HttpResponse, BoxError> {
        tokio::time::timeout(PATIENCE, self.exchange(body)).await?
    }

    async fn exchange(&mut self, body: &str) -> Result<HttpResponse, BoxError> {
        let (host, path, length) = (&self.target.host, &self.target.path, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes()).await?;
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut head = httparse::Response::new(&mut headers);
            if let httparse::Status::Complete(start) = head.parse(&self.read)? {
                let field = |name: &str| {
                    let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
                    found.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or("")
                };
                let status = head.code.unwrap_or(0);
                let [cache_status, retry_after] =
                    ["cache-status", "retry-after"].map(|name| field(name).to_owned());
                self.is_last = field("connection").eq_ignore_ascii_case("close");
                let length: usize =
                    field("content-length").parse().map_err(|_| "an answer without a length")?;
                let end = start + length;
                self.read.reserve(end.saturating_sub(self.read.len()));
                while self.read.len() < end {
                    self.more().await?;
                }
                let body = self.read[start..end].to_vec();
                self.read.drain(..end);
                return Ok(HttpResponse { status, cache_status, retry_after, body });
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), BoxError> {
        if self.stream.read_buf(&mut self.read).await? == 0 {
            return Err("the connection ended inside an answer".into());
        }
        Ok(())
    }
}

/// Keep-alive connections to one target, opened as needed.
pub struct Connections {
    target: Target,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl Connections {
    /// Returns no connection yet. Later, at most `most` are open.
    pub fn new(target: Target, most: usize) -> Self {
        Self { target, idle: Mutex::default(), permits: Semaphore::new(most) }
    }

    /// Sends a POST on an idle connection or on a new one, and reads the whole response.
    pub async fn post(&self, body: &str) -> Result<HttpResponse, BoxError> {
        let _permit = self.permits.acquire().await?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle.filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::open(&self.target).await?,
        };
        let answer = connection.post(body).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(answer)
    }
}
