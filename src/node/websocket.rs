//! WebSockets to a node, and the handshake's proof (RFC 6455), which the public listener gives, too.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use reqwest::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::client::{MAX_BLOCK_BYTES, fault_of};
use super::{Client, Fault};

pub type NodeSocket = WebSocketStream<reqwest::Upgraded>;

/// The text that a server appends to the client's key before it hashes both (RFC 6455, 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The maximum number of bytes that wait to be sent to a node. Calls are short.
const MAX_WRITE_BYTES: usize = 1 << 20;

/// Returns the value of `Sec-WebSocket-Accept` for a client's `Sec-WebSocket-Key`.
pub fn accept_key(key: &[u8]) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID.as_bytes()].concat()))
}

impl Client {
    /// Opens a WebSocket to the node's `ws_url`.
    ///
    /// # Errors
    /// The node has no `ws_url`, cannot be reached, or does not accept the WebSocket.
    pub async fn open_socket(&self) -> Result<NodeSocket, Fault> {
        let Some((http, url)) = &self.socket else { return Err(Fault::Connect) };
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|_| Fault::Connect)?;
        let key = STANDARD.encode(nonce);
        let request = http
            .get(url.expose())
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key);
        let response = request.send().await.map_err(|error| fault_of(&error))?;
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT);
        if response.status() != StatusCode::SWITCHING_PROTOCOLS
            || accepted.is_none_or(|value| value.as_bytes() != accept_key(key.as_bytes()).as_bytes())
        {
            return Err(Fault::Status(response.status().as_u16()));
        }
        let socket = response.upgrade().await.map_err(|_| Fault::Connect)?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_BLOCK_BYTES))
            .max_frame_size(Some(MAX_BLOCK_BYTES))
            .max_write_buffer_size(MAX_WRITE_BYTES);
        Ok(WebSocketStream::from_raw_socket(socket, Role::Client, Some(config)).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_is_that_of_the_rfc() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
