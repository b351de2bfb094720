//! A map with one value for each client address, in bounded memory.
//!
//! An IPv6 client counts as its /64 network, because a customer usually gets a whole /64. All clients whose address is
//! unknown share one value. When the map is full, the least recently used address is forgotten.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

/// The maximum number of addresses. At a few hundred bytes each, they take about 20 MiB.
const ADDRESSES: u64 = 65_536;
/// The time after which an address without requests is forgotten. Its usage of a monthly quota is then forgotten, too.
const IDLE: Duration = Duration::from_hours(24);

pub(crate) struct PerAddress<T>(Cache<Option<IpAddr>, Arc<T>>);

impl<T: Send + Sync + 'static> PerAddress<T> {
    pub(crate) fn new() -> Self {
        // The default policy, TinyLFU, may refuse a new address, which would then have no limit.
        let policy = EvictionPolicy::lru();
        Self(Cache::builder().max_capacity(ADDRESSES).eviction_policy(policy).time_to_idle(IDLE).build())
    }

    /// Returns the value of `client`. `make` creates the value on the first use. `None` stands for all clients of
    /// unknown address.
    pub(crate) fn get(&self, client: Option<IpAddr>, make: impl FnOnce() -> T) -> Arc<T> {
        self.0.get_with(client.map(client_network), || Arc::new(make()))
    }
}

/// Returns the address that stands for a client: its IPv4 address, or the start of its IPv6 /64 network.
fn client_network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// Returns the name of a client in the shared store, such as `192.0.2.1`. The name is `unknown` for a client without a
/// known address.
pub(crate) fn client_name(client: Option<IpAddr>) -> String {
    client.map_or_else(|| "unknown".to_owned(), |client| client_network(client).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_clients_count_by_network_mapped_as_ipv4() {
        let rows = [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:2::ffff", "2001:db8:1:2::"),
        ];
        for (client, expected) in rows {
            assert_eq!(
                client_network(client.parse().unwrap()),
                expected.parse::<IpAddr>().unwrap(),
                "{client}"
            );
        }
    }

    #[test]
    fn addresses_beyond_the_bound_are_forgotten() {
        let seen = PerAddress::new();
        for i in 0..u32::try_from(ADDRESSES + 2_000).unwrap() {
            seen.get(Some(IpAddr::V4(i.into())), || ());
        }
        seen.0.run_pending_tasks();
        assert!(seen.0.entry_count() <= ADDRESSES, "{}", seen.0.entry_count());
        assert!(seen.0.iter().count() > usize::try_from(ADDRESSES / 2).unwrap());
    }

    #[test]
    fn one_client_gets_one_value() {
        let seen = PerAddress::new();
        let get = |client: &str, thing| *seen.get(client.parse().ok(), || thing);
        assert_eq!([get("2001:db8::1", 1), get("2001:db8::2", 2)], [1, 1]);
        assert_eq!([get("unknown", 3), get("0.0.0.0", 4), get("", 5)], [3, 4, 3]);
    }
}
