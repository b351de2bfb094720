//! One thing per client address, in bounded memory.
//!
//! An IPv6 client counts as its /64: whoever has one address has 2^64. All clients of unknown address count as one. When more addresses come than are
//! remembered, those not seen for longest are forgotten.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

/// A few hundred bytes each: some 20 MiB at the worst.
const ADDRESSES: u64 = 65_536;
/// A day: what an address has used of a monthly quota is forgotten with it.
const IDLE: Duration = Duration::from_hours(24);

/// One `T` for each client address.
pub(crate) struct PerAddress<T>(Cache<Option<IpAddr>, Arc<T>>);

impl<T: Send + Sync + 'static> PerAddress<T> {
    pub(crate) fn new() -> Self {
        // Not TinyLFU, moka's own policy: it may refuse a newcomer, who would then have no limit.
        let policy = EvictionPolicy::lru();
        Self(Cache::builder().max_capacity(ADDRESSES).eviction_policy(policy).time_to_idle(IDLE).build())
    }

    /// The thing of `client`, made on its first call.
    pub(crate) fn get(&self, client: Option<IpAddr>, make: impl FnOnce() -> T) -> Arc<T> {
        self.0.get_with(client.map(network), || Arc::new(make()))
    }

    /// All that is remembered.
    pub(crate) fn each(&self, visit: impl Fn(&T)) {
        self.0.iter().for_each(|(_, thing)| visit(&thing));
    }
}

/// What counts as one client.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// Returns the name under which a client is counted together with other gateways.
pub(crate) fn show(client: Option<IpAddr>) -> String {
    client.map_or_else(|| "unknown".to_owned(), |client| network(client).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_client_is_its_network_and_a_mapped_one_is_ipv4() {
        let rows = [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:2::ffff", "2001:db8:1:2::"),
        ];
        for (client, expected) in rows {
            assert_eq!(network(client.parse().unwrap()), expected.parse::<IpAddr>().unwrap(), "{client}");
        }
    }

    #[test]
    fn however_many_addresses_come_some_are_forgotten() {
        let seen = PerAddress::new();
        for i in 0..u32::try_from(ADDRESSES + 2_000).unwrap() {
            seen.get(Some(IpAddr::V4(i.into())), || ());
        }
        seen.0.run_pending_tasks();
        assert!(seen.0.entry_count() <= ADDRESSES, "{}", seen.0.entry_count());
        let kept = std::cell::Cell::new(0);
        seen.each(|()| kept.set(kept.get() + 1));
        assert!(kept.get() <= ADDRESSES && kept.get() > ADDRESSES / 2, "{kept:?}");
    }

    #[test]
    fn the_same_client_meets_the_same_thing() {
        let seen = PerAddress::new();
        let get = |client: &str, thing| *seen.get(client.parse().ok(), || thing);
        assert_eq!([get("2001:db8::1", 1), get("2001:db8::2", 2)], [1, 1]);
        assert_eq!([get("unknown", 3), get("0.0.0.0", 4), get("", 5)], [3, 4, 3]);
    }
}
