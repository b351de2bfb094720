//! The advice about `follow.mode`. The advice depends only on the configuration and the results of probing the
//! upstreams.

use std::net::IpAddr;

use super::doctor::ProbeResult;
use super::examine::Examined;
use crate::config::{Config, Upstream};
use crate::follow::calls_per_slot;
use crate::frontier::ASSUMED_SLOT_TIME;

/// Returns the advice about `follow.mode`. `is_private` says for each upstream if its address is in a private network
/// or on this machine.
pub(super) fn following(config: &Config, probed: &[ProbeResult], is_private: &[bool]) -> String {
    let slot_time = probed.iter().flatten().find_map(|one| one.slot_time).unwrap_or(ASSUMED_SLOT_TIME);
    let slots = 1.0 / slot_time.as_secs_f64();
    let nodes: Vec<_> = config
        .upstreams
        .iter()
        .zip(probed)
        .zip(is_private.iter().copied())
        .filter_map(|((upstream, probed), is_private)| suitable(upstream, probed, is_private))
        .collect();
    let bandwidth = |bytes: f64| {
        let (block, second) = (bytes / 1e6, bytes * slots / 1e6);
        format!("{second:.1} MB a second ({block:.2} MB a block)")
    };
    let calls = calls_per_slot(slot_time, config.follow.poll) * slots;
    if let Some((name, bytes, _)) = nodes.iter().find(|(_, _, is_private)| *is_private) {
        let bandwidth = bandwidth(*bytes);
        return format!(
            "advice   set follow.mode = \"on\": {name} has a private address, and its blocks can be followed\n         \
             cost: {calls:.0} calls a second and {bandwidth}, whatever the traffic; try follow.mode = \"shadow\" first, which counts and compares what \"on\" would save"
        );
    }
    if let Some((name, bytes, _)) = nodes.first() {
        let (bandwidth, day) = (bandwidth(*bytes), calls * 86_400.0 / 1e6);
        return format!(
            "advice   leave follow.mode = \"off\": no upstream whose blocks can be followed has a private address\n         \
             cost with {name}: {calls:.0} calls a second and {bandwidth}; following pays if it saves more than {day:.1} million calls a day"
        );
    }
    "advice   leave follow.mode = \"off\": no upstream is an Agave node that returns blocks and has a version known to slotfront"
        .to_owned()
}

/// Returns three values: the upstream's name; the mean length of its blocks in bytes; and `is_private`.
/// `None` if its blocks cannot be followed.
fn suitable<'a>(
    upstream: &'a Upstream,
    probed: &ProbeResult,
    is_private: bool,
) -> Option<(&'a str, f64, bool)> {
    let Ok(Examined { block_bytes: Some(bytes), .. }) = probed else { return None };
    Some((&upstream.name, *bytes, is_private))
}

/// Returns true if every address of the upstream's host is in a private network or on this machine.
pub(super) async fn has_private_address(upstream: &Upstream) -> bool {
    let Ok(url) = url::Url::parse(upstream.url.expose()) else { return false };
    let host = match url.host() {
        Some(url::Host::Ipv4(ip)) => return is_private(ip.into()),
        Some(url::Host::Ipv6(ip)) => return is_private(ip.into()),
        Some(url::Host::Domain(name)) => name,
        None => return false,
    };
    let Ok(addresses) = tokio::net::lookup_host((host, 0)).await else { return false };
    let mut addresses = addresses.map(|address| is_private(address.ip())).peekable();
    addresses.peek().is_some() && addresses.all(|is_private| is_private)
}

/// Returns true if the address is in a private network or on this machine.
fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // Overlay networks and the NAT of carriers use the range 100.64.0.0/10.
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Secret;

    #[tokio::test]
    async fn private_addresses_are_recognized() {
        for (url, expected) in [
            ("http://10.1.2.3:8899", true),
            ("http://127.0.0.1:8899", true),
            ("http://localhost:8899", true),
            ("http://100.64.0.1", true),
            ("http://[fd00::1]:8899", true),
            ("http://[::ffff:192.168.0.1]", true),
            ("http://8.8.8.8", false),
            ("http://100.128.0.1", false),
            ("https://[2606:4700::1111]/key", false),
            ("http://node.invalid", false),
        ] {
            let upstream = Upstream::plain("n", Secret::new(url));
            assert_eq!(has_private_address(&upstream).await, expected, "{url}");
        }
    }

    #[test]
    fn following_costs_few_calls() {
        for (slot_ms, expected) in [(400, 4.0), (250, 3.0), (200, 3.0)] {
            let calls = calls_per_slot(Duration::from_millis(slot_ms), Duration::from_millis(100));
            assert!((calls - expected).abs() < 0.02, "{slot_ms}: {calls}");
        }
    }
}
