//! The PROXY protocol: a TCP balancer sends the client's address in a header before the client's first byte.
//!
//! Source: `HAProxy`'s "The PROXY Protocol, versions 1 & 2", section 2. It is read here, because the crates
//! `proxy-header` and `ppp` each accept lines of version 1 that the source forbids, or refuse some that it allows.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE_V2: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The maximum length of a header of version 2 after its first 16 bytes. Addresses and extensions, such as TLS names, are
/// far shorter.
const MAX_BYTES_V2: u16 = 4096;
/// The length of the shortest header of all, which is that of version 1 without addresses.
const MIN_BYTES: usize = b"PROXY UNKNOWN\r\n".len();
/// The maximum length of a header of version 1, which is one line.
const MAX_BYTES_V1: usize = 107;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NamedClient {
    Address(IpAddr),
    /// The proxy itself, for example to check the health of slotfront. The connection's own address counts.
    Proxy,
    /// A client whose address the proxy does not tell.
    Unknown,
}

/// Reads the PROXY header from `stream`, and no byte after it.
///
/// # Errors
/// The header is missing or malformed, or the read fails.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<NamedClient> {
    let mut begin = [0; MIN_BYTES];
    stream.read_exact(&mut begin).await?;
    if begin.starts_with(&SIGNATURE_V2) {
        read_v2(begin, stream).await
    } else if begin.starts_with(b"PROXY ") {
        read_v1(begin, stream).await
    } else {
        Err(io::Error::other("server.proxy_protocol: expected a PROXY protocol header"))
    }
}

/// Reads the rest of a header of version 1, which begins with `begin`.
async fn read_v1(begin: [u8; MIN_BYTES], stream: &mut (impl AsyncRead + Unpin)) -> io::Result<NamedClient> {
    let mut line = begin.to_vec();
    // The line is read bytewise, because only its end tells its length.
    while !line.ends_with(b"\r\n") {
        if line.len() == MAX_BYTES_V1 {
            return Err(malformed("no end of line in 107 bytes"));
        }
        line.push(stream.read_u8().await?);
    }
    let text = str::from_utf8(&line[..line.len() - 2]).map_err(|_| malformed("not ASCII"))?;
    let (family, rest) = text["PROXY ".len()..].split_once(' ').unwrap_or((&text["PROXY ".len()..], ""));
    match family {
        "TCP4" => source_address::<Ipv4Addr>(rest),
        "TCP6" => source_address::<Ipv6Addr>(rest),
        // What follows must be ignored, and the connection is taken as if it had no header.
        "UNKNOWN" => Ok(NamedClient::Proxy),
        _ => Err(malformed("a family other than TCP4, TCP6 and UNKNOWN")),
    }
}

/// Parses the addresses and ports of a header of version 1, and returns the source address.
fn source_address<A: FromStr + Into<IpAddr>>(text: &str) -> io::Result<NamedClient> {
    let mut fields = text.split(' ');
    let mut address = || fields.next()?.parse::<A>().ok();
    let (source, destination) = (address(), address());
    let (Some(source), Some(_)) = (source, destination) else {
        return Err(malformed("not two addresses of its family"));
    };
    if !(fields.next().is_some_and(is_port) && fields.next().is_some_and(is_port) && fields.next().is_none())
    {
        return Err(malformed("not two ports after the addresses"));
    }
    Ok(NamedClient::Address(source.into()))
}

/// Returns true for a port in decimal, without zeros before it.
fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port.to_string() == text)
}

/// Reads the rest of a header of version 2, which begins with `begin`.
async fn read_v2(begin: [u8; MIN_BYTES], stream: &mut (impl AsyncRead + Unpin)) -> io::Result<NamedClient> {
    let [.., version_and_command, family, high] = begin;
    let length = u16::from_be_bytes([high, stream.read_u8().await?]);
    if length > MAX_BYTES_V2 {
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
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE_V2[..], &[command, family], &length, rest].concat()
    }

    fn client(ip: &str) -> NamedClient {
        NamedClient::Address(ip.parse().unwrap())
    }

    /// Reads each header with bytes of a request after it, and checks what it says, and that the request is unread.
    async fn check(cases: impl IntoIterator<Item = (&str, Vec<u8>, Result<NamedClient, &str>)>) {
        for (name, bytes, expected) in cases {
            let request: &[u8] = if name == "cut off" { b"" } else { b"POST" };
            let mut stream = &[&bytes[..], request].concat()[..];
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

    #[tokio::test]
    async fn version_1_names_the_client() {
        let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(91));
        let too_long = format!("PROXY UNKNOWN {}\r\n", "f".repeat(92));
        assert_eq!(longest.len(), MAX_BYTES_V1);
        let endless = format!("PROXY TCP4 {}", "1".repeat(5000));
        let (addresses, ports) = ("not two addresses", "not two ports");
        check(
            [
                ("PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\n", Ok(client("192.0.2.7"))),
                ("PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", Ok(client("0.0.0.0"))),
                ("PROXY TCP6 2001:db8::7 ::1 1 2\r\n", Ok(client("2001:db8::7"))),
                ("PROXY TCP6 2001:DB8:0:0:0:0:0:7 ::1 1 2\r\n", Ok(client("2001:db8::7"))),
                ("PROXY UNKNOWN\r\n", Ok(NamedClient::Proxy)),
                ("PROXY UNKNOWN ::1 nothing \r of this \n counts\r\n", Ok(NamedClient::Proxy)),
                (&longest, Ok(NamedClient::Proxy)),
                (&too_long, Err("no end of line in 107 bytes")),
                (&endless, Err("no end of line in 107 bytes")),
                // Neither byte ends the line alone.
                ("PROXY TCP4 192.0.2.7 10.0.0.1 1 2\nGET / HTTP/1.1\r\n", Err(ports)),
                ("PROXY TCP4 192.0.2.7 10.0.0.1 1 2\rGET / HTTP/1.1\r\n", Err(ports)),
                // The family is not that of the addresses.
                ("PROXY TCP4 2001:db8::7 ::1 1 2\r\n", Err(addresses)),
                ("PROXY TCP4 192.0.2.7 ::1 1 2\r\n", Err(addresses)),
                ("PROXY TCP6 192.0.2.7 10.0.0.1 1 2\r\n", Err(addresses)),
                ("PROXY TCP6 2001:db8::7 10.0.0.1 1 2\r\n", Err(addresses)),
                ("PROXY TCP5 192.0.2.7 10.0.0.1 1 2\r\n", Err("a family other than")),
                ("PROXY UDP4 192.0.2.7 10.0.0.1 1 2\r\n", Err("a family other than")),
                ("PROXY UNKNOWNS\r\n", Err("a family other than")),
                ("PROXY unknown\r\n", Err("a family other than")),
                ("PROXY  TCP4 192.0.2.7 10.0.0.1 1 2\r\n", Err("a family other than")),
                ("proxy TCP4 192.0.2.7 10.0.0.1 1 2\r\n", Err("expected a PROXY")),
                // One space, no zeros in front, and nothing missing or beyond.
                ("PROXY TCP4 192.0.2.07 10.0.0.1 1 2\r\n", Err(addresses)),
                ("PROXY TCP4 192.0.2.7  10.0.0.1 1 2\r\n", Err(addresses)),
                ("PROXY TCP4 192.0.2.256 10.0.0.1 1 2\r\n", Err(addresses)),
                ("PROXY TCP4 192.0.2.7\r\n", Err(addresses)),
                ("PROXY TCP4\r\n 192.0.2.7 10.0.0.1 1 2\r\n", Err("a family other than")),
                ("PROXY TCP4 192.0.2.7 10.0.0.1 1\r\n", Err(ports)),
                ("PROXY TCP4 192.0.2.7 10.0.0.1 1 2 3\r\n", Err(ports)),
                ("PROXY TCP4 192.0.2.7 10.0.0.1 1 2 \r\n", Err(ports)),
                ("PROXY TCP4 192.0.2.7 10.0.0.1 01 2\r\n", Err(ports)),
                ("PROXY TCP4 192.0.2.7 10.0.0.1 +1 2\r\n", Err(ports)),
                ("PROXY TCP4 192.0.2.7 10.0.0.1 1 65536\r\n", Err(ports)),
                ("PROXY TCP4 192.0.2.7 10.0.0.1 1 -2\r\n", Err(ports)),
            ]
            .map(|(line, expected)| (line, line.as_bytes().to_vec(), expected)),
        )
        .await;
        let not_text = b"PROXY TCP4 192.0.2.7\xff 10.0.0.1 1 2\r\n".to_vec();
        let line = b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r".to_vec();
        check([("not text", not_text, Err("not ASCII")), ("cut off", line, Err("unexpected end of file"))])
            .await;
    }

    proptest! {
        #[test]
        fn no_more_than_the_line_is_read(family in "TCP4|TCP6|UNKNOWN|TCP", rest in "[ 0-9a-f.:\r\n]{0,120}", after in "[\r\n -~]{0,9}") {
            let sent = format!("PROXY {family} {rest}\r\n{after}");
            let mut stream = sent.as_bytes();
            let found = read(&mut stream).now_or_never().expect("a slice never waits");
            let taken = sent.len() - stream.len();
            prop_assert!(taken <= MAX_BYTES_V1, "{taken}");
            if found.is_ok() {
                prop_assert_eq!(sent[..taken].find("\r\n"), Some(taken - 2), "{}", sent);
            }
        }
    }

    #[tokio::test]
    async fn a_header_may_arrive_byte_by_byte() {
        use tokio::io::AsyncWriteExt as _;
        for sent in [
            b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n".to_vec(),
            header(0x21, 0x11, &[192, 0, 2, 7, 10, 0, 0, 1, 0, 1, 0, 2]),
        ] {
            let (mut proxy, mut stream) = tokio::io::duplex(1);
            let (written, found) = tokio::join!(proxy.write_all(&sent), read(&mut stream));
            written.unwrap();
            assert_eq!(found.unwrap(), client("192.0.2.7"));
        }
    }

    #[tokio::test]
    async fn version_2_names_the_client() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x34, 0x01, 0xbb];
        let v6 = [&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], &[0; 20]].concat();
        let with_more = [&v4[..], &[3, 0, 4, 1, 2, 3, 4]].concat();
        check([
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
            ("plain HTTP", b"POST /v3/key HTTP/1.1\r\n".to_vec(), Err("expected a PROXY")),
            ("cut off", header(0x21, 0x11, &v4)[..20].to_vec(), Err("early eof")),
        ])
        .await;
    }
}
