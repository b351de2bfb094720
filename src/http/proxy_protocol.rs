//! The PROXY protocol, version 2: a TCP balancer says before the first byte whose connection it hands on.
//!
//! Source: `HAProxy`'s specification, section 2.2 ("The PROXY Protocol, versions 1 & 2"). Version 1, which is text, is
//! refused: every balancer that speaks it speaks this one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Addresses and whatever a balancer adds about the connection (its TLS names, for one) fit in it many times.
const MAX_BYTES: u16 = 4096;

/// The client that a header names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// This address.
    Client(IpAddr),
    /// The proxy itself, which looks at our health.
    Proxy,
    /// Somebody whose address the proxy does not tell.
    Nobody,
}

/// Why a connection's header is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// It ended or broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Whoever connects may not say whose connection it is.
    #[error("server.proxy_protocol: the peer is none of server.trusted_proxies")]
    Stranger,
    /// It begins with something else.
    #[error("server.proxy_protocol: expected a PROXY protocol v2 header")]
    NoHeader,
    /// Another version, command or length than there is.
    #[error("a PROXY header that cannot be: {0}")]
    Malformed(&'static str),
}

/// Reads the header off `stream`.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Named, Refused> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await?;
    let [.., version_and_command, family, high, low] = head;
    if !head.starts_with(&SIGNATURE) {
        return Err(Refused::NoHeader);
    }
    let length = u16::from_be_bytes([high, low]);
    if length > MAX_BYTES {
        return Err(Refused::Malformed("longer than 4096 bytes"));
    }
    let mut rest = vec![0; usize::from(length)];
    stream.read_exact(&mut rest).await?;
    match version_and_command {
        0x20 => return Ok(Named::Proxy),
        0x21 => {}
        command if command >> 4 == 2 => return Err(Refused::Malformed("an unknown command")),
        _ => return Err(Refused::Malformed("a version other than 2")),
    }
    // The upper half is the family, the lower one the transport; the source address comes first.
    match (family >> 4, rest.first_chunk::<4>(), rest.first_chunk::<16>()) {
        (1, Some(ip), _) if length >= 12 => Ok(Named::Client(Ipv4Addr::from(*ip).into())),
        (2, _, Some(ip)) if length >= 36 => Ok(Named::Client(Ipv6Addr::from(*ip).into())),
        (1 | 2, ..) => Err(Refused::Malformed("shorter than its addresses")),
        // Unknown, or a socket of the proxy's own machine.
        _ => Ok(Named::Nobody),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[tokio::test]
    async fn the_client_is_whom_the_proxy_names_and_not_a_byte_more_is_read() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x34, 0x01, 0xbb];
        let v6 = [&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], &[0; 20]].concat();
        let client = |ip: &str| Named::Client(ip.parse().unwrap());
        let with_more = [&v4[..], &[3, 0, 4, 1, 2, 3, 4]].concat();
        for (name, bytes, expected) in [
            ("IPv4", header(0x21, 0x11, &v4), Ok(client("192.0.2.7"))),
            ("IPv6", header(0x21, 0x21, &v6), Ok(client("2001:db8::7"))),
            ("with TLVs", header(0x21, 0x11, &with_more), Ok(client("192.0.2.7"))),
            ("a health check", header(0x20, 0x00, &[]), Ok(Named::Proxy)),
            ("not said", header(0x21, 0x00, &[]), Ok(Named::Nobody)),
            ("a unix socket", header(0x21, 0x31, &[0; 216]), Ok(Named::Nobody)),
            ("short", header(0x21, 0x11, &v4[..8]), Err("shorter than its addresses")),
            ("version 3", header(0x31, 0x11, &v4), Err("a version other than 2")),
            ("command 2", header(0x22, 0x11, &v4), Err("an unknown command")),
            ("long", header(0x21, 0x11, &[0; 5000]), Err("longer than 4096 bytes")),
            (
                "version 1",
                b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n".to_vec(),
                Err("expected a PROXY protocol v2"),
            ),
            ("plain HTTP", b"POST /v3/key HTTP/1.1\r\n".to_vec(), Err("expected a PROXY")),
            ("cut off", header(0x21, 0x11, &v4)[..20].to_vec(), Err("early eof")),
        ] {
            let mut stream = &[&bytes[..], if name == "cut off" { b"" } else { b"POST" }].concat()[..];
            let found = read(&mut stream).await;
            match (&found, expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!(*found, expected, "{name}");
                    assert_eq!(stream, b"POST", "{name}");
                }
                (Err(found), Err(expected)) => {
                    assert!(found.to_string().contains(expected), "{name}: {found}");
                }
                _ => panic!("{name}: {found:?}"),
            }
        }
    }
}
