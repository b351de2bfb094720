//! A WebSocket client whose handshake the test sees.

use std::collections::VecDeque;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::{PATIENCE, TestGateway};

pub struct TestSocket {
    socket: WebSocketStream<TcpStream>,
    last_id: u64,
    /// The notifications that arrived while a call waited for its answer.
    notified: VecDeque<Value>,
}

#[derive(Debug)]
pub struct RefusedHandshake {
    pub status: u16,
    /// The status line and the header fields, in lower case.
    pub head: String,
    pub body: String,
}

impl TestGateway {
    /// Opens a WebSocket with the key `dev`.
    pub async fn socket(&self) -> TestSocket {
        self.try_socket("/v3/dev", "").await.expect("an open WebSocket")
    }

    /// Opens a WebSocket at `path`. Each line of `headers` must end in CRLF.
    ///
    /// # Errors
    /// The gateway refuses the handshake.
    pub async fn try_socket(&self, path: &str, headers: &str) -> Result<TestSocket, RefusedHandshake> {
        TestSocket::open(self.connect().await, path, headers).await
    }

    /// Opens a WebSocket with the key `dev` whose receive buffer is as small as can be, so that it blocks soon.
    pub async fn narrow_socket(&self) -> TestSocket {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(1).expect("a buffer");
        let stream = socket.connect(self.app.public).await.expect("the gateway listens");
        TestSocket::open(stream, "/v3/dev", "").await.expect("an open WebSocket")
    }
}

impl TestSocket {
    /// Makes the handshake on a connection.
    ///
    /// # Errors
    /// The server refuses the handshake.
    pub async fn open(stream: TcpStream, path: &str, headers: &str) -> Result<Self, RefusedHandshake> {
        timeout(PATIENCE, Self::shake_hands(stream, path, headers)).await.expect("a whole response in time")
    }

    async fn shake_hands(mut stream: TcpStream, path: &str, headers: &str) -> Result<Self, RefusedHandshake> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n{headers}\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("a connection");
        let mut read = Vec::new();
        let text = |read: &[u8]| String::from_utf8_lossy(read).into_owned();
        while !text(&read).contains("\r\n\r\n") {
            assert!(stream.read_buf(&mut read).await.expect("a response") > 0, "{:?}", text(&read));
        }
        let (head, rest) =
            text(&read).split_once("\r\n\r\n").map(|(h, _)| (h.to_lowercase(), h.len() + 4)).expect("a head");
        let status = head["http/1.1 ".len()..][..3].parse().expect("a status");
        if status != 101 {
            let length =
                head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
            let mut body = read.split_off(rest);
            while body.len() < length.unwrap_or(0) {
                assert!(stream.read_buf(&mut body).await.expect("a body") > 0);
            }
            return Err(RefusedHandshake { status, head, body: text(&body) });
        }
        assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        let ahead = read.split_off(rest);
        let socket = WebSocketStream::from_partially_read(stream, ahead, Role::Client, None).await;
        Ok(Self { socket, last_id: 0, notified: VecDeque::new() })
    }

    /// Returns the connection, on which a test then writes frames itself.
    pub fn into_stream(self) -> TcpStream {
        self.socket.into_inner()
    }

    pub async fn send(&mut self, message: impl Into<Message>) {
        // A closed connection shows when the test reads.
        let _ = self.socket.send(message.into()).await;
    }

    /// Returns the next message as JSON.
    ///
    /// # Errors
    /// The connection is closed. The error is the code, 0 without one.
    pub async fn next(&mut self) -> Result<Value, u16> {
        if let Some(notification) = self.notified.pop_front() {
            return Ok(notification);
        }
        self.read().await
    }

    async fn read(&mut self) -> Result<Value, u16> {
        // Pings are no messages that a test waits for.
        timeout(PATIENCE, self.read_message()).await.expect("a message in time")
    }

    async fn read_message(&mut self) -> Result<Value, u16> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Message::Close(frame))) => {
                    // Sends the reply, for which the server waits.
                    let _ = self.socket.flush().await;
                    return Err(frame.map_or(0, |frame| frame.code.into()));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(other)) => panic!("{other:?}"),
                Some(Err(_)) | None => return Err(0),
            }
        }
    }

    /// Reads until the connection is closed, and returns the code.
    pub async fn closed(&mut self) -> u16 {
        let closed = async {
            loop {
                if let Err(code) = self.next().await {
                    return code;
                }
            }
        };
        timeout(PATIENCE, closed).await.expect("the end of the connection in time")
    }

    /// Makes a call, and returns the whole answer.
    ///
    /// # Errors
    /// The connection is closed, as [`Self::next`] says.
    pub async fn try_call(&mut self, method: &str, params: Value) -> Result<Value, u16> {
        self.last_id += 1;
        let id = self.last_id;
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(call.to_string()).await;
        loop {
            let message = self.read().await?;
            if message["id"] == id {
                return Ok(message);
            }
            assert!(message.get("id").is_none(), "an answer to no call: {message}");
            self.notified.push_back(message);
        }
    }

    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> impl Future<Output = Value> {
        let method = method.to_owned();
        async move { self.try_call(&method, params).await.expect("an open connection") }
    }

    pub async fn subscribe(&mut self, method: &str, params: Value) -> u64 {
        let answer = self.call(method, params).await;
        answer["result"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }

    /// Returns the notifications that came while calls waited for their answers, in order.
    pub fn take_notified(&mut self) -> VecDeque<Value> {
        std::mem::take(&mut self.notified)
    }

    /// Asserts that no notification came while calls waited for their answers.
    #[track_caller]
    pub fn assert_quiet(&self) {
        assert!(self.notified.is_empty(), "{:?}", self.notified);
    }

    pub async fn notification(&mut self) -> Value {
        let mut message = self.next().await.expect("an open connection");
        message["params"].take()
    }
}
