//! The nodes of the pool and their common settings, in one value that a reload replaces as a whole.
//!
//! A reload keeps each node whose name and URL stay the same, with its id, breaker, latency and slots. Calls
//! in flight end on the nodes with which they began.

use std::ops::Deref;
use std::sync::Arc;

use super::member::Member;
use crate::config;
use crate::frontier::Frontier;
use crate::node::client::ClientError;
use crate::node::{BufferBudget, Client};
use crate::telemetry::Metrics;

/// The nodes, in the order of the configuration, and their common settings.
pub struct Members {
    list: Vec<Arc<Member>>,
    pub(super) settings: config::PoolSettings,
}

/// A new configuration of the nodes, ready to be put in force. Everything that can fail has already succeeded.
pub struct Prepared {
    /// The settings of each node, with its client, which is a new one only if the node needs that.
    upstreams: Vec<(config::Upstream, Arc<Client>)>,
    pub(super) settings: config::PoolSettings,
}

impl Members {
    pub(super) fn new(
        config: &config::Config,
        frontier: &Frontier,
        metrics: &Metrics,
        buffers: &Arc<BufferBudget>,
    ) -> Result<Self, ClientError> {
        let member = |(id, upstream): (usize, &config::Upstream)| {
            let client = Arc::new(Client::new(upstream, &config.pool, Arc::clone(buffers))?);
            let breaker = config.pool.breaker;
            Ok(Arc::new(Member::new(id, upstream.clone(), client, breaker, frontier, metrics)))
        };
        let list = config.upstreams.iter().enumerate().map(member).collect::<Result<_, ClientError>>()?;
        Ok(Self { list, settings: config.pool.clone() })
    }

    /// Returns the node with this id. `None` if the node has left the pool.
    pub fn of(&self, id: usize) -> Option<&Arc<Member>> {
        self.list.iter().find(|member| member.id == id)
    }

    /// Returns the node with this name. `None` if the pool has no such node.
    pub fn named(&self, name: &str) -> Option<&Arc<Member>> {
        self.list.iter().find(|member| member.name == name)
    }

    /// Returns the node with the name and URL of `upstream`. `None` if the pool has no such node.
    fn same(&self, upstream: &config::Upstream) -> Option<&Arc<Member>> {
        self.named(&upstream.name).filter(|member| member.upstream.url == upstream.url)
    }

    /// Returns true if the nodes, their order and the settings of each are the same as in `before`.
    pub(super) fn has_nodes_of(&self, before: &Self) -> bool {
        self.len() == before.len()
            && self.iter().zip(before.iter()).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// Prepares a new configuration of the nodes, and creates the new clients that it needs.
    pub(super) fn prepare(
        &self,
        config: &config::Config,
        buffers: &Arc<BufferBudget>,
    ) -> Result<Prepared, ClientError> {
        let new = &config.pool;
        let same_clients = self.settings.connect_timeout == new.connect_timeout;
        let prepared = |upstream: &config::Upstream| {
            let known = self.same(upstream).filter(|member| {
                let was = &member.upstream;
                let was = (&was.headers, &was.ca_file, was.http2, &was.ws_url);
                same_clients
                    && was == (&upstream.headers, &upstream.ca_file, upstream.http2, &upstream.ws_url)
            });
            let client = match known {
                Some(member) => Arc::clone(&member.client),
                None => Arc::new(Client::new(upstream, new, Arc::clone(buffers))?),
            };
            Ok((upstream.clone(), client))
        };
        let upstreams = config.upstreams.iter().map(prepared).collect::<Result<_, ClientError>>()?;
        Ok(Prepared { upstreams, settings: new.clone() })
    }

    /// Returns the nodes of `prepared`, which must be a result of [`Self::prepare`] on this same value. New nodes
    /// are added to `frontier`.
    pub(super) fn reconfigured(&self, prepared: Prepared, frontier: &Frontier, metrics: &Metrics) -> Self {
        let Prepared { upstreams, settings } = prepared;
        let member = |(upstream, client): (config::Upstream, Arc<Client>)| match self.same(&upstream) {
            Some(known) if known.upstream == upstream && Arc::ptr_eq(&known.client, &client) => {
                Arc::clone(known)
            }
            Some(known) => Arc::new(known.reconfigured(upstream, client)),
            None => {
                let id = frontier.join();
                Arc::new(Member::new(id, upstream, client, settings.breaker, frontier, metrics))
            }
        };
        let list: Vec<_> = upstreams.into_iter().map(member).collect();
        for member in &list {
            member.set_breaker(settings.breaker);
        }
        Self { list, settings }
    }
}

impl Deref for Members {
    type Target = [Arc<Member>];

    fn deref(&self) -> &[Arc<Member>] {
        &self.list
    }
}
