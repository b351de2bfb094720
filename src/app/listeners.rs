//! The listeners of a gateway, which its caller binds.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::config::{Config, WsListen, next_address};

#[derive(Debug)]
pub struct Listeners {
    pub public: TcpListener,
    /// The second public listener of `server.ws_listen`, if there is one.
    pub socket: Option<TcpListener>,
    /// The reason why `socket` is missing although `server.ws_listen` is "next".
    pub no_socket: Option<String>,
    /// The listener for metrics, health and the status page.
    pub admin: TcpListener,
}

#[derive(Debug, thiserror::Error)]
#[error("{setting}: cannot listen on {address}: {cause}{hint}")]
pub struct BindError {
    setting: &'static str,
    address: SocketAddr,
    cause: std::io::Error,
    hint: &'static str,
}

impl Listeners {
    /// Binds the listeners of `config`.
    ///
    /// # Errors
    /// An address cannot be bound. The error names the first such address and its setting.
    pub async fn bind(config: &Config) -> Result<Self, BindError> {
        let public = bind("server.listen", config.server.listen).await?;
        let mut socket = match config.server.ws_listen {
            WsListen::At(address) => Some(bind("server.ws_listen", address).await?),
            WsListen::Next | WsListen::Off => None,
        };
        let admin = bind("server.admin_listen", config.server.admin_listen).await?;
        let mut no_socket = None;
        if config.server.ws_listen == WsListen::Next {
            // Last, so that it takes no port that a setting names.
            match bind_next(public.local_addr().unwrap_or(config.server.listen)).await {
                Ok(listener) => socket = Some(listener),
                Err(why) => no_socket = Some(why),
            }
        }
        Ok(Self { public, socket, no_socket, admin })
    }
}

/// Binds the port after `address`, at which client libraries look for the WebSocket that belongs to an HTTP address.
///
/// # Errors
/// The port cannot be had. The error says so, and how to do without it.
pub async fn bind_next(address: SocketAddr) -> Result<TcpListener, String> {
    let bound = match next_address(address) {
        Some(next) => TcpListener::bind(next).await.map_err(|cause| {
            let is_taken = cause.kind() == std::io::ErrorKind::AddrInUse;
            let why = if is_taken { "is taken".to_owned() } else { format!("cannot be used ({cause})") };
            format!("port {} {why}", next.port())
        }),
        None => Err(format!("there is no port after {}", address.port())),
    };
    bound.map_err(|why| {
        format!("{why}, so client libraries do not find the WebSocket of http://{address}, which is also at ws://{address}")
    })
}

/// Binds one listener.
///
/// # Errors
/// The address cannot be bound. The error names the setting and the address. If the port is in use, the error also
/// says what to do.
pub async fn bind(setting: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|cause| {
        let in_use = cause.kind() == std::io::ErrorKind::AddrInUse;
        let hint = if in_use {
            "; stop the process that uses it, or choose another port (0 for any free port)"
        } else {
            ""
        };
        BindError { setting, address, cause, hint }
    })
}
