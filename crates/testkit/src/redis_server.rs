//! A real redis-server, or a Redis Cluster of them, that a test can pause, kill and fill.

use std::net::TcpListener;
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use redis::Connection;
use slotfront::config::{Secret, SharedSettings};
use tokio::time::Instant;

use crate::PATIENCE;

/// A redis-server process, which is killed when the value is dropped.
pub struct Redis {
    port: u16,
    arguments: Vec<String>,
    child: Child,
    dir: tempfile::TempDir,
}

/// Returns a port of 127.0.0.1 on which nothing listens, and which this function has not returned before in this
/// process.
///
/// The port lies below the ephemeral ports, which Linux gives to outgoing connections. Such a connection could
/// take the port before the server starts, or while the server restarts.
pub fn free_port() -> u16 {
    // The bus of a Redis cluster uses the port 10,000 above the node's. The tests in Python use ports above both.
    const PORTS: Range<u32> = 10_000..12_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Consecutive process ids are multiplied by a prime, so that processes that run side by side begin at distant
    // ports.
    let first = std::process::id().wrapping_mul(7_919);
    loop {
        let port = PORTS.start + first.wrapping_add(GIVEN.fetch_add(1, Relaxed)) % (PORTS.end - PORTS.start);
        let port = u16::try_from(port).expect("every number in PORTS is a port");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Redis {
    /// Starts a server at a free port, with additional command-line `arguments`. The server keeps nothing on disk.
    pub fn start(arguments: &[&str]) -> Self {
        Self::on(free_port(), arguments)
    }

    /// Starts a server at this port, with additional command-line `arguments`.
    fn on(port: u16, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let child = spawn(port, &arguments, dir.path());
        let mut redis = Self { port, arguments, child, dir };
        redis.wait();
        redis
    }

    /// Returns the setting `shared` with which a gateway uses this server. A call to the server may take as long as it
    /// does on a busy machine. A test of a silent store sets its own timeout.
    pub fn settings(&self) -> SharedSettings {
        Self::settings_at(&self.url())
    }

    /// Returns the setting `shared` with which a gateway uses the server at this URL.
    pub fn settings_at(url: &str) -> SharedSettings {
        SharedSettings {
            urls: vec![Secret::new(url)],
            cluster: false,
            namespace: "test".to_owned(),
            timeout: Duration::from_secs(20),
            ca_file: None,
            secret: None,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn connection(&self) -> Connection {
        redis::Client::open(self.url()).and_then(|client| client.get_connection()).expect("a connection")
    }

    /// Returns the keys in the server that begin with `beginning`.
    pub fn keys(&self, beginning: &str) -> Vec<String> {
        redis::cmd("KEYS").arg(format!("{beginning}*")).query(&mut self.connection()).expect("the keys")
    }

    /// Removes all data.
    pub fn flush(&self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection()).expect("an empty store");
    }

    /// Pauses the process. It keeps its data, and answers nothing until it is resumed.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Kills the process, which loses its data.
    pub fn kill(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("the server ends");
    }

    /// Starts a killed server again at the same port, without data.
    pub fn restart(&mut self) {
        self.child = spawn(self.port, &self.arguments, self.dir.path());
        self.wait();
    }

    fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill")
                .args([signal, &self.child.id().to_string()])
                .status()
                .is_ok_and(|status| status.success())
        );
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.child.try_wait().expect("the state of the server");
            assert!(ended.is_none(), "redis-server has ended: {ended:?}");
            assert!(Instant::now() < deadline, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn spawn(port: u16, arguments: &[String], dir: &std::path::Path) -> Child {
    let started = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(dir)
        .args(arguments)
        .stdout(Stdio::null())
        .spawn();
    started.expect("redis-server is installed, as tests/run does (Debian: redis-server)")
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct RedisCluster(pub Vec<Redis>);

impl RedisCluster {
    /// Starts three servers, and waits until they form a Redis Cluster.
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| Self::node()).collect();
        let addresses: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&addresses)
            .args(["--cluster-yes"])
            .output()
            .expect("redis-cli is installed, as tests/run does (Debian: redis-tools)");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Self(nodes);
        cluster.wait();
        cluster
    }

    /// Starts a server for a Redis Cluster, which also uses the port 10,000 above its own. The server serves its
    /// part of the keys even while other servers of the Redis Cluster are missing.
    fn node() -> Redis {
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "60000",
            "--cluster-require-full-coverage",
            "no",
        ];
        Redis::on(free_port(), &arguments)
    }

    /// Returns the setting `shared` with which a gateway uses this Redis Cluster.
    pub fn settings(&self) -> SharedSettings {
        let urls = self.0.iter().map(|node| Secret::new(node.url())).collect();
        SharedSettings { urls, cluster: true, ..self.0[0].settings() }
    }

    fn wait(&self) {
        let deadline = Instant::now() + PATIENCE;
        let is_whole = |node: &Redis| {
            let info: String =
                redis::cmd("CLUSTER").arg("INFO").query(&mut node.connection()).expect("the cluster's state");
            info.contains("cluster_state:ok")
        };
        while !self.0.iter().all(is_whole) {
            assert!(Instant::now() < deadline, "the servers form no cluster");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
