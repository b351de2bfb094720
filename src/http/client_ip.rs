//! Whose request it is when proxies stand between: the rightmost address that no trusted proxy has.
//!
//! Each proxy appends the address that it was called from, so a header is believed from its right end, as far as
//! trusted proxies wrote it. What stands left of that is the client's own claim, and is never looked at.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::fields::Fields;

const X_FORWARDED_FOR: &str = "x-forwarded-for";
/// RFC 7239.
const FORWARDED: &str = "forwarded";

/// The client's address: `peer` itself unless it is a trusted proxy, else what `X-Forwarded-For` or `Forwarded` says.
///
/// A proxy writes one of the two and may pass the other through as the client sent it. Where both are there and
/// disagree, one is a lie, and the proxy's own address is all that is certain.
pub fn client_ip(peer: IpAddr, fields: &(impl Fields + ?Sized), trusted: &[IpNet]) -> IpAddr {
    let peer = peer.to_canonical();
    let trusts = |ip: IpAddr| trusted.iter().any(|network| network.contains(&ip));
    if trusted.is_empty() || !trusts(peer) {
        return peer;
    }
    let walk = |name: &'static str, address: fn(&str) -> Option<IpAddr>| {
        fields.first(name).is_some().then(|| {
            let mut client = peer;
            for hop in fields.all(name).rev().flat_map(|value| hops(value).into_iter().rev()) {
                // A hop that cannot be read ends the chain: who wrote it was the last one known.
                let Some(ip) = address(&hop) else { break };
                client = ip;
                if !trusts(ip) {
                    break;
                }
            }
            client
        })
    };
    match (walk(X_FORWARDED_FOR, plain), walk(FORWARDED, forwarded)) {
        (Some(one), Some(other)) if one != other => peer,
        (Some(client), _) | (None, Some(client)) => client,
        (None, None) => peer,
    }
}

/// The elements of a header, separated by commas outside quotes. What is no text is an element that no address is.
fn hops(value: &[u8]) -> Vec<String> {
    let mut quoted = false;
    let comma = |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    String::from_utf8_lossy(value).split(comma).map(|hop| hop.trim().to_owned()).collect()
}

/// An address, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
fn plain(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(hop);
    let ip = bare.parse().ok().or_else(|| hop.parse::<SocketAddr>().ok().map(|socket| socket.ip()))?;
    Some(IpAddr::to_canonical(&ip))
}

/// The `for` of `for="[2001:db8::1]:80";proto=https`; `unknown` and `_hidden` are no addresses.
fn forwarded(hop: &str) -> Option<IpAddr> {
    let pairs = hop.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    plain(value.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;

    use super::*;

    #[track_caller]
    fn check(peer: &str, headers: &[(&'static str, &str)], expected: &str) {
        let trusted = ["10.0.0.0/8".parse().unwrap(), "2001:db8:ff::/48".parse().unwrap()];
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let client = client_ip(peer.parse().unwrap(), &map, &trusted);
        assert_eq!(client, expected.parse::<IpAddr>().unwrap(), "{peer} {headers:?}");
    }

    #[test]
    fn the_rightmost_untrusted_address_is_the_client() {
        let x = X_FORWARDED_FOR;
        // No proxy, or not one of ours: its headers are its own claim.
        check("192.0.2.1", &[], "192.0.2.1");
        check("192.0.2.1", &[(x, "198.51.100.1")], "192.0.2.1");
        check("10.0.0.1", &[], "10.0.0.1");
        // One proxy, two proxies, several headers; what the client claimed stands left, and is not looked at.
        check("10.0.0.1", &[(x, "198.51.100.1")], "198.51.100.1");
        check("10.0.0.1", &[(x, "203.0.113.9, 198.51.100.1")], "198.51.100.1");
        check("10.0.0.1", &[(x, "203.0.113.9, 198.51.100.1 ,10.0.0.2")], "198.51.100.1");
        check("10.0.0.1", &[(x, "198.51.100.1"), (x, "10.0.0.2")], "198.51.100.1");
        check("::ffff:10.0.0.1", &[(x, "::ffff:198.51.100.1")], "198.51.100.1");
        // With ports, and IPv6.
        check("10.0.0.1", &[(x, "198.51.100.1:4711")], "198.51.100.1");
        check("10.0.0.1", &[(x, "[2001:db8::1]:4711, 2001:db8:ff::2")], "2001:db8::1");
        check("10.0.0.1", &[(x, "[2001:db8::1]")], "2001:db8::1");
        // Nobody but proxies: the first of them.
        check("10.0.0.1", &[(x, "10.0.0.3, 10.0.0.2")], "10.0.0.3");
        // What is no address ends what is known.
        check("10.0.0.1", &[(x, "198.51.100.1, unknown, 10.0.0.2")], "10.0.0.2");
        check("10.0.0.1", &[(x, "")], "10.0.0.1");
        check("10.0.0.1", &[(x, "198.51.100.1,")], "10.0.0.1");
    }

    #[test]
    fn forwarded_is_read_as_well() {
        let (x, f) = (X_FORWARDED_FOR, FORWARDED);
        check("10.0.0.1", &[(f, "for=198.51.100.1;proto=https;by=10.0.0.1")], "198.51.100.1");
        check("10.0.0.1", &[(f, "for=203.0.113.9, proto=https; For=\"[2001:db8::1]:80\"")], "2001:db8::1");
        check("10.0.0.1", &[(f, "for=198.51.100.1;by=\"a,b\", for=10.0.0.2")], "198.51.100.1");
        check("10.0.0.1", &[(f, "for=_hidden")], "10.0.0.1");
        check("10.0.0.1", &[(f, "proto=https")], "10.0.0.1");
        // Both: agreed, or one of them passed through as the client made it up.
        check("10.0.0.1", &[(x, "198.51.100.1"), (f, "for=198.51.100.1")], "198.51.100.1");
        check("10.0.0.1", &[(x, "198.51.100.1"), (f, "for=203.0.113.9")], "10.0.0.1");
    }
}
