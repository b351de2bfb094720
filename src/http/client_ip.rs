//! Finds the address of a client behind proxies: the rightmost address in `X-Forwarded-For` or `Forwarded` that
//! belongs to no trusted proxy.
//!
//! Each proxy appends the address of its peer to the header. The header is therefore read from its right end, up to the
//! first address that is not trusted. Elements further left may come from the client and are never read. A malformed
//! element in the part that is read makes the address unknown, because a guess could be abused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Front;
use super::request_head::Fields;
use crate::config::{ClientIpHeader, Server};

const X_FORWARDED_FOR: &str = "x-forwarded-for";
/// The standard header with the addresses of the client and its proxies (RFC 7239).
const FORWARDED: &str = "forwarded";

/// Returns the client's address. If the address is unknown, returns `None`. Counts a request whose address is unknown, or
/// that a trusted proxy sent without naming one. `peer` is the address at the other end of the connection, or the address in the connection's PROXY header.
pub(super) fn of(front: &Front, peer: Option<IpAddr>, fields: &(impl Fields + ?Sized)) -> Option<IpAddr> {
    let server = &front.config.server;
    let client = client_ip(peer, fields, server);
    if client.is_none() {
        front.metrics.client_addresses_unknown.at(()).inc();
    } else if !server.proxy_protocol
        && peer.is_some_and(|peer| server.trusts(peer))
        && fields.first(X_FORWARDED_FOR).is_none()
        && fields.first(FORWARDED).is_none()
    {
        front.metrics.client_addresses_missing.at(()).inc();
    }
    client
}

/// Returns the client's address. `None` if it is unknown.
///
/// An untrusted `peer` is the client itself. A trusted peer that sends neither `Forwarded` nor `X-Forwarded-For` is the
/// client as well. If a trusted peer sends only one of these headers, and the other is configured, the address is
/// unknown.
fn client_ip(peer: Option<IpAddr>, fields: &(impl Fields + ?Sized), server: &Server) -> Option<IpAddr> {
    let peer = peer?.to_canonical();
    if !server.trusts(peer) {
        return Some(peer);
    }
    let (name, other) = match server.client_ip_header {
        ClientIpHeader::XForwardedFor => (X_FORWARDED_FOR, FORWARDED),
        ClientIpHeader::Forwarded => (FORWARDED, X_FORWARDED_FOR),
    };
    if fields.first(name).is_none() {
        return fields.first(other).is_none().then_some(peer);
    }
    let values = fields.all(name).rev();
    match server.client_ip_header {
        ClientIpHeader::XForwardedFor => {
            let hops = values.flat_map(|value| value.rsplit(|byte| *byte == b','));
            last_untrusted(hops.map(plain), server)
        }
        ClientIpHeader::Forwarded => {
            last_untrusted(values.flat_map(|value| forwarded(value).into_iter().rev()), server)
        }
    }
}

/// Returns the first of `hops` that is not a trusted proxy, or the last hop if all are trusted. `hops` are the
/// elements of the header from right to left. `None` if a malformed hop comes first.
fn last_untrusted(hops: impl Iterator<Item = Option<IpAddr>>, server: &Server) -> Option<IpAddr> {
    let mut client = None;
    for hop in hops {
        let hop = hop?;
        client = Some(hop);
        if !server.trusts(hop) {
            break;
        }
    }
    client
}

/// Parses an element of `X-Forwarded-For`, which has no quoting. `None` if it is not an address.
fn plain(element: &[u8]) -> Option<IpAddr> {
    address(str::from_utf8(element).ok()?.trim())
}

/// Parses the elements of a `Forwarded` header, from left to right. An element without a valid address is `None`.
fn forwarded(value: &[u8]) -> Vec<Option<IpAddr>> {
    let elements = str::from_utf8(value).ok().and_then(|text| split_unquoted(text, ','));
    // An unterminated quoted string may hide elements that proxies appended, so the whole value is malformed.
    elements.map_or_else(|| vec![None], |elements| elements.into_iter().map(forwarded_for).collect())
}

/// Returns the address in an element such as `for="[2001:db8::1]:80";proto=https`. `None` if the element is
/// malformed, has no `for` parameter, or has two.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut named = None;
    for pair in split_unquoted(element, ';')? {
        let (name, value) = pair.split_once('=')?;
        if name.trim().eq_ignore_ascii_case("for") && named.replace(value.trim()).is_some() {
            return None;
        }
    }
    let value = named?;
    let node = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
    address(node)
}

/// Splits `text` at `separator` outside of quoted strings (RFC 9110, 5.6.4). `None` if a quoted string has no end.
fn split_unquoted(text: &str, separator: char) -> Option<Vec<&str>> {
    let (mut quoted, mut escaped) = (false, false);
    let separates = |c: char| {
        let plain = !std::mem::take(&mut escaped);
        match c {
            '"' if plain => quoted = !quoted,
            '\\' if plain && quoted => escaped = true,
            _ => return c == separator && !quoted,
        }
        false
    };
    let parts = text.split(separates).collect();
    (!quoted).then_some(parts)
}

/// Parses an address in any form that proxies write: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `fe80::1%eth0` or
/// `[2001:db8::1]:80`.
fn address(node: &str) -> Option<IpAddr> {
    let ip = if let Some(rest) = node.strip_prefix('[') {
        let (ip, port) = rest.split_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        v6(ip)?.into()
    } else if let Some((ip, port)) = node.split_once(':').filter(|(_, rest)| !rest.contains(':')) {
        if !is_port(port) {
            return None;
        }
        ip.parse::<Ipv4Addr>().ok()?.into()
    } else {
        node.parse().ok().or_else(|| v6(node).map(IpAddr::V6))?
    };
    Some(IpAddr::to_canonical(&ip))
}

/// Parses an IPv6 address and drops its zone, because configured networks have no zone.
fn v6(text: &str) -> Option<Ipv6Addr> {
    let (ip, zone) = text.split_once('%').map_or((text, None), |(ip, zone)| (ip, Some(zone)));
    let is_zone = |zone: &str| !zone.is_empty() && zone.bytes().all(is_name_byte);
    ip.parse().ok().filter(|_| zone.is_none_or(is_zone))
}

/// Returns true for a port: digits, or an underscore and a name that the proxy has chosen (RFC 7239, 6.3).
fn is_port(port: &str) -> bool {
    match port.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(is_name_byte),
        None => (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-~".contains(&byte)
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
    fn client(header: ClientIpHeader, peer: &str, headers: &[(&'static str, &[u8])]) -> Option<IpAddr> {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Config::dev(any, any, Vec::new()).server;
        server.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8:ff::/48".parse().unwrap()];
        server.client_ip_header = header;
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        client_ip(Some(peer.parse().unwrap()), &map, &server)
    }

    /// Checks that the client's address is `expected` when the trusted proxy 10.0.0.1 sends each of `values` as a
    /// header. If `expected` is empty, the address must be unknown.
    #[track_caller]
    fn check(header: ClientIpHeader, values: &[&str], expected: &str) {
        let name = match header {
            ClientIpHeader::XForwardedFor => X_FORWARDED_FOR,
            ClientIpHeader::Forwarded => FORWARDED,
        };
        let headers: Vec<_> = values.iter().map(|value| (name, value.as_bytes())).collect();
        let expected = (!expected.is_empty()).then(|| expected.parse::<IpAddr>().unwrap());
        assert_eq!(client(header, "10.0.0.1", &headers), expected, "{values:?}");
    }

    #[test]
    fn the_rightmost_untrusted_address_is_the_client() {
        let check = |values: &[&str], expected: &str| check(ClientIpHeader::XForwardedFor, values, expected);
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
        let check = |values: &[&str], expected: &str| check(ClientIpHeader::XForwardedFor, values, expected);
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
    fn forwarded_is_read_with_its_quotes() {
        let check = |values: &[&str], expected: &str| check(ClientIpHeader::Forwarded, values, expected);
        check(&["for=198.51.100.1;proto=https;by=10.0.0.1"], "198.51.100.1");
        check(&["for=203.0.113.9, proto=https; For=\"[2001:db8::1]:80\""], "2001:db8::1");
        check(&["for=198.51.100.1;by=\"a,b;for=1.1.1.1\", for=10.0.0.2"], "198.51.100.1");
        check(&["for=198.51.100.1;by=\"a\\\",for=1.1.1.1\""], "198.51.100.1");
        check(&["for=\"198.51.100.1:_port\""], "198.51.100.1");
        check(&["for=\"", "for=198.51.100.1"], "198.51.100.1");
        for broken in [
            "",
            "for=_hidden",
            "for=unknown",
            "for=\"_hidden:80\"",
            "proto=https",
            "198.51.100.1",
            "for=198.51.100.1;for=203.0.113.9",
            "for=198.51.100.1,",
            "for=\", for=198.51.100.1",
            "for=\"x, for=\"[2001:db8::1]\"",
            "for=\"\\\", for=\"[2001:db8::1]\"",
            "for=\"[2001:db8::1]",
            "for=[2001:db8::1]\"",
        ] {
            check(&[broken], "");
        }
    }

    #[test]
    fn only_trusted_peers_and_only_the_configured_header() {
        let (x, f): (&[u8], &[u8]) = (b"198.51.100.1", b"for=203.0.113.9");
        let ip = |text: &str| Some(text.parse().unwrap());
        for (header, own, other) in [
            (ClientIpHeader::XForwardedFor, ip("198.51.100.1"), f),
            (ClientIpHeader::Forwarded, ip("203.0.113.9"), x),
        ] {
            let both = [(X_FORWARDED_FOR, x), (FORWARDED, f)];
            assert_eq!(client(header, "10.0.0.1", &both), own);
            assert_eq!(client(header, "::ffff:10.0.0.1", &both), own);
            assert_eq!(client(header, "192.0.2.1", &both), ip("192.0.2.1"), "no proxy of ours");
            assert_eq!(client(header, "10.0.0.1", &[]), ip("10.0.0.1"), "its own call");
            let foreign = if other == f { FORWARDED } else { X_FORWARDED_FOR };
            assert_eq!(client(header, "10.0.0.1", &[(foreign, other)]), None);
        }
    }
}
