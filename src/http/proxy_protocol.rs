//! The PROXY protocol, version 2: a TCP balancer sends the client's address in a header before the client's first byte.
//!
//! Source: `HAProxy`'s "The PROXY Protocol, versions 1 & 2", section 2.2. Version 1, a text format, is refused, because
//! balancers with version 1 also support version 2.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The maximum length of a header after its first 16 bytes. Addresses and extensions, such as TLS names, are far
/// shorter.
const MAX_BYTES: u16 = 4096;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NamedClient {
    Address(IpAddr),
    /// The proxy itself, which checks the health of slotfront.
    Proxy,
    /// A client whose address the proxy does not tell.
    Unknown,
}

/// Reads the PROXY header from `stream`, and no byte after it.
///
/// # Errors
/// The header is missing or malformed, or the read fails.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<NamedClient> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await?;
    let [.., version_and_command, family, high, low] = head;
    if !head.starts_with(&SIGNATURE) {
        return Err(io::Error::other("server.proxy_protocol: expected a PROXY protocol v2 header"));
    }
    let length = u16::from_be_bytes([high, low]);
    if length > MAX_BYTES {
        return Err(malformed("longer than 4096 bytes"));
    }
    let mut rest = vec![0; usize::from(length)];
    stream.read_exact(&mut rest).await?;
    match version_and_command {
        0x20 => return Ok(NamedClient::Proxy),
        0x21 => {}
        command if command >> 4 == 2 => return Err(malformed("an unknown command")),
        _ => return Err(malformed("a version other than 2")),
    }
    // The upper four bits are the address family, the lower four the transport. The source address comes first.
    match (family >> 4, rest.first_chunk::<4>(), rest.first_chunk::<16>()) {
        (1, Some(ip), _) if length >= 12 => Ok(NamedClient::Address(Ipv4Addr::from(*ip).into())),
        (2, _, Some(ip)) if length >= 36 => Ok(NamedClient::Address(Ipv6Addr::from(*ip).into())),
        (1 | 2, ..) => Err(malformed("too short to hold its addresses")),
        // The family is unspecified, or a Unix socket.
        _ => Ok(NamedClient::Unknown),
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::other(format!("malformed PROXY header: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[tokio::test]
    async fn header_names_the_client() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x34, 0x01, 0xbb];
        let v6 = [&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], &[0; 20]].concat();
        let client = |ip: &str| NamedClient::Address(ip.parse().unwrap());
        let with_more = [&v4[..], &[3, 0, 4, 1, 2, 3, 4]].concat();
        for (name, bytes, expected) in [
            ("IPv4", header(0x21, 0x11, &v4), Ok(client("192.0.2.7"))),
            ("IPv6", header(0x21, 0x21, &v6), Ok(client("2001:db8::7"))),
            ("with TLVs", header(0x21, 0x11, &with_more), Ok(client("192.0.2.7"))),
            ("a health check", header(0x20, 0x00, &[]), Ok(NamedClient::Proxy)),
            ("not said", header(0x21, 0x00, &[]), Ok(NamedClient::Unknown)),
            ("a unix socket", header(0x21, 0x31, &[0; 216]), Ok(NamedClient::Unknown)),
            ("short", header(0x21, 0x11, &v4[..8]), Err("too short to hold its addresses")),
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
