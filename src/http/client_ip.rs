//! Finds the address of a client behind proxies: the rightmost address in `X-Forwarded-For` that belongs to no trusted
//! proxy.
//!
//! Each proxy appends the address of its peer to the header. The header is therefore read from its right end, up to the
//! first address that is not trusted. Elements further left may come from the client and are never read. A malformed
//! element in the part that is read makes the address unknown, because a guess could be abused.

use std::net::{IpAddr, Ipv6Addr};

use hyper::header::HeaderMap;

use super::Front;
use super::fields;
use crate::config::Server;

const X_FORWARDED_FOR: &str = "x-forwarded-for";
/// The header of RFC 7239 for the same purpose. It is not read, because few proxies write it, and one that does not would
/// pass on what a client has written.
const FORWARDED: &str = "forwarded";

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Peer {
    /// The address of the socket, or that of the connection's PROXY header.
    Address(IpAddr),
    /// A balancer, whose PROXY header names nobody. It may check the health of slotfront for itself, or pass on a client
    /// whom it cannot name.
    Unnamed(IpAddr),
    /// A client whose address the balancer does not tell.
    Unknown,
}

impl Peer {
    pub(super) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) | Self::Unnamed(address) => Some(address),
            Self::Unknown => None,
        }
    }
}

/// Returns the client's address. If the address is unknown, returns `None`. Counts a request whose address is unknown, or
/// that a trusted proxy sent without naming one.
pub(super) fn of(front: &Front, peer: Peer, headers: &HeaderMap) -> Option<IpAddr> {
    let config = front.config.now();
    let server = &config.server;
    let client = client_ip(peer, headers, server);
    if client.is_none() {
        front.metrics.client_addresses_unknown.at(()).inc();
    } else if !server.proxy_protocol
        && client.is_some_and(|client| is_trusted(client, server))
        && !headers.contains_key(X_FORWARDED_FOR)
    {
        front.metrics.client_addresses_missing.at(()).inc();
    }
    client
}

/// Returns the client's address. `None` if it is unknown.
///
/// An untrusted `peer` is the client itself. A trusted peer that sends neither `X-Forwarded-For` nor `Forwarded` is the
/// client as well. If it sends only `Forwarded`, the address is unknown. It is unknown, too, if either comes through a
/// balancer that names nobody: the client behind it may have written both.
fn client_ip(peer: Peer, headers: &HeaderMap, server: &Server) -> Option<IpAddr> {
    let address = peer.address()?.to_canonical();
    if !is_trusted(address, server) {
        return Some(address);
    }
    if matches!(peer, Peer::Unnamed(_)) || !headers.contains_key(X_FORWARDED_FOR) {
        let is_named = [X_FORWARDED_FOR, FORWARDED].iter().any(|field| headers.contains_key(*field));
        return (!is_named).then_some(address);
    }
    let values = fields::all(headers, X_FORWARDED_FOR).rev();
    let hops = values.flat_map(|value| value.rsplit(|byte| *byte == b','));
    last_untrusted(hops.map(hop), server)
}

/// Returns the first of `hops` that is not a trusted proxy, or the last hop if all are trusted. `hops` are the
/// elements of the header from right to left. `None` if a malformed hop comes first.
fn last_untrusted(hops: impl Iterator<Item = Option<IpAddr>>, server: &Server) -> Option<IpAddr> {
    let mut client = None;
    for hop in hops {
        let hop = hop?;
        client = Some(hop);
        if !is_trusted(hop, server) {
            break;
        }
    }
    client
}

pub(super) fn is_trusted(ip: IpAddr, server: &Server) -> bool {
    let ip = ip.to_canonical();
    server.trusted_proxies.iter().any(|network| network.contains(&ip))
}

/// Parses an element of `X-Forwarded-For`, which has no quoting. `None` if it is not an address.
fn hop(element: &[u8]) -> Option<IpAddr> {
    address(str::from_utf8(element).ok()?.trim())
}

/// Parses an address in any form that proxies write: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `fe80::1%eth0` or
/// `[2001:db8::1]:80`.
fn address(node: &str) -> Option<IpAddr> {
    if let Some((ip, port)) = node.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_end = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return v6(ip).filter(|_| is_end);
    }
    match node.split_once(':') {
        Some((ip, port)) if is_port(port) => ip.parse().ok().map(IpAddr::V4),
        Some(_) => v6(node),
        None => node.parse().ok().map(IpAddr::V4),
    }
}

/// Parses an IPv6 address and drops its zone, because configured networks have no zone.
fn v6(text: &str) -> Option<IpAddr> {
    let (ip, zone) = text.split_once('%').unwrap_or((text, "none"));
    let is_zone =
        !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-~".contains(&byte));
    let ip: Ipv6Addr = ip.parse().ok().filter(|_| is_zone)?;
    Some(ip.to_canonical())
}

fn is_port(port: &str) -> bool {
    (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use hyper::HeaderMap;
    use hyper::header::HeaderValue;

    use super::*;
    use crate::config::Config;

    /// Returns the client's address for a request from `peer` with `headers`. The networks 10.0.0.0/8 and
    /// `2001:db8:ff::/48` are trusted.
    fn client(peer: &str, headers: &[(&'static str, &[u8])]) -> Option<IpAddr> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Config::dev(any, any, Vec::new()).server;
        server.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8:ff::/48".parse().unwrap()];
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        client_ip(Peer::Address(peer.parse().unwrap()), &map, &server)
    }

    /// Checks that the client's address is `expected` when the trusted proxy 10.0.0.1 sends each of `values` in an
    /// `X-Forwarded-For`. If `expected` is empty, the address must be unknown.
    #[track_caller]
    fn check(values: &[&str], expected: &str) {
        let headers: Vec<_> = values.iter().map(|value| (X_FORWARDED_FOR, value.as_bytes())).collect();
        let expected = (!expected.is_empty()).then(|| expected.parse::<IpAddr>().unwrap());
        assert_eq!(client("10.0.0.1", &headers), expected, "{values:?}");
    }

    #[test]
    fn the_rightmost_untrusted_address_is_the_client() {
        // One proxy, two proxies, several headers. Elements further left may be forged and are ignored.
        check(&["198.51.100.1"], "198.51.100.1");
        check(&["203.0.113.9, 198.51.100.1"], "198.51.100.1");
        check(&["203.0.113.9, 198.51.100.1 ,10.0.0.2"], "198.51.100.1");
        check(&["198.51.100.1", "10.0.0.2"], "198.51.100.1");
        check(&["\", unknown, , 198.51.100.1, 10.0.0.2"], "198.51.100.1");
        check(&["::ffff:198.51.100.1"], "198.51.100.1");
        // Ports, zones and IPv6.
        check(&["198.51.100.1:4711"], "198.51.100.1");
        check(&["[2001:db8::1]:4711, 2001:db8:ff::2"], "2001:db8::1");
        check(&["[2001:db8::1]"], "2001:db8::1");
        check(&["fe80::1%eth0"], "fe80::1");
        check(&["[fe80::1%25eth0]:80"], "fe80::1");
        // Only trusted proxies: the leftmost is the client.
        check(&["10.0.0.3, 10.0.0.2"], "10.0.0.3");
        let chain = |client: &str| [&[client][..], &["10.0.0.2"; 39]].concat().join(",");
        check(&[&chain("198.51.100.1")], "198.51.100.1");
        check(&[&chain("unknown")], "");
    }

    #[test]
    fn a_chain_that_breaks_is_unknown() {
        for broken in [
            "",
            " ",
            "198.51.100.1,",
            "198.51.100.1,,10.0.0.2",
            "198.51.100.1, unknown, 10.0.0.2",
            "_hidden",
            "\", 198.51.100.1\"",
            "\"198.51.100.1\"",
            "198.51.100.1:",
            "198.51.100.1:http",
            "198.51.100.1:123456",
            "198.51.100.1%eth0",
            "[198.51.100.1]",
            "[2001:db8::1",
            "[2001:db8::1]80",
            "[2001:db8::1]:",
            "fe80::1%",
            "fe80::1%a b",
            "198.51.100.01",
            "for=198.51.100.1",
            "rpc.example",
            "198.51.100.1\u{e9}",
        ] {
            check(&[broken], "");
        }
        check(&["198.51.100.1", ""], "");
        // X-Forwarded-For has no quoting, so a quote does not extend over the comma.
        check(&["\", 198.51.100.1"], "198.51.100.1");
    }

    #[test]
    fn only_trusted_peers_and_only_x_forwarded_for() {
        let (x, f): (&[u8], &[u8]) = (b"198.51.100.1", b"for=203.0.113.9");
        let ip = |text: &str| Some(text.parse().unwrap());
        let both = [(X_FORWARDED_FOR, x), (FORWARDED, f)];
        assert_eq!(client("10.0.0.1", &both), ip("198.51.100.1"));
        assert_eq!(client("::ffff:10.0.0.1", &both), ip("198.51.100.1"));
        assert_eq!(client("192.0.2.1", &both), ip("192.0.2.1"), "no proxy of ours");
        assert_eq!(client("10.0.0.1", &[]), ip("10.0.0.1"), "its own call");
        assert_eq!(client("10.0.0.1", &[(FORWARDED, f)]), None);
    }
}
