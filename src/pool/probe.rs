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

use super::Pool;
use super::cluster::Used;
use super::member::{Health, Member};
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
/// The number of samples, a minute each, that tell how long a slot takes.
const SLOT_TIME_SAMPLES: u64 = 3;
/// A node whose slot has moved further than this between two looks is asked again which cluster it is of.
const JUMP_SLOTS: u64 = 64;
/// How much of a node's own words is kept, in bytes: they go into logs and onto pages.
const MAX_WORDS_BYTES: usize = 200;

/// What a node says of its cluster, asked for `getGenesisHash`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Genesis {
    /// Its genesis hash.
    Told(String),
    /// It does not do this method.
    Untold,
    /// It refused for another reason: it may tell the next time.
    Refused,
}

impl Genesis {
    /// The genesis hash that it told.
    pub fn told(&self) -> Option<&String> {
        if let Self::Told(genesis) = self { Some(genesis) } else { None }
    }
}

/// Who a node says it is; `None` where it would not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `getVersion`'s `solana-core`.
    pub version: Option<String>,
    /// Which cluster it is of.
    pub genesis: Genesis,
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
    let (version, genesis, first): (_, Result<Genesis, Fault>, _) = tokio::join!(
        ask(client, "getVersion", json!([])),
        genesis(client),
        ask(client, "getFirstAvailableBlock", json!([])),
    );
    Ok(Identity {
        version: version?.ok().and_then(|v| text(v, "/solana-core")),
        genesis: genesis?,
        first_available: first?.ok().and_then(|v| v.as_u64()),
    })
}

/// Asks a node which cluster it is of.
///
/// # Errors
/// There was no JSON-RPC answer.
async fn genesis(client: &Client) -> Result<Genesis, Fault> {
    Ok(match question(client, "getGenesisHash", &json!([])).await? {
        NodeReply::Result(result) => match serde_json::from_slice::<String>(&result) {
            Ok(genesis) => Genesis::Told(bounded(&genesis)),
            Err(_) => Genesis::Refused,
        },
        NodeReply::Error { code: -32601, .. } => Genesis::Untold,
        NodeReply::Error { .. } => Genesis::Refused,
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

/// Asks a node how long a slot takes, by its newest performance samples; `None` where it has none.
///
/// # Errors
/// There was no JSON-RPC answer.
pub async fn slot_time(client: &Client) -> Result<Option<Duration>, Fault> {
    let samples = ask(client, "getRecentPerformanceSamples", json!([SLOT_TIME_SAMPLES])).await?;
    Ok(samples.ok().and_then(|samples| time_of_samples(&samples)))
}

/// The length of a slot over all `samples`.
fn time_of_samples(samples: &Value) -> Option<Duration> {
    let sum = |name: &str| -> Option<u64> {
        samples.as_array()?.iter().try_fold(0_u64, |sum, sample| sum.checked_add(sample[name].as_u64()?))
    };
    let (seconds, slots) = (sum("samplePeriodSecs")?, u32::try_from(sum("numSlots")?).ok()?);
    Duration::from_secs(seconds).checked_div(slots).filter(|time| !time.is_zero())
}

/// One question, as probes ask: the node's answer, whatever it is.
///
/// # Errors
/// There was no JSON-RPC answer.
pub async fn question(client: &Client, method: &str, params: &Value) -> Result<NodeReply, Fault> {
    client.probe(body(method, params), TIMEOUT).await?.reply(0)
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
            let pause = tokio::time::sleep(members.settings.probe_interval.mul_f64(jitter));
            tokio::select! {
                () = pause => {}
                () = self.tell_confirmed(id) => {}
            }
        }
    }

    /// One probe, taken in.
    async fn probe_once(&self, member: &Member, identity_due: bool, interval: Duration) {
        let standing = member.health();
        let found = async {
            let used = member.used();
            let lost = matches!(*standing, Health::Foreign { .. } | Health::Silent | Health::Unreachable(_));
            if identity_due || lost || self.unidentified(member).is_some() {
                let identity = identity(&member.client).await?;
                if let Some(refused) = self.identify(member, used, identity.genesis) {
                    return Ok(refused);
                }
                member.forget_incapable();
                if let Some(first) = identity.first_available {
                    member.set_first_available(first);
                }
                if let Some(version) = identity.version {
                    member.set_version(version);
                }
            } else if member.is_checked() && member.has_new_connections() {
                // The other end may be another node by now.
                if let Some(refused) = self.look_again(member, used).await {
                    return Ok(refused);
                }
            }
            let (asked_at, era, recent) = (Instant::now(), self.frontier.era(), interval / RECENT_PART);
            let known = |c| self.frontier.told_within(&member.shown, c, recent, asked_at);
            let pulse = pulse_without(&member.client, known).await?;
            let now = Instant::now();
            let jumps = |c| {
                let (before, told) = (member.slot(c), *pulse.slots.get(c));
                before.zip(told).is_some_and(|(before, told)| told.abs_diff(before) > JUMP_SLOTS)
            };
            if member.is_checked() && Commitment::ALL.into_iter().any(jumps) {
                let used = member.used();
                if let Some(refused) = self.look_again(member, used).await {
                    return Ok(refused);
                }
            }
            for commitment in Commitment::ALL {
                if let Some(slot) = pulse.slots.get(commitment) {
                    self.frontier.probed_in(era, member.id, commitment, *slot, now);
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
        if let Some(before) = member.set_health(health) {
            self.standings.send_replace(());
            if is_news(&before, &member.health()) {
                report(&member.name, &before, &member.health());
            }
        }
        if self.unidentified(member).is_some() && member.take_doubtful_calls() {
            tracing::warn!(
                upstream.name = member.name,
                "upstream was asked before it was known to be of no use: the cache is emptied"
            );
            self.forget();
        }
        if matches!(*member.health(), Health::Foreign { .. }) {
            self.follow_the_cluster();
        }
    }

    /// Asks a node that has shown its cluster once more for it. A question that fails says nothing of the node, and is
    /// asked again with the next probe. `Some` says why the node is asked for nothing else.
    async fn look_again(&self, member: &Member, used: Used) -> Option<Health> {
        if let Ok(theirs) = genesis(&member.client).await {
            return self.identify(member, used, theirs);
        }
        member.ask_cluster_again();
        None
    }
}

/// A change of standing is worth a line; the same standing in other words (one slot further behind) is not.
fn is_news(before: &Health, now: &Health) -> bool {
    std::mem::discriminant(before) != std::mem::discriminant(now)
}

pub(super) fn report(name: &str, before: &Health, now: &Health) {
    match now {
        Health::Healthy if *before == Health::Unprobed => {
            tracing::info!(upstream.name = name, "upstream is healthy");
        }
        Health::Healthy => tracing::info!(upstream.name = name, "upstream is healthy again"),
        Health::Unhealthy(why) => tracing::warn!(upstream.name = name, why, "upstream says it is unhealthy"),
        Health::Unreachable(why) => {
            tracing::warn!(upstream.name = name, why, "upstream does not answer its probes");
        }
        Health::Silent => tracing::error!(
            upstream.name = name,
            "upstream does not tell its genesis hash and is not asked; \
             set genesis = \"unchecked\" for it if it is of the pool's cluster"
        ),
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
    fn samples_tell_how_long_a_slot_takes() {
        for (samples, expected_ms) in [
            (json!([{"numSlots": 240, "samplePeriodSecs": 60}]), Some(250)),
            (
                json!([{"numSlots": 240, "samplePeriodSecs": 60}, {"numSlots": 360, "samplePeriodSecs": 60}]),
                Some(200),
            ),
            (json!([]), None),
            (json!([{"numSlots": 0, "samplePeriodSecs": 60}]), None),
            (json!([{"numSlots": 240}]), None),
            (json!({"numSlots": 240}), None),
            (
                json!([{"numSlots": u64::MAX, "samplePeriodSecs": u64::MAX}, {"numSlots": 1, "samplePeriodSecs": 1}]),
                None,
            ),
        ] {
            assert_eq!(time_of_samples(&samples), expected_ms.map(Duration::from_millis), "{samples}");
        }
    }

    #[test]
    fn a_nodes_words_are_bounded_between_characters() {
        assert_eq!(bounded("Node is unhealthy"), "Node is unhealthy");
        let long = bounded(&"€".repeat(1000));
        assert_eq!((long.len(), long.chars().all(|c| c == '€')), (198, true));
    }
}
