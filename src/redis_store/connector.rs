//! The connections to the store: one for reads and one for writes, so that a long value being written does not delay a
//! read. Only this module knows how the client connects. The manager of the redis crate does not notice a server that
//! hangs, and cannot look for the primary among several.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisFuture, TlsCertificates, Value};
use tokio::time::timeout;

use crate::config;

/// The longest time to connect to one server and authenticate.
const CONNECT: Duration = Duration::from_secs(1);

/// A connection that many requests share.
#[derive(Clone)]
pub(super) enum StoreConnection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

pub(super) struct StoreLink {
    pub(super) reads: StoreConnection,
    pub(super) writes: StoreConnection,
}

/// The addresses and options of new connections.
pub(super) enum Connector {
    /// One server, or several servers. The first server that accepts writes is used.
    Servers(Vec<Client>),
    Cluster(Box<ClusterClient>, Box<ClusterConfig>),
}

impl Connector {
    /// Prepares connections to the store of `settings`.
    pub(super) fn new(settings: &config::SharedSettings) -> Result<Self, String> {
        // The client's own error is not shown, because it may hold the URL.
        let wrong = |_| "is not a valid URL of a Redis server".to_owned();
        let certificates = settings
            .ca_file
            .as_ref()
            .map(|file| TlsCertificates { client_tls: None, root_cert: Some(file.pem.clone().into_bytes()) });
        let urls = settings.urls.iter().map(config::Secret::expose);
        if settings.cluster {
            let mut builder = ClusterClient::builder(urls)
                .connection_timeout(CONNECT)
                // Also the limit for reading the cluster's topology, during which no other request is sent.
                .response_timeout(settings.timeout)
                .overall_response_timeout(None)
                .retries(1);
            if let Some(certificates) = certificates {
                builder = builder.certs(certificates);
            }
            // A long value takes longer to write than a read may take.
            let writes = ClusterConfig::new()
                .set_connection_timeout(CONNECT)
                .set_response_timeout(settings.timeout + CONNECT);
            return Ok(Self::Cluster(Box::new(builder.build().map_err(wrong)?), Box::new(writes)));
        }
        let client = |url: &str| match &certificates {
            Some(certificates) => Client::build_with_tls(url, certificates.clone()),
            None => Client::open(url),
        };
        Ok(Self::Servers(urls.map(client).collect::<Result<_, _>>().map_err(wrong)?))
    }

    pub(super) async fn connect(&self) -> Result<StoreLink, RedisError> {
        match self {
            Self::Cluster(client, writes) => {
                let both = async {
                    tokio::try_join!(
                        client.get_async_connection(),
                        client.get_async_connection_with_config((**writes).clone())
                    )
                };
                // The nodes of the cluster are connected one after the other.
                let (reads, writes) = timeout(3 * CONNECT, both).await.map_err(std::io::Error::from)??;
                Ok(StoreLink {
                    reads: StoreConnection::Cluster(reads),
                    writes: StoreConnection::Cluster(writes),
                })
            }
            Self::Servers(clients) => {
                let mut refused = RedisError::from((redis::ErrorKind::InvalidClientConfig, "no address"));
                for client in clients {
                    // A server that does not answer must not keep the others from being tried.
                    match timeout(CONNECT, connect_to(client, clients.len() > 1)).await {
                        Ok(Ok(link)) => return Ok(link),
                        Ok(Err(error)) => refused = error,
                        Err(late) => refused = std::io::Error::from(late).into(),
                    }
                }
                Err(refused)
            }
        }
    }
}

/// Opens both connections to one server.
///
/// # Errors
/// The server cannot be reached or refuses the connection, or it is `one_of_several` and does not accept writes.
async fn connect_to(client: &Client, one_of_several: bool) -> Result<StoreLink, RedisError> {
    // `CONNECT` limits the connecting, and each operation has a limit of its own.
    let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let connect = || client.get_multiplexed_async_connection_with_config(&settings);
    let (reads, mut writes) = tokio::try_join!(connect(), connect())?;
    if one_of_several && !takes_writes(&mut writes).await? {
        let kind = redis::ErrorKind::Server(redis::ServerErrorKind::ReadOnly);
        return Err(RedisError::from((kind, "no server accepts writes")));
    }
    Ok(StoreLink { reads: StoreConnection::One(reads), writes: StoreConnection::One(writes) })
}

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
