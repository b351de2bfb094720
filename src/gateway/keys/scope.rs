//! The restrictions of a key beyond its plan: where it may be used from, and for which methods.

use std::net::IpAddr;

use ipnet::IpNet;
use url::Url;

use crate::methods::AnyMethod;

/// The restrictions of a key. `None` means no restriction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// The web origins that the key may be used from.
    pub origins: Option<Vec<String>>,
    /// The client networks that the key may be used from.
    pub addresses: Option<Vec<IpNet>>,
    /// The methods that the key may call, out of those of its plan.
    pub methods: Option<Vec<AnyMethod>>,
}

impl Scope {
    /// Returns true if there are no restrictions.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

/// Parses a web origin. Browsers send one exact form, and requests are compared letter by letter, so others are
/// refused.
///
/// # Errors
/// The expected form.
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

/// Parses a network of client addresses, or one address.
///
/// # Errors
/// The expected form.
pub fn address(text: &str) -> Result<IpNet, &'static str> {
    let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    network.ok_or("expected an address or a network, like 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32")
}

/// Parses a method name.
///
/// # Errors
/// The expected form.
pub fn method(text: &str) -> Result<AnyMethod, &'static str> {
    AnyMethod::from_name(text).ok_or(
        "expected one of the eight methods, or one that passthrough.methods may name, spelt as in a call",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_the_form_that_browsers_send() {
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
    fn single_addresses_are_networks() {
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
