//! Asking each node how it stands, once a probe interval: health, slots, and rarely who it is.
//!
//! A probe goes past the pool's selection, limits and breaker: it is how a node that was given up comes back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::member::{Health, Member};
use super::{Members, Pool, lock};
use crate::methods::{Commitment, PerCommitment, Slot};
use crate::node::{Client, Fault, NodeReply};

/// A probe that takes longer than this found the node unreachable.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Version, genesis and history change rarely: asked on every so many probes.
const IDENTITY_EVERY: u64 = 30;
/// The first probes are spread over this part of the interval: 100 ms at the default.
const FIRST_PART: u32 = 10;
/// A slot that an answer told within this part of the interval is not asked for: it is known about as well as by asking.
const RECENT_PART: u32 = 2;
/// How much of a node's own words is kept, in bytes: they go into logs and onto pages.
const MAX_WORDS_BYTES: usize = 200;

/// Who a node says it is; `None` where it would not say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// `getVersion`'s `solana-core`.
    pub version: Option<String>,
    /// `getGenesisHash`: which cluster it is of.
    pub genesis: Option<String>,
    /// `getFirstAvailableBlock`: how far back its blocks reach.
    pub first_available: Option<Slot>,
}

/// How a node says it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// `Ok`, or its own words.
    pub health: Result<(), String>,
    /// `getSlot` at each commitment.
    pub slots: PerCommitment<Option<Slot>>,
}

/// Asks a node who it is.
///
/// # Errors
/// The first question that brought no JSON-RPC answer.
pub async fn identity(client: &Client) -> Result<Identity, Fault> {
    let text = |value: Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(bounded);
    let (version, genesis, first) = tokio::join!(
        ask(client, "getVersion", json!([])),
        ask(client, "getGenesisHash", json!([])),
        ask(client, "getFirstAvailableBlock", json!([])),
    );
    Ok(Identity {
        version: version?.ok().and_then(|v| text(v, "/solana-core")),
        genesis: genesis?.ok().and_then(|v| text(v, "")),
        first_available: first?.ok().and_then(|v| v.as_u64()),
    })
}

/// Asks a node how it stands.
///
/// # Errors
/// The first question that brought no JSON-RPC answer.
pub async fn pulse(client: &Client) -> Result<Pulse, Fault> {
    pulse_without(client, |_| false).await
}

/// Asks a node how it stands, apart from slots that are `known`.
async fn pulse_without(client: &Client, known: impl Fn(Commitment) -> bool) -> Result<Pulse, Fault> {
    let slot = async |c: Commitment| {
        if known(c) {
            return Ok(Ok(Value::Null));
        }
        ask(client, "getSlot", json!([{ "commitment": c.as_str() }])).await
    };
    let (health, processed, confirmed, finalized) = tokio::join!(
        ask(client, "getHealth", json!([])),
        slot(Commitment::Processed),
        slot(Commitment::Confirmed),
        slot(Commitment::Finalized),
    );
    let number = |answer: Result<Value, String>| answer.ok().and_then(|v| v.as_u64());
    Ok(Pulse {
        health: health?.map(|_| ()),
        slots: PerCommitment {
            processed: number(processed?),
            confirmed: number(confirmed?),
            finalized: number(finalized?),
        },
    })
}

/// One question, as probes ask: the node's answer, whatever it is.
///
/// # Errors
/// There was no JSON-RPC answer.
pub async fn question(client: &Client, method: &str, params: &Value) -> Result<NodeReply, Fault> {
    NodeReply::parse(&client.probe(body(method, params), TIMEOUT).await?, 0)
}

/// The node's clock, as the head of an answer tells it.
///
/// # Errors
/// There was no answer.
pub async fn date(client: &Client) -> Result<Option<String>, Fault> {
    let (_, date) = client.post_for_header(body("getHealth", &json!([])), TIMEOUT, "date").await?;
    Ok(date)
}

fn body(method: &str, params: &Value) -> Bytes {
    json!({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}).to_string().into()
}

/// One question: the result, or the node's own error message.
async fn ask(client: &Client, method: &str, params: Value) -> Result<Result<Value, String>, Fault> {
    match question(client, method, &params).await? {
        NodeReply::Result(result) => Ok(Ok(serde_json::from_slice(&result).map_err(|_| Fault::BadJson)?)),
        NodeReply::Error { code, body } => {
            let message = serde_json::from_slice::<Value>(&body).ok();
            let message = message.as_ref().and_then(|v| v["message"].as_str()).unwrap_or("no message");
            Ok(Err(format!("{} ({code})", bounded(message))))
        }
    }
}

/// The beginning of a node's own words.
fn bounded(words: &str) -> String {
    words[..words.floor_char_boundary(MAX_WORDS_BYTES)].to_owned()
}

impl Pool {
    /// Probes every node that is not probed yet, each in a task of its own, until `stop` or until it has left the pool.
    pub fn probe(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        for member in self.members().iter().filter(|member| member.begin_probing()) {
            let (pool, stop, id) = (Arc::clone(self), stop.clone(), member.id);
            tasks.spawn(async move {
                let _ = stop.run_until_cancelled(pool.probe_node(id)).await;
            });
        }
    }

    async fn probe_node(&self, id: usize) {
        // A little apart, so that many gateways that start at once, before many nodes, do not all ask at once.
        let first = self.members.load().settings.probe_interval / FIRST_PART;
        tokio::time::sleep(first.mul_f64(f64::from((self.draw() % 1000) as u16) / 1000.0)).await;
        for round in 0u64.. {
            let members = self.members();
            let Some(member) = members.of(id) else { return };
            let identity_due = round % IDENTITY_EVERY == 0 || *member.health() == Health::Unprobed;
            self.probe_once(member, identity_due, members.settings.probe_interval).await;
            // Up to a tenth early or late, so that probes of many gateways do not fall into step.
            let jitter = 0.9 + f64::from((self.draw() % 1000) as u16) / 5000.0;
            tokio::time::sleep(members.settings.probe_interval.mul_f64(jitter)).await;
        }
    }

    /// One probe, taken in.
    async fn probe_once(&self, member: &Member, identity_due: bool, interval: Duration) {
        let standing = member.health();
        let found = async {
            if identity_due || matches!(*member.health(), Health::Foreign { .. } | Health::Unreachable(_)) {
                let identity = identity(&member.client).await?;
                if let Some(foreign) = self.check_genesis(identity.genesis) {
                    return Ok(foreign);
                }
                member.forget_incapable();
                if let Some(first) = identity.first_available {
                    member.set_first_available(first);
                }
                if let Some(version) = identity.version {
                    member.set_version(version);
                }
            }
            let (asked_at, recent) = (Instant::now(), interval / RECENT_PART);
            let known = |c| self.frontier.told_within(&member.shown, c, recent, asked_at);
            let pulse = pulse_without(&member.client, known).await?;
            let now = Instant::now();
            for commitment in Commitment::ALL {
                if let Some(slot) = pulse.slots.get(commitment) {
                    self.frontier.probed(member.id, commitment, *slot, now);
                }
            }
            Ok::<Health, Fault>(pulse.health.map_or_else(Health::Unhealthy, |()| Health::Healthy))
        };
        let health = found.await.unwrap_or_else(|fault| Health::Unreachable(fault.result().as_str()));
        // Another cluster was configured meanwhile: what was asked for the old one counts no more.
        if !Arc::ptr_eq(&standing, &member.health()) {
            return;
        }
        self.frontier.set_usable(member.id, health == Health::Healthy, Instant::now());
        if let Some(before) = member.set_health(health)
            && is_news(&before, &member.health())
        {
            report(&member.name, &before, &member.health());
        }
        if matches!(*member.health(), Health::Foreign { .. }) {
            self.follow_the_cluster();
        }
    }

    /// `Some` where a node is of another cluster than the pool; the first usable node names the pool's.
    fn check_genesis(&self, theirs: Option<String>) -> Option<Health> {
        let theirs = theirs?;
        let mut genesis = lock(&self.genesis);
        let ours = genesis.get_or_insert_with(|| theirs.clone());
        (*ours != theirs).then(|| Health::Foreign { theirs, ours: ours.clone() })
    }

    /// Another cluster is configured: the nodes that were of the old one are refused from now on, and what was kept is of
    /// no use.
    pub(super) fn set_genesis(&self, members: &Members, ours: &str) {
        let before = lock(&self.genesis).replace(ours.to_owned());
        let Some(theirs) = before.filter(|before| before != ours) else { return };
        tracing::warn!(genesis = ours, "another cluster is configured: the cache is emptied");
        for member in members {
            let health = match &*member.health() {
                Health::Unprobed => Health::Unprobed,
                Health::Foreign { theirs, .. } if theirs == ours => Health::Unprobed,
                _ => Health::Foreign { theirs: theirs.clone(), ours: ours.to_owned() },
            };
            self.frontier.set_usable(member.id, health == Health::Unprobed, Instant::now());
            if let Some(before) = member.set_health(health) {
                report(&member.name, &before, &member.health());
            }
        }
        self.frontier.forget();
        self.clusters.send_modify(|clusters| *clusters += 1);
    }

    /// When every node agrees on another cluster (a test cluster that was restarted), that one becomes the pool's.
    fn follow_the_cluster(&self) {
        let members = self.members.load();
        if members.settings.genesis_hash.is_some() {
            return;
        }
        let agreed = members.iter().map(|member| match &*member.health() {
            Health::Foreign { theirs, .. } => Some(theirs.clone()),
            _ => None,
        });
        let Some(theirs) = all_equal(agreed) else { return };
        tracing::warn!(genesis = theirs, "every upstream is of another cluster now: the cache is emptied");
        *lock(&self.genesis) = Some(theirs);
        self.frontier.forget();
        self.clusters.send_modify(|clusters| *clusters += 1);
    }
}

/// The value that all have; `None` where one has none or another.
fn all_equal(mut values: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = values.next()??;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}

/// A change of standing is worth a line; the same standing in other words (one slot further behind) is not.
fn is_news(before: &Health, now: &Health) -> bool {
    std::mem::discriminant(before) != std::mem::discriminant(now)
}

fn report(name: &str, before: &Health, now: &Health) {
    match now {
        Health::Healthy if *before == Health::Unprobed => {
            tracing::info!(upstream.name = name, "upstream is healthy");
        }
        Health::Healthy => tracing::info!(upstream.name = name, "upstream is healthy again"),
        Health::Unhealthy(why) => tracing::warn!(upstream.name = name, why, "upstream says it is unhealthy"),
        Health::Unreachable(why) => {
            tracing::warn!(upstream.name = name, why, "upstream does not answer its probes");
        }
        Health::Foreign { theirs, ours } => tracing::error!(
            upstream.name = name,
            genesis.theirs = theirs,
            genesis.ours = ours,
            "upstream is of another cluster and is not asked; set pool.genesis_hash if it is the right one"
        ),
        Health::Unprobed => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_kind_of_standing_is_news() {
        let behind = |slots: u64| Health::Unhealthy(format!("Node is behind by {slots} slots (-32005)"));
        for (before, now, expected) in [
            (Health::Unprobed, Health::Healthy, true),
            (Health::Healthy, behind(130), true),
            (behind(130), behind(131), false),
            (behind(130), Health::Unreachable("connect"), true),
            (Health::Unreachable("connect"), Health::Unreachable("timeout"), false),
            (Health::Unreachable("timeout"), Health::Healthy, true),
        ] {
            assert_eq!(is_news(&before, &now), expected, "{before:?} to {now:?}");
        }
    }

    #[test]
    fn a_nodes_words_are_bounded_between_characters() {
        assert_eq!(bounded("Node is unhealthy"), "Node is unhealthy");
        let long = bounded(&"€".repeat(1000));
        assert_eq!((long.len(), long.chars().all(|c| c == '€')), (198, true));
    }
}
