//! Where, and for what, a key holds beyond its plan: one rule for each list, however it comes in.

use std::net::IpAddr;

use ipnet::IpNet;
use url::Url;

use crate::methods::AnyMethod;

/// What narrows a key. `None` is any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Web origins that it may be used from.
    pub origins: Option<Vec<String>>,
    /// Client addresses that it may be used from.
    pub addresses: Option<Vec<IpNet>>,
    /// Methods that it may call, within its plan's.
    pub methods: Option<Vec<AnyMethod>>,
}

impl Scope {
    /// Whether the key holds everywhere, for all of its plan.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

/// A web origin. It is compared with what a browser sends, letter by letter, so only what one sends can be meant.
///
/// # Errors
/// What was expected.
pub fn origin(text: &str) -> Result<String, &'static str> {
    let sent = || {
        let url = Url::parse(text).ok()?;
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        Some(format!("{}://{}{port}", url.scheme(), url.host_str()?))
    };
    sent().filter(|sent| sent == text).ok_or(
        "expected an origin as a browser sends it, like https://app.example or http://localhost:3000: \
         lower case, no path, no default port",
    )
}

/// A network of client addresses, or one address.
///
/// # Errors
/// What was expected.
pub fn address(text: &str) -> Result<IpNet, &'static str> {
    let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    network.ok_or("expected an address or a network, like 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32")
}

/// A method.
///
/// # Errors
/// What was expected.
pub fn method(text: &str) -> Result<AnyMethod, &'static str> {
    AnyMethod::from_name(text).ok_or(
        "expected one of the eight methods, or one that passthrough.methods may name, spelt as in a call",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_a_browser_sends_and_nothing_else() {
        for good in [
            "https://app.example",
            "http://localhost:3000",
            "https://[2001:db8::1]:8443",
            "chrome-extension://abcdefgh",
        ] {
            assert_eq!(origin(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "*",
            "null",
            "app.example",
            "https://app.example/",
            "https://app.example/path",
            "https://App.example",
            "https://app.example:443",
            "https://user@app.example",
            "mailto:a@app.example",
        ] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_address_is_a_network_of_itself() {
        for (text, network) in
            [("192.0.2.7", "192.0.2.7/32"), ("10.0.0.0/8", "10.0.0.0/8"), ("2001:db8::1", "2001:db8::1/128")]
        {
            assert_eq!(address(text).unwrap(), network.parse::<IpNet>().unwrap());
        }
        for bad in ["", "10.0.0.0/33", "10.0.0", "localhost", "10.0.0.0/8 "] {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert!(method("getBlock").is_ok() && method("getblock").is_err());
    }
}
