//! The connections to the store: one for reads and one for writes, so that a long value being written does not
//! delay a read. Only this module knows how the client connects.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisFuture, TlsCertificates, Value};

use crate::config;

/// The longest time to connect and authenticate.
const CONNECT: Duration = Duration::from_secs(1);

/// A connection that many requests share.
#[derive(Clone)]
pub(super) enum StoreConnection {
    /// A connection to one server.
    One(MultiplexedConnection),
    /// A connection to all nodes of a cluster.
    Cluster(ClusterConnection),
}

/// The connections for reads and writes.
pub(super) struct StoreLink {
    pub(super) reads: StoreConnection,
    pub(super) writes: StoreConnection,
}

/// The addresses and options of new connections.
pub(super) enum Connector {
    /// One server, or several of which the first that accepts writes is used.
    Servers(Vec<Client>, Box<AsyncConnectionConfig>),
    /// A cluster.
    Cluster(Box<ClusterClient>),
}

impl Connector {
    /// Prepares connections to the store of `settings`.
    pub(super) fn new(settings: &config::SharedSettings) -> Result<Self, String> {
        // The client's own error is not shown, because it may hold the URL.
        let wrong = |_| "is not a valid URL of a Redis server".to_owned();
        let certificates = || -> Result<TlsCertificates, String> {
            let read = |path| {
                std::fs::read(path)
                    .map_err(|e| format!("the file of shared.ca_file cannot be read: {}", e.kind()))
            };
            Ok(TlsCertificates {
                client_tls: None,
                root_cert: settings.ca_file.as_ref().map(read).transpose()?,
            })
        };
        let urls = settings.urls.iter().map(config::Secret::expose);
        if settings.cluster {
            let mut builder = ClusterClient::builder(urls)
                .connection_timeout(CONNECT)
                .response_timeout(settings.timeout)
                .retries(1);
            if settings.ca_file.is_some() {
                builder = builder.certs(certificates()?);
            }
            return Ok(Self::Cluster(Box::new(builder.build().map_err(wrong)?)));
        }
        let client = |url: &str| match &settings.ca_file {
            Some(_) => Client::build_with_tls(url, certificates()?).map_err(wrong),
            None => Client::open(url).map_err(wrong),
        };
        let clients = urls.map(client).collect::<Result<_, _>>()?;
        // These timeouts are for connecting. They also bound every operation, so `shared.timeout` has no effect
        // above them.
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(CONNECT));
        Ok(Self::Servers(clients, Box::new(settings)))
    }

    /// Opens and authenticates both connections.
    pub(super) async fn connect(&self) -> Result<StoreLink, RedisError> {
        match self {
            Self::Cluster(client) => {
                let (reads, writes) =
                    tokio::try_join!(client.get_async_connection(), client.get_async_connection())?;
                Ok(StoreLink {
                    reads: StoreConnection::Cluster(reads),
                    writes: StoreConnection::Cluster(writes),
                })
            }
            Self::Servers(clients, settings) => {
                let mut refused = RedisError::from((redis::ErrorKind::InvalidClientConfig, "no address"));
                for client in clients {
                    let connect = || client.get_multiplexed_async_connection_with_config(settings);
                    match tokio::try_join!(connect(), connect()) {
                        Ok((reads, mut writes)) => {
                            // Only one of several servers accepts writes.
                            if clients.len() == 1 || takes_writes(&mut writes).await? {
                                return Ok(StoreLink {
                                    reads: StoreConnection::One(reads),
                                    writes: StoreConnection::One(writes),
                                });
                            }
                            let kind = redis::ErrorKind::Server(redis::ServerErrorKind::ReadOnly);
                            refused = RedisError::from((kind, "no server accepts writes"));
                        }
                        Err(error) => refused = error,
                    }
                }
                Err(refused)
            }
        }
    }
}

/// Returns true if this server is the primary.
async fn takes_writes(server: &mut MultiplexedConnection) -> Result<bool, RedisError> {
    let hello: Vec<Value> = redis::cmd("HELLO").query_async(server).await?;
    let word = |value: &Value, word: &str| match value {
        Value::BulkString(text) => text == word.as_bytes(),
        Value::SimpleString(text) => text == word,
        _ => false,
    };
    Ok(hello.windows(2).any(|pair| word(&pair[0], "role") && word(&pair[1], "master")))
}

impl ConnectionLike for StoreConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(wire) => wire.req_packed_command(cmd),
            Self::Cluster(wire) => wire.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(wire) => wire.req_packed_commands(pipeline, offset, count),
            Self::Cluster(wire) => wire.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(wire) => wire.get_db(),
            Self::Cluster(wire) => wire.get_db(),
        }
    }
}
