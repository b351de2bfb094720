//! The restrictions of a key beyond those of its plan: its web origins, client addresses and methods.

use ipnet::IpNet;

use crate::config::{is_origin, network};
use crate::methods::AnyMethod;

/// The restrictions of a key. `None` means no restriction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// The web origins from which the key may be used.
    pub origins: Option<Vec<String>>,
    /// The networks of client addresses from which the key may be used.
    pub addresses: Option<Vec<IpNet>>,
    /// The methods that the key may call, if its plan allows them as well.
    pub methods: Option<Vec<AnyMethod>>,
}

/// Parses a web origin. Only the form that browsers send is accepted, because the origins of requests are compared byte
/// by byte.
///
/// # Errors
/// `text` is not an origin in this form. The error describes the form.
pub fn origin(text: &str) -> Result<String, &'static str> {
    is_origin(text).then(|| text.to_owned()).ok_or(
        "expected an origin as a browser sends it, like https://app.example or http://localhost:3000: \
         lower case, no path, no default port",
    )
}

/// Parses a network of client addresses, or a single address.
///
/// # Errors
/// `text` is neither a network nor an address. The error describes the expected form.
pub fn address(text: &str) -> Result<IpNet, &'static str> {
    network(text).ok_or("expected an address or a network, like 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32")
}

/// Parses the name of a method.
///
/// # Errors
/// `text` is not the name of such a method. The error describes the accepted names.
pub fn method(text: &str) -> Result<AnyMethod, &'static str> {
    AnyMethod::from_name(text)
        .ok_or("expected an exact method name: one that slotfront answers itself, or one of [methods]")
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
