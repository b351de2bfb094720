//! `[server]`: the listeners and their limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::{TIMEOUT, is_origin};
use crate::config::setting::{Field, section};

section! {
    /// The listeners and their limits.
    pub struct Server {
        /// Address of the public listener: `POST /v3/<API_KEY>`.
        // All interfaces, because a container that listens on loopback cannot be reached. Strangers have no access,
        // because callers need a key.
        listen: SocketAddr = restart.get("0.0.0.0:8080"),
        /// Address of a second public listener, for clients that derive the address of the WebSocket: web3.js and Solana's
        /// command line take the port after that of the RPC URL. It serves what `server.listen` serves. "next" is the port
        /// after that of `server.listen`, unless it is taken; "off" opens none.
        // Without it, wallets would not work with nothing but slotfront's address. It opens no more than `listen` does.
        ws_listen: WsListen = restart.get("next"),
        /// Address of the admin listener: metrics, health and the status page. Keep it off the public network.
        admin_listen: SocketAddr = restart.get("127.0.0.1:9899"),
        /// Maximum request body. The default is that of a node.
        max_body: usize = restart.size("50KiB", "256B"..="64MiB"),
        /// Maximum calls in a batch.
        // Room for the 150 calls that a page may send at once by web3.js' getTransactions. It is the burst of the plan
        // "standard", so that a longer batch would end with 429 anyway.
        max_batch: usize = restart.within(200, 1..=10_000),
        /// Maximum open connections. Further ones wait in the kernel's queue. One client address, except trusted
        /// proxies, may hold up to eight times as many as are free: 8/9 of all if it is alone. Connections beyond that
        /// are closed.
        // The buffers of that many connections take about 1 GiB at most. The number is a third of the usual limit on
        // open files of a service (65,536).
        max_connections: usize = restart.within(20_000, 1..=1_000_000),
        /// Maximum requests in flight. Further ones get -32094 with Retry-After. One key may hold up to eight times as
        /// many as are free: 8/9 of all if it is alone.
        // Enough for 100,000 calls a second of 100 ms each. A longer queue only adds delay.
        max_in_flight: usize = restart.within(10_000, 1..=1_000_000),
        /// Maximum size of all request bodies in memory, counted before they are kept. Further requests get -32094 with
        /// Retry-After. One key may hold up to eight times as many bytes as are free: 8/9 of all if it is alone. Connections
        /// of one client address that have shown no valid key may take a quarter as much memory; beyond that, its oldest
        /// ones are closed.
        // Four of the longest bodies that a node with a raised limit takes, or more than a thousand usual ones of 50 KiB.
        max_incoming: usize = restart.size("64MiB", "1MiB"..="1024GiB"),
        /// Maximum size of all answers in memory until they are sent. Further requests get -32094 with Retry-After. An
        /// answer sent to several callers counts once. One key may hold up to eight times as many bytes as are free:
        /// 8/9 of all if it is alone.
        // Eight of the largest answers at once, or about a hundred mainnet blocks for clients that read slowly.
        max_outgoing: usize = restart.size("512MiB", "1MiB"..="1024GiB"),
        /// Maximum time to receive a request head.
        // A request head fits into one packet, so a slower client is broken or hostile.
        header_timeout: Duration = restart.within("10s", TIMEOUT),
        /// Maximum time to receive a request body.
        // Enough for a body of 50 KiB at 5 KiB/s.
        body_timeout: Duration = restart.within("10s", TIMEOUT),
        /// Maximum time for which a client may accept no bytes of its answer. A client that accepts 64 KiB in that time
        /// is slow, but served.
        // TCP resends a lost packet several times in this time.
        write_timeout: Duration = restart.within("30s", TIMEOUT),
        /// Maximum time for which a connection may be idle. Set it longer than that of the balancer in front, which then
        /// closes first: otherwise it may send a call into a connection that is just closed, and answer 502.
        // Google's balancers keep idle connections for 600 s, AWS' for 350 s.
        idle_timeout: Duration = restart.within("620s", TIMEOUT),
        /// Maximum age of a WebSocket. Then it is closed with 1001, and its client connects anew, perhaps to another replica.
        /// Default: no maximum, because such a client may miss notifications.
        max_socket_age: Option<Duration> = restart.optional_within("12h", "1s"..="1000d"),
        /// Maximum time for a call. Then it gets -32096. A scan, such as getProgramAccounts, may wait that long for one of
        /// `pool.max_scans` places, and then has its `pool.attempt_timeout` beside it.
        // The default timeout of the Rust client library.
        request_timeout: Duration = restart.within("30s", TIMEOUT),
        /// Time after SIGTERM for which `/readyz` and `/health` answer 503 while all calls are still served, also on new
        /// connections. It should cover two health checks of the balancer in front. `drain_timeout` begins after it.
        // Google's and AWS' balancers check every 5 s.
        unready_before_stop: Duration = restart.within("10s", "0s"..="1h"),
        /// Maximum time for calls in flight once no connections are accepted any more. A scan that takes longer is cut off.
        // A call takes more only if nodes fail, and whoever stops slotfront waits that long.
        drain_timeout: Duration = restart.within("20s", TIMEOUT),
        /// True if the query may have the API key, as `?api-key=KEY`. Proxies log queries, so prefer the path or a header.
        // Some providers' URLs are like this, and some clients have no other place for a key.
        key_in_query: bool = restart.get(false),
        /// Origins of web pages that may call: "*", or for example `https://app.example`.
        // Every origin, as a node allows it. Access depends on the API key, not on the origin.
        cors_origins: Vec<String> = restart.with(cors_origins),
        /// Addresses and networks of proxies whose statements about client addresses are trusted. They must replace or
        /// extend the X-Forwarded-For of their clients. If it cannot be read, the client address is unknown: it matches no
        /// address list, and all unknown clients share one limit for failed keys and `open_plan`.
        trusted_proxies: Vec<IpNet> = restart.list(&[]),
        /// True if every connection begins with a PROXY protocol header (v1 or v2) from a trusted proxy, as TCP balancers
        /// send it.
        proxy_protocol: bool = restart.get(false),
        /// TLS on the public listener: PEM files, read again when they change. The server's own certificate is the
        /// first, and the key is not encrypted.
        tls: Option<TlsFiles> = restart.with(tls),
    }
}

/// Where the second public listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WsListen {
    /// At the port after that of `server.listen`, if nobody has it.
    Next,
    Off,
    At(SocketAddr),
}

/// Returns the address with the port after that of `address`. `None` after the last port.
pub fn next_address(address: SocketAddr) -> Option<SocketAddr> {
    Some(SocketAddr::new(address.ip(), address.port().checked_add(1)?))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Reads the paths of the certificate and its key: both or neither. The listener checks the contents of the two files.
fn tls(f: &Field<'_, '_>) -> Option<TlsFiles> {
    let table = f.table();
    let (cert, key) = (table.field("cert", "").file("cert.pem"), table.field("key", "").file("key.pem"));
    let missing = match (&cert, &key) {
        (Some(_), None) => "key",
        (None, Some(_)) => "cert",
        _ => return cert.zip(key).map(|(cert, key)| TlsFiles { cert, key }),
    };
    let rule = "expected a certificate and its key, or neither";
    table.problem(missing, None, rule, "set both files, in PEM");
    None
}

/// Reads `*`, or origins as browsers write them: scheme, host, and a port that is not the scheme's default.
fn cors_origins(f: &Field<'_, '_>) -> Vec<String> {
    let origins: Vec<String> = f.list(&["*"]);
    for origin in &origins {
        if origin != "*" && !is_origin(origin) {
            let rule = "expected \"*\" or an origin as a browser sends it: scheme and host, no path";
            f.problem(Some(format!("{origin:?}")), rule, "write it like \"https://app.example\"");
        }
    }
    origins
}
