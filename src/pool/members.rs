//! The nodes of the pool and the settings that they are asked with: one value, swapped as a whole by a reload.
//!
//! A node is the same one as before if its name and its address are: it keeps its number, its breaker, its latency and
//! its slots, however else it is asked from now on. Calls in flight end on what they began with.

use std::ops::Index;
use std::sync::Arc;

use tokio::time::Instant;

use super::member::{Known, Member};
use super::{Pool, hedge};
use crate::config;
use crate::frontier::Frontier;
use crate::node::client::ClientError;
use crate::node::{BufferBudget, Client};
use crate::telemetry::Metrics;

/// The nodes, in the order of the configuration, and the settings that they are asked with.
pub struct Members {
    list: Vec<Arc<Member>>,
    pub(super) settings: config::Pool,
}

impl Members {
    pub(super) fn new(
        config: &config::Config,
        frontier: &Frontier,
        metrics: &Metrics,
        buffers: &Arc<BufferBudget>,
    ) -> Result<Self, ClientError> {
        let member = |(id, upstream)| {
            let client = Client::new(upstream, &config.pool, Arc::clone(buffers))?;
            let known = Known { frontier, metrics, breaker: config.pool.breaker };
            Ok(Arc::new(Member::new(id, upstream, Arc::new(client), known)))
        };
        let list = config.upstreams.iter().enumerate().map(member).collect::<Result<_, ClientError>>()?;
        Ok(Self { list, settings: config.pool.clone() })
    }

    /// Each node.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<Member>> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none; a valid configuration has one.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The node with this number, if it still is one of them.
    pub fn of(&self, id: usize) -> Option<&Arc<Member>> {
        self.list.iter().find(|member| member.id == id)
    }

    /// The node that `upstream` is about, if it is one of them: of the same name and address.
    fn same(&self, upstream: &config::Upstream) -> Option<&Arc<Member>> {
        self.named(&upstream.name).filter(|member| member.upstream.url == upstream.url)
    }

    /// The node with this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Member>> {
        self.list.iter().find(|member| member.name == name)
    }
}

/// A new configuration of the nodes: all that can fail is done.
pub struct Prepared {
    /// Each with a client where the one that it has will not do.
    upstreams: Vec<(config::Upstream, Option<Arc<Client>>)>,
    settings: config::Pool,
}

impl Pool {
    /// Prepares what `config` says of the nodes and the pool, to be put in force or dropped. Nothing changes yet.
    ///
    /// # Errors
    /// The first upstream whose client cannot be built.
    pub fn prepare(&self, config: &config::Config) -> Result<Prepared, ClientError> {
        let members = self.members.load();
        let (old, new) = (&members.settings, &config.pool);
        let same_clients = (old.connect_timeout, old.max_response) == (new.connect_timeout, new.max_response);
        let prepared = |upstream: &config::Upstream| {
            let known = members.same(upstream).filter(|member| {
                let was = &member.upstream;
                let (was, is) = ((&was.headers, &was.ca_file, was.http2), upstream);
                same_clients && was == (&is.headers, &is.ca_file, is.http2)
            });
            let client = match known {
                Some(_) => None,
                None => Some(Arc::new(Client::new(upstream, new, Arc::clone(&self.buffers))?)),
            };
            Ok((upstream.clone(), client))
        };
        let upstreams = config.upstreams.iter().map(prepared).collect::<Result<_, ClientError>>()?;
        Ok(Prepared { upstreams, settings: new.clone() })
    }

    /// Puts in force what was prepared, in one step; [`Pool::probe`] afterwards sees to the new nodes. One at a time:
    /// what was prepared must be of the nodes that there are.
    ///
    /// # Panics
    /// Never, as long as nothing else was put in force since it was prepared.
    pub fn put_in_force(&self, prepared: Prepared) {
        let before = self.members.load_full();
        let Prepared { upstreams, settings } = prepared;
        let member = |(upstream, client): (config::Upstream, Option<Arc<Client>>)| match (
            before.same(&upstream),
            client,
        ) {
            (Some(known), None) if known.upstream == upstream => Arc::clone(known),
            (Some(known), client) => Arc::new(known.again(upstream, client)),
            (None, client) => {
                let client = client.expect("a node that is not known was prepared with a client");
                let known =
                    Known { frontier: &self.frontier, metrics: &self.metrics, breaker: settings.breaker };
                Arc::new(Member::new(self.frontier.join(), &upstream, client, known))
            }
        };
        let list: Vec<_> = upstreams.into_iter().map(member).collect();
        for member in &list {
            member.set_breaker(settings.breaker);
        }
        self.buffers.set_limit(settings.max_buffered);
        self.budget.set_share(settings.retry_budget);
        self.hedges.set_share(hedge::share(&settings));
        let genesis =
            settings.genesis_hash.clone().filter(|_| settings.genesis_hash != before.settings.genesis_hash);
        let after = Arc::new(Members { list, settings });
        self.members.store(Arc::clone(&after));
        let now = Instant::now();
        for gone in before.iter().filter(|member| after.of(member.id).is_none()) {
            self.frontier.leave(gone.id, now);
            tracing::info!(upstream.name = gone.name, "upstream removed: calls in flight end as they would");
        }
        for added in after.iter().filter(|member| before.of(member.id).is_none()) {
            tracing::info!(upstream.name = added.name, "upstream added");
        }
        self.metrics.retain_upstreams(|name| after.named(name).is_some());
        if let Some(genesis) = genesis {
            self.set_genesis(&after, &genesis);
        }
    }
}

impl Index<usize> for Members {
    type Output = Arc<Member>;

    fn index(&self, position: usize) -> &Arc<Member> {
        &self.list[position]
    }
}

impl<'a> IntoIterator for &'a Members {
    type Item = &'a Arc<Member>;
    type IntoIter = std::slice::Iter<'a, Arc<Member>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
