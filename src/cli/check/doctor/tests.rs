//! Tests of the problems that `check` finds.

use super::*;
use crate::cli::check::advice;
use crate::config::{Secret, Upstream};
use crate::methods::PerCommitment;
use crate::pool::probe::{Genesis, Identity, Pulse};

fn config(upstreams: usize) -> Config {
    let any = ([127, 0, 0, 1], 0).into();
    let upstream = |i| Upstream::plain(format!("n{i}"), Secret::new("http://n.example"));
    Config::dev(any, any, (0..upstreams).map(upstream).collect())
}

fn healthy() -> Examined {
    Examined {
        identity: Identity {
            feature_set: None,
            version: Some("4.0.0".to_owned()),
            genesis: Genesis::Hash("G".to_owned()),
            first_available: Some(0),
            lists_writes: true,
        },
        pulse: Pulse { health: Ok(()), slots: PerCommitment::uniform(Some(1_000_000)) },
        latency: Duration::from_millis(3),
        sent: 30,
        refused: 0,
        retry_after: None,
        skew: Some(SignedDuration::from_millis(400)),
        slot_time: Some(Duration::from_millis(250)),
        no_block: None,
        block_bytes: None,
    }
}

#[test]
fn batches_longer_than_the_burst_are_reported() {
    let mut config = config(1);
    assert_eq!(of_settings(&config), []);
    for (max_batch, burst, found) in [
        (Some(7), 7, None),
        (Some(8), 7, Some("plans.standard.burst (7) is below plans.standard.max_batch (8)")),
        (None, 199, Some("plans.standard.burst (199) is below server.max_batch (200)")),
        (None, 200, None),
    ] {
        let plan = config.plans.get_mut("standard").unwrap();
        (plan.max_batch, plan.burst) = (max_batch, burst);
        let findings = of_settings(&config);
        assert!(
            findings
                .iter()
                .all(|finding| !finding.fault && finding.what.starts_with(found.unwrap_or("none"))),
            "{findings:?}"
        );
        assert_eq!(findings.len(), usize::from(found.is_some()), "{findings:?}");
    }
}

/// Returns the problems found with a faulty node beside a healthy one. `change` turns the healthy results of
/// probing into those of the faulty node.
fn found(change: impl FnOnce(&mut Examined)) -> String {
    let mut one = healthy();
    change(&mut one);
    let mut config = config(2);
    config.pool.genesis_hash = Some("G".to_owned());
    let findings = of_upstreams(&config, &[Ok(healthy()), Ok(one)]);
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn different_clusters_are_named_without_a_guess() {
    let other = |genesis| Examined { identity: Identity { genesis, ..healthy().identity }, ..healthy() };
    let found = |genesis| of_upstreams(&config(2), &[Ok(other(genesis)), Ok(healthy())]);
    let findings: Vec<_> = found(Genesis::Hash("H".to_owned())).iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(findings.join("\n"), @r#"
    fault    upstream n0 reports the genesis hash H, another upstream another one, so none gets calls
             fix: remove it, or set pool.genesis_hash to the genesis hash of the cluster that you want
    fault    upstream n1 reports the genesis hash G, another upstream another one, so none gets calls
             fix: remove it, or set pool.genesis_hash to the genesis hash of the cluster that you want
    "#);
    let hash = "G".to_owned();
    let findings: Vec<_> = found(Genesis::Hash(hash.clone())).iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(findings.join("\n"), @r#"
    warning  pool.genesis_hash is not set, so slotfront believes what all upstreams agree on, and one of another cluster stops every call
             fix: write under [pool], if it is that of your cluster: genesis_hash = "G"
    "#);
    let mut config = config(2);
    config.pool.genesis_hash = Some(hash);
    assert!(of_upstreams(&config, &[Ok(healthy()), Ok(healthy())]).is_empty());
    assert_eq!(of_genesis_hash(&config, None), None);
}

#[test]
fn every_finding_has_a_fix() {
    let table = [
        found(|_| {}),
        found(|one| one.pulse.health = Err("Node is behind by 200 slots (-32005)".to_owned())),
        found(|one| one.identity.genesis = Genesis::Hash("H".to_owned())),
        // The slots of a node of another cluster say nothing about the lag of the other nodes.
        found(|one| {
            one.identity.genesis = Genesis::Hash("H".to_owned());
            one.pulse.slots.processed = Some(345_000_000);
        }),
        found(|one| one.identity.genesis = Genesis::Unsupported),
        found(|one| one.pulse.slots.processed = Some(1_000_000 - 21)),
        found(|one| one.pulse.slots.processed = Some(1_000_000 - 11)),
        found(|one| one.pulse.slots.processed = Some(1_000_000 - 4)),
        found(|one| one.no_block = Some(-32601)),
        found(|one| one.no_block = Some(-32011)),
        found(|one| one.identity.first_available = Some(999_000)),
        found(|one| one.latency = Duration::from_millis(180)),
        found(|one| one.latency = Duration::from_millis(70)),
        found(|one| (one.refused, one.retry_after) = (7, Some(Duration::from_secs(5)))),
        found(|one| one.skew = Some(SignedDuration::from_secs(-90))),
        found(|one| one.skew = None),
        found(|one| one.identity.version = Some("3.1.4".to_owned())),
        found(|one| one.identity.version = None),
    ];
    insta::assert_snapshot!(table.join("\n"), @r#"

    fault    upstream n1 is not healthy: Node is behind by 200 slots (-32005)
             fix: wait until it has caught up (solana catchup --our-localhost); calls go to other nodes meanwhile
    fault    upstream n1 belongs to another cluster: its genesis hash is H, the pool's is G
             fix: remove it, or set pool.genesis_hash to the genesis hash of the cluster that you want
    fault    upstream n1 belongs to another cluster: its genesis hash is H, the pool's is G
             fix: remove it, or set pool.genesis_hash to the genesis hash of the cluster that you want
    fault    upstream n1 does not report its genesis hash, so it gets no calls
             fix: set genesis = "unchecked" for it if it belongs to the same cluster
    fault    upstream n1 is 21 slots (5.2 s) behind the others
             fix: let it catch up; beyond pool.max_slot_lag (20 slots) it gets calls only if no other upstream is usable
    warning  upstream n1 is 11 slots (2.8 s) behind the others
             fix: watch it; beyond pool.max_slot_lag (20 slots) it gets calls only if no other upstream is usable

    warning  upstream n1 does not serve getBlock
             fix: start the node with --full-rpc-api if it is an Agave node; until then getBlock goes to other nodes
    warning  upstream n1 keeps no transaction history, so getBlock goes to other nodes
             fix: start the node with --enable-rpc-transaction-history
    warning  upstream n1 holds only the blocks of the last 1000 slots (4 min)
             fix: raise --limit-ledger-size of the node, or add an upstream with older blocks
    warning  upstream n1 takes 180 ms for getSlot; expected at most 62 ms, a quarter of a slot
             fix: run slotfront closer to it, or give it a higher upstream.tier, so that it is asked last
    warning  upstream n1 takes 70 ms for getSlot; expected at most 62 ms, a quarter of a slot
             fix: run slotfront closer to it, or give it a higher upstream.tier, so that it is asked last
    warning  upstream n1 refused 7 of 30 simultaneous calls with HTTP 429 (Retry-After: 5 s)
             fix: set upstream.rps to the rate that the node allows, so that further calls go to other nodes
    warning  the clock of upstream n1 is 90 s behind this machine's
             fix: set up NTP on the machine whose clock is wrong (see chronyc tracking); quotas, key expiry and certificates use this machine's clock

    warning  the upstreams run different versions: 3.1, 4.0
             fix: run one version everywhere; otherwise error texts differ from call to call
    warning  upstream n1 does not report its version
             fix: none if a provider hides the version; otherwise check that its url is a node's RPC address
    "#);
}

#[test]
fn unreachable_upstreams_get_specific_fixes() {
    let config = config(1);
    for (fault, cure) in [
        (Fault::Connect, "--rpc-bind-address"),
        (Fault::Timeout, "network"),
        (Fault::Status(308), "redirects"),
        (Fault::Status(401), "upstream.headers"),
        (Fault::TooManyRequests(None), "upstream.rps"),
        (Fault::BadJson, "not JSON-RPC"),
    ] {
        let findings = of_upstreams(&config, &[Err(fault)]);
        assert!(findings[0].fault && findings[0].fix.contains(cure), "{findings:?}");
        assert_eq!(findings.len(), 1, "an unreachable node has one finding");
    }
}

#[test]
fn advice_depends_on_addresses_and_blocks() {
    let config = config(2);
    let probed = |bytes: [Option<f64>; 2]| bytes.map(|block_bytes| Ok(Examined { block_bytes, ..healthy() }));
    let size = Some(1_400_000.0);
    let advice = [
        advice::following(&config, &probed([None, size]), &[true, true]),
        advice::following(&config, &probed([size, None]), &[false, true]),
        advice::following(&config, &probed([None, None]), &[true, true]),
        advice::following(&config, &[Err(Fault::Connect), Err(Fault::Connect)], &[true, true]),
    ];
    insta::assert_snapshot!(advice.join("\n"), @r#"
    advice   set follow.mode = "on": n1 has a private address, and its blocks can be followed
             cost: 12 calls a second and 5.6 MB a second (1.40 MB a block), whatever the traffic; try follow.mode = "shadow" first, which counts and compares what "on" would save
    advice   leave follow.mode = "off": no upstream whose blocks can be followed has a private address
             cost with n0: 12 calls a second and 5.6 MB a second (1.40 MB a block); following pays if it saves more than 1.0 million calls a day
    advice   leave follow.mode = "off": no upstream is an Agave node that returns blocks and has a version known to slotfront
    advice   leave follow.mode = "off": no upstream is an Agave node that returns blocks and has a version known to slotfront
    "#);
}
