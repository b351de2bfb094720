//! The connections to the store: one for reads, one for writes, so that a long value on its way up keeps no short one
//! on its way down waiting. The only place that knows how the client connects.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisFuture, TlsCertificates, Value};

use crate::config;

/// The time to connect and to be let in.
const CONNECT: Duration = Duration::from_secs(1);

/// A connection, shared by all who ask.
#[derive(Clone)]
pub(super) enum Wire {
    /// To one server.
    One(MultiplexedConnection),
    /// To all nodes of a cluster.
    Cluster(ClusterConnection),
}

/// Both connections.
pub(super) struct Link {
    pub(super) reads: Wire,
    pub(super) writes: Wire,
}

/// The way to make connections.
pub(super) enum Dial {
    /// To the first of these that takes writes.
    Servers(Vec<Client>, Box<AsyncConnectionConfig>),
    /// To a cluster.
    Cluster(Box<ClusterClient>),
}

impl Dial {
    /// Prepares connections to the store that `settings` name.
    pub(super) fn new(settings: &config::SharedSettings) -> Result<Self, String> {
        // The client's own error may hold the address.
        let wrong = |_| "is no address that a client of the store takes".to_owned();
        let certificates = || -> Result<TlsCertificates, String> {
            let read =
                |path| std::fs::read(path).map_err(|e| format!("ca_file cannot be read: {}", e.kind()));
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
        // Each caller has a timeout of its own.
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(CONNECT));
        Ok(Self::Servers(clients, Box::new(settings)))
    }

    /// Makes both connections, and has them let in.
    pub(super) async fn connect(&self) -> Result<Link, RedisError> {
        match self {
            Self::Cluster(client) => {
                let (reads, writes) =
                    tokio::try_join!(client.get_async_connection(), client.get_async_connection())?;
                Ok(Link { reads: Wire::Cluster(reads), writes: Wire::Cluster(writes) })
            }
            Self::Servers(clients, settings) => {
                let mut refused = RedisError::from((redis::ErrorKind::InvalidClientConfig, "no address"));
                for client in clients {
                    let connect = || client.get_multiplexed_async_connection_with_config(settings);
                    match tokio::try_join!(connect(), connect()) {
                        Ok((reads, mut writes)) => {
                            // Only one of several servers takes writes.
                            if clients.len() == 1 || takes_writes(&mut writes).await? {
                                return Ok(Link { reads: Wire::One(reads), writes: Wire::One(writes) });
                            }
                            let kind = redis::ErrorKind::Server(redis::ServerErrorKind::ReadOnly);
                            refused = RedisError::from((kind, "no server takes writes"));
                        }
                        Err(error) => refused = error,
                    }
                }
                Err(refused)
            }
        }
    }
}

/// Returns true if the others follow this server.
async fn takes_writes(server: &mut MultiplexedConnection) -> Result<bool, RedisError> {
    let hello: Vec<Value> = redis::cmd("HELLO").query_async(server).await?;
    let word = |value: &Value, word: &str| match value {
        Value::BulkString(text) => text == word.as_bytes(),
        Value::SimpleString(text) => text == word,
        _ => false,
    };
    Ok(hello.windows(2).any(|pair| word(&pair[0], "role") && word(&pair[1], "master")))
}

impl ConnectionLike for Wire {
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
