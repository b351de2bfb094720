//! The problems that `check` finds in settings and nodes, each with a fix. Most functions depend only on the
//! configuration and the results of probing the upstreams.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;

use super::examine::Examined;
use crate::config::{Config, GenesisCheck, Problem, Upstream};
use crate::frontier::ASSUMED_SLOT_TIME;
use crate::methods::Commitment;
use crate::node::{Fault, code};
use crate::pool::no_genesis_hash;
use crate::telemetry::AttemptResult;

/// The divisor that sets the limit for slow nodes: a getSlot call may take the duration of a slot divided by
/// this number.
const SLOW_PART: u32 = 4;
/// The tolerated difference between a node's clock and this machine's. The `Date` header has whole seconds, and NTP
/// keeps clocks much closer.
const SKEW: SignedDuration = SignedDuration::from_secs(3);
/// The length below which a node's history of blocks is reported as short.
const SHORT_HISTORY: Duration = Duration::from_hours(1);

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(in crate::cli) struct Finding {
    /// True for a fault: an upstream, a method or the shared store cannot be used, or other users can change a file.
    /// False for a warning.
    pub(super) fault: bool,
    pub(in crate::cli) what: String,
    pub(in crate::cli) fix: String,
}

impl Finding {
    pub(super) fn fault(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { fault: true, what: what.into(), fix: fix.into() }
    }

    pub(in crate::cli) fn warning(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { fault: false, what: what.into(), fix: fix.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, what, fix } = self;
        write!(f, "{}  {what}\n         fix: {fix}", if *fault { "fault  " } else { "warning" })
    }
}

pub(super) type ProbeResult = Result<Examined, Fault>;

/// Returns a warning for each setting that is valid but probably not intended.
pub(super) fn of_settings(config: &Config) -> Vec<Finding> {
    let finding = |warning: &Problem| {
        Finding::warning(format!("{} {}", warning.path, warning.rule), warning.fix.clone())
    };
    config.warnings.iter().map(finding).chain(of_bursts(config)).collect()
}

/// Returns a warning for each plan with batches that never succeed as a whole, because each call of a batch is taken
/// from the burst.
fn of_bursts(config: &Config) -> impl Iterator<Item = Finding> {
    config.plans.iter().filter_map(|(name, plan)| {
        let (setting, batch) = match plan.max_batch {
            Some(batch) => (format!("plans.{name}.max_batch"), batch),
            None => ("server.max_batch".to_owned(), config.server.max_batch),
        };
        (batch > plan.burst as usize).then(|| {
            Finding::warning(
                format!(
                    "plans.{name}.burst ({}) is below {setting} ({batch}), so the end of a longer batch always gets 429",
                    plan.burst
                ),
                format!("set plans.{name}.max_batch = {} or lower, or raise the burst", plan.burst),
            )
        })
    })
}

/// Returns a warning if no genesis hash is configured. `reported` is the one that all upstreams report.
pub(super) fn of_genesis_hash(config: &Config, reported: Option<&str>) -> Option<Finding> {
    let is_missing = config.pool.genesis_hash.is_none();
    is_missing.then(|| no_genesis_hash(reported)).map(|(what, fix)| Finding::warning(what, fix))
}

/// Returns the problem that a shared store is not usable, for the reason `why`.
pub(super) fn of_shared_store(why: &str) -> Finding {
    Finding::fault(
        format!("the shared store is not usable: {why}"),
        "check [shared] in the configuration and the store's log; until the store can be used, each replica works alone",
    )
}

/// Returns the problems of each upstream, and of all of them together. `probed` has the results of probing, in the
/// order of the upstreams.
pub(super) fn of_upstreams(config: &Config, probed: &[ProbeResult]) -> Vec<Finding> {
    let said = || probed.iter().flatten();
    let reported = || {
        let both = config.upstreams.iter().zip(probed);
        let checked = both.filter(|(upstream, _)| upstream.genesis == GenesisCheck::Checked);
        checked.filter_map(|(_, one)| one.as_ref().ok()?.identity.genesis.hash())
    };
    let agreed = reported().next().filter(|first| reported().all(|hash| hash == *first));
    let cluster = config.pool.genesis_hash.as_ref().or(agreed);
    let mut findings: Vec<_> =
        agreed.and_then(|hash| of_genesis_hash(config, Some(hash))).into_iter().collect();
    let is_foreign = |upstream: &Upstream, one: &Examined| {
        let own = one.identity.genesis.hash();
        upstream.genesis == GenesisCheck::Checked && own.is_some() && own != cluster
    };
    let of_cluster = config
        .upstreams
        .iter()
        .zip(probed)
        .filter_map(|(upstream, one)| Some((upstream, one.as_ref().ok()?)));
    let of_cluster = of_cluster.filter(|(upstream, one)| !is_foreign(upstream, one));
    let newest = of_cluster.filter_map(|(_, one)| one.slot(Commitment::Processed)).max();
    let slot_time = said().find_map(|one| one.slot_time).unwrap_or(ASSUMED_SLOT_TIME);
    for (upstream, probed) in config.upstreams.iter().zip(probed) {
        let name = format!("upstream {}", upstream.name);
        let one = match probed {
            Err(fault) => {
                findings.push(Finding::fault(
                    format!("{name} gives no usable answer: {fault}"),
                    unreachable(*fault),
                ));
                continue;
            }
            Ok(one) => one,
        };
        let checked = upstream.genesis == GenesisCheck::Checked;
        if let Some(own) = one.identity.genesis.hash().filter(|_| is_foreign(upstream, one)) {
            let what = match cluster {
                Some(ours) => {
                    format!(
                        "{name} belongs to another cluster: its genesis hash is {own}, the pool's is {ours}"
                    )
                }
                None => {
                    format!(
                        "{name} reports the genesis hash {own}, another upstream another one, so none gets calls"
                    )
                }
            };
            findings.push(Finding::fault(
                what,
                "remove it, or set pool.genesis_hash to the genesis hash of the cluster that you want",
            ));
            continue;
        }
        if checked && one.identity.genesis.hash().is_none() && cluster.is_some() {
            findings.push(Finding::fault(
                format!("{name} does not report its genesis hash, so it gets no calls"),
                "set genesis = \"unchecked\" for it if it belongs to the same cluster",
            ));
        }
        if let Err(words) = &one.pulse.health {
            findings.push(Finding::fault(
                format!("{name} is not healthy: {words}"),
                "wait until it has caught up (solana catchup --our-localhost); calls go to other nodes meanwhile",
            ));
        }
        findings.extend(lag(config, &name, newest, slot_time, one));
        findings.extend(history(&name, slot_time, one));
        findings.extend(responsiveness(&name, upstream.rps, slot_time, one));
    }
    findings.extend(of_versions_and_blocks(probed));
    findings
}

fn unreachable(fault: Fault) -> &'static str {
    match fault {
        Fault::NoConnection(AttemptResult::NameNotFound) => {
            "check the host name in its url, and the DNS of this machine"
        }
        Fault::NoConnection(AttemptResult::UnknownIssuer) => {
            "set ca_file to the certificate of the authority that issued its certificate"
        }
        Fault::NoConnection(AttemptResult::CertificateExpired) => {
            "renew its certificate, or correct the clock of this machine"
        }
        Fault::NoConnection(AttemptResult::WrongName) => {
            "use the host name in its url that its certificate has"
        }
        Fault::NoConnection(AttemptResult::TlsFailed) => {
            "check that its url begins with http: if it does not speak TLS"
        }
        Fault::NoConnection(_) | Fault::Connect => {
            "start it, or check its url, its --rpc-bind-address and firewalls; for https also ca_file"
        }
        Fault::Timeout | Fault::GivenUp => "check the network, and the load of the node",
        Fault::Status(300..=399) => {
            "set its url to the address that it redirects to; no redirect is followed"
        }
        Fault::Status(401 | 403) => {
            "set the credentials that it requires: a key in its url, or a header in upstream.headers"
        }
        Fault::Status(404) => "check the path of its url",
        Fault::Status(_) => "check the log of the node, and of a proxy in front of it",
        Fault::TooManyRequests(_) => {
            "set upstream.rps to the rate that its provider allows, or ask the provider for a higher rate"
        }
        Fault::Unhealthy => "wait until it has caught up",
        Fault::Truncated
        | Fault::BadJson
        | Fault::WrongId
        | Fault::UnknownCode
        | Fault::TooLarge
        | Fault::BuffersFull
        | Fault::Foreign => "check that its url is a node's RPC address: the answer is not JSON-RPC",
    }
}

fn lag(
    config: &Config,
    name: &str,
    newest: Option<u64>,
    slot_time: Duration,
    one: &Examined,
) -> Option<Finding> {
    let lag = newest?.saturating_sub(one.slot(Commitment::Processed)?);
    let most = config.pool.max_slot_lag;
    let seconds = slot_time.as_secs_f64() * f64::from(u32::try_from(lag).unwrap_or(u32::MAX));
    let what = format!("{name} is {lag} slots ({seconds:.1} s) behind the others");
    let rule =
        format!("beyond pool.max_slot_lag ({most} slots) it gets calls only if no other upstream is usable");
    if lag > most {
        return Some(Finding::fault(what, format!("let it catch up; {rule}")));
    }
    // The nodes were not asked at the same moment, so a difference of a few slots means nothing.
    (lag > most / 2 && lag > 4).then(|| Finding::warning(what, format!("watch it; {rule}")))
}

fn history(name: &str, slot_time: Duration, one: &Examined) -> Vec<Finding> {
    let mut findings = Vec::new();
    match one.no_block {
        Some(code::METHOD_NOT_FOUND) => findings.push(Finding::warning(
            format!("{name} does not serve getBlock"),
            "start the node with --full-rpc-api if it is an Agave node; until then getBlock goes to other nodes",
        )),
        Some(code::TRANSACTION_HISTORY_NOT_AVAILABLE) => findings.push(Finding::warning(
            format!("{name} keeps no transaction history, so getBlock goes to other nodes"),
            "start the node with --enable-rpc-transaction-history",
        )),
        _ => {}
    }
    let (first, last) = (one.identity.first_available, one.slot(Commitment::Finalized));
    if let (Some(first), Some(last), None) = (first, last, one.no_block)
        && first > 0
        && let slots = last.saturating_sub(first)
        && let time = slot_time.saturating_mul(u32::try_from(slots).unwrap_or(u32::MAX))
        && time < SHORT_HISTORY
    {
        findings.push(Finding::warning(
            format!("{name} holds only the blocks of the last {slots} slots ({} min)", time.as_secs() / 60),
            "raise --limit-ledger-size of the node, or add an upstream with older blocks",
        ));
    }
    findings
}

fn responsiveness(name: &str, rps: Option<u32>, slot_time: Duration, one: &Examined) -> Vec<Finding> {
    let mut findings = Vec::new();
    if one.latency > slot_time / SLOW_PART {
        findings.push(Finding::warning(
            format!(
                "{name} takes {} ms for getSlot; expected at most {} ms, a quarter of a slot",
                one.latency.as_millis(),
                (slot_time / SLOW_PART).as_millis()
            ),
            "run slotfront closer to it, or give it a higher upstream.tier, so that it is asked last",
        ));
    }
    let Examined { sent, refused, .. } = one;
    if *refused > 0 {
        let wait =
            one.retry_after.map(|wait| format!(" (Retry-After: {} s)", wait.as_secs())).unwrap_or_default();
        let fix = match rps {
            None => {
                "set upstream.rps to the rate that the node allows, so that further calls go to other nodes"
            }
            Some(_) => "lower upstream.rps: the node allows less",
        };
        findings.push(Finding::warning(
            format!("{name} refused {refused} of {sent} simultaneous calls with HTTP 429{wait}"),
            fix,
        ));
    }
    match one.skew {
        Some(skew) if skew.abs() > SKEW => {
            let (seconds, way) =
                (skew.abs().as_secs(), if skew.is_negative() { "behind" } else { "ahead of" });
            findings.push(Finding::warning(
                format!("the clock of {name} is {seconds} s {way} this machine's"),
                "set up NTP on the machine whose clock is wrong (see chronyc tracking); quotas, key expiry and certificates use this machine's clock",
            ));
        }
        _ => {}
    }
    if one.identity.version.is_none() {
        findings.push(Finding::warning(
            format!("{name} does not report its version"),
            "none if a provider hides the version; otherwise check that its url is a node's RPC address",
        ));
    }
    findings
}

/// Returns the problems that show only in the comparison of all upstreams: different versions, or no upstream
/// with blocks.
fn of_versions_and_blocks(probed: &[ProbeResult]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let series = |version: &str| version.split('.').take(2).collect::<Vec<_>>().join(".");
    let versions = probed.iter().flatten().filter_map(|one| one.identity.version.as_deref()).map(series);
    let versions: std::collections::BTreeSet<_> = versions.collect();
    if versions.len() > 1 {
        let list = versions.into_iter().collect::<Vec<_>>().join(", ");
        findings.push(Finding::warning(
            format!("the upstreams run different versions: {list}"),
            "run one version everywhere; otherwise error texts differ from call to call",
        ));
    }
    let lacks_blocks =
        |code| matches!(code, Some(code::METHOD_NOT_FOUND | code::TRANSACTION_HISTORY_NOT_AVAILABLE));
    let has_blocks = |one: &Examined| !lacks_blocks(one.no_block);
    if probed.iter().flatten().next().is_some() && !probed.iter().flatten().any(has_blocks) {
        findings.push(Finding::fault(
            "no upstream answers getBlock",
            "start at least one Agave node with --full-rpc-api and --enable-rpc-transaction-history",
        ));
    }
    findings
}

#[cfg(test)]
mod tests;
