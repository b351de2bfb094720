//! The types of settings and their syntax: `"400ms"`, `"512MiB"`, `"forever"`, `100`.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::methods::{AnyMethod, Commitment, Group, Profile, Pubkey};

use super::raw::Raw;
use super::{Assemble, AuthMode, CallRate, FollowMode, GenesisCheck, LogFormat, WsListen, network};

/// A type that settings can have.
pub(super) trait Setting: Sized {
    /// The description of valid values, which follows "expected" in a problem.
    const EXPECTED: &'static str;
    /// An example of a valid value, to be shown in a problem.
    const EXAMPLE: &'static str;

    /// Parses a value of this type; `None` if it is invalid.
    fn read(raw: &Raw) -> Option<Self>;

    /// Returns the JSON Schema of the values in the file.
    fn schema() -> Value {
        json!({ "type": "string" })
    }
}

macro_rules! whole_numbers {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            const EXPECTED: &'static str = "a whole number";
            const EXAMPLE: &'static str = "100";

            fn read(raw: &Raw) -> Option<Self> {
                match raw {
                    Raw::Integer(n) => Self::try_from((*n)?).ok(),
                    Raw::Word(word) => word.trim().parse().ok(),
                    _ => None,
                }
            }

            fn schema() -> Value {
                json!({ "type": "integer", "minimum": 0 })
            }
        }
    )*};
}
whole_numbers!(u8, u32, u64, usize);

/// Implements [`Setting`] for an enum that has one word for each value.
macro_rules! words {
    ($type:ty: $first:literal = $first_value:ident $(, $word:literal = $value:ident)* or $last:literal = $last_value:ident) => {
        impl Setting for $type {
            const EXPECTED: &'static str =
                concat!("\"", $first, "\"" $(, ", \"", $word, "\"")*, " or \"", $last, "\"");
            const EXAMPLE: &'static str = concat!("\"", $first, "\"");

            fn read(raw: &Raw) -> Option<Self> {
                match raw.text()? {
                    $first => Some(Self::$first_value),
                    $($word => Some(Self::$value),)*
                    $last => Some(Self::$last_value),
                    _ => None,
                }
            }

            fn schema() -> Value {
                json!({ "enum": [$first, $($word,)* $last] })
            }
        }
    };
}
words!(Profile: "node" = Node or "spec" = Spec);
words!(GenesisCheck: "checked" = Checked or "unchecked" = Unchecked);
words!(AuthMode: "keys" = Keys or "open" = Open);
words!(Assemble: "same-slot" = SameSlot or "off" = Off);
words!(FollowMode: "off" = Off, "shadow" = Shadow or "on" = On);
words!(Group: "core" = Core, "history" = History, "owners" = Owners, "scans" = Scans or "provider" = Provider);
words!(LogFormat: "auto" = Auto, "pretty" = Pretty or "json" = Json);
words!(Commitment: "processed" = Processed, "confirmed" = Confirmed or "finalized" = Finalized);

impl Setting for bool {
    const EXPECTED: &'static str = "true or false";
    const EXAMPLE: &'static str = "true";

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Bool(b) => Some(*b),
            Raw::Word(word) => word.trim().parse().ok(),
            _ => None,
        }
    }

    fn schema() -> Value {
        json!({ "type": "boolean" })
    }
}

impl Setting for f64 {
    const EXPECTED: &'static str = "a number";
    const EXAMPLE: &'static str = "0.5";

    fn read(raw: &Raw) -> Option<Self> {
        let number = match raw {
            Raw::Float(n) => *n,
            Raw::Integer(n) => u32::try_from((*n)?).ok()?.into(),
            Raw::Word(word) => word.trim().parse().ok()?,
            _ => return None,
        };
        Self::is_finite(number).then_some(number)
    }

    fn schema() -> Value {
        json!({ "type": "number" })
    }
}

impl Setting for String {
    const EXPECTED: &'static str = "a non-empty string";
    const EXAMPLE: &'static str = r#""…""#;

    fn read(raw: &Raw) -> Option<Self> {
        raw.text().filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

impl Setting for SocketAddr {
    const EXPECTED: &'static str = "an IP address and a port";
    const EXAMPLE: &'static str = r#""127.0.0.1:8080" or "[::1]:8080""#;

    fn read(raw: &Raw) -> Option<Self> {
        raw.text()?.parse().ok()
    }
}

impl Setting for WsListen {
    const EXPECTED: &'static str = "\"next\", \"off\", or an IP address and a port";
    const EXAMPLE: &'static str = r#""next" or "0.0.0.0:8081""#;

    fn read(raw: &Raw) -> Option<Self> {
        match raw.text()? {
            "next" => Some(Self::Next),
            "off" => Some(Self::Off),
            address => address.parse().ok().map(Self::At),
        }
    }
}

impl Setting for IpNet {
    const EXPECTED: &'static str = "an IP address or a network";
    const EXAMPLE: &'static str = r#""10.0.0.0/8" or "192.0.2.7""#;

    fn read(raw: &Raw) -> Option<Self> {
        network(raw.text()?.trim())
    }
}

impl Setting for Pubkey {
    const EXPECTED: &'static str = "an address in base58";
    const EXAMPLE: &'static str = r#""TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA""#;

    fn read(raw: &Raw) -> Option<Self> {
        Self::parse(raw.text()?.trim()).ok()
    }
}

impl Setting for CallRate {
    const EXPECTED: &'static str = "a number of calls, at least one, a second, minute or hour";
    const EXAMPLE: &'static str = r#""5/s", "1/min" or "100/h""#;

    fn read(raw: &Raw) -> Option<Self> {
        Self::parse(raw.text()?)
    }

    fn schema() -> Value {
        json!({ "type": "string", "pattern": "^ *[0-9]+ */ *(s|min|h) *$" })
    }
}

pub(super) enum MethodOrGroup {
    Method(AnyMethod),
    Group(Group),
}

impl Setting for MethodOrGroup {
    const EXPECTED: &'static str = "a group (core, tip, history, owners, scans, subscriptions, simulation, provider), or the \
                                    exact name of a method that slotfront answers itself or of one of [methods]";
    const EXAMPLE: &'static str = r#""core" or "getBlock""#;

    fn read(raw: &Raw) -> Option<Self> {
        let name = raw.text()?.trim();
        Group::from_name(name).map(Self::Group).or_else(|| AnyMethod::from_name(name).map(Self::Method))
    }

    fn schema() -> Value {
        let groups = Group::ALL.map(Group::as_str).into_iter();
        let own = AnyMethod::built_in().map(AnyMethod::as_str);
        json!({ "anyOf": [{ "enum": groups.chain(own).collect::<Vec<_>>() }, String::schema()] })
    }
}

impl Setting for Duration {
    const EXPECTED: &'static str = "a duration with a unit";
    const EXAMPLE: &'static str = r#""400ms", "10s" or "24h""#;

    fn read(raw: &Raw) -> Option<Self> {
        humantime::parse_duration(raw.text()?.trim()).ok()
    }

    fn schema() -> Value {
        json!({ "type": "string", "pattern": "^([0-9]+ *[a-z]+ *)+$" })
    }
}

/// A number of bytes, written with a unit.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct ByteSize(pub(super) u64);

impl Setting for ByteSize {
    const EXPECTED: &'static str = "a size with a unit";
    const EXAMPLE: &'static str = r#""50KiB", "512MiB" or "2GiB""#;

    fn read(raw: &Raw) -> Option<Self> {
        const UNITS: [(&str, u64); 7] = [
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("KB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("B", 1), // last, because the other units end with `B`
        ];
        let text = raw.text()?.trim();
        let (number, unit) =
            UNITS.iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?.trim_end(), *bytes)))?;
        number.parse::<u64>().ok()?.checked_mul(unit).map(Self)
    }

    fn schema() -> Value {
        json!({ "type": "string", "pattern": "^[0-9]+ *([KMG]i?)?B$" })
    }
}

impl ByteSize {
    pub(super) fn show(self) -> String {
        let (n, unit) = match self.0 {
            n if n >= 1 << 30 && n.is_multiple_of(1 << 30) => (n >> 30, "GiB"),
            n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => (n >> 20, "MiB"),
            n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => (n >> 10, "KiB"),
            n => (n, "B"),
        };
        format!("\"{n}{unit}\"")
    }
}

/// A duration, or `"off"`, which is zero.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct OrOff(pub(super) Duration);

impl Setting for OrOff {
    const EXPECTED: &'static str = "a duration with a unit, or \"off\"";
    const EXAMPLE: &'static str = r#""400ms", "10s" or "off""#;

    fn read(raw: &Raw) -> Option<Self> {
        if raw.text()? == "off" {
            return Some(Self(Duration::ZERO));
        }
        Duration::read(raw).filter(|d| !d.is_zero()).map(Self)
    }

    fn schema() -> Value {
        json!({ "type": "string", "pattern": "^(off|([0-9]+ *[a-z]+ *)+)$" })
    }
}

/// A duration or a word: `"forever"` is `None`, and `"off"` is zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OrForever(pub(super) Option<Duration>);

impl Setting for OrForever {
    const EXPECTED: &'static str = "a duration with a unit, \"forever\" or \"off\"";
    const EXAMPLE: &'static str = r#""1h" or "forever""#;

    fn read(raw: &Raw) -> Option<Self> {
        if raw.text()? == "forever" {
            return Some(Self(None));
        }
        OrOff::read(raw).map(|d| Self(Some(d.0)))
    }

    fn schema() -> Value {
        json!({ "type": "string", "pattern": "^(off|forever|([0-9]+ *[a-z]+ *)+)$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: Setting + PartialEq + std::fmt::Debug>(rows: &[(&str, Option<T>)]) {
        for (text, expected) in rows {
            assert_eq!(T::read(&Raw::Text((*text).to_owned())), *expected, "{text}");
        }
    }

    #[test]
    fn units_are_required_and_parsed() {
        check(&[
            ("50KiB", Some(ByteSize(51_200))),
            ("512 MiB", Some(ByteSize(536_870_912))),
            ("2GB", Some(ByteSize(2_000_000_000))),
            ("7B", Some(ByteSize(7))),
            ("7", None),
            ("KiB", None),
            ("-1KiB", None),
            ("1.5MiB", None),
            ("99999999999999GiB", None),
        ]);
        check(&[
            ("400ms", Some(Duration::from_millis(400))),
            ("24h", Some(Duration::from_hours(24))),
            ("1m 30s", Some(Duration::from_secs(90))),
            ("10", None),
            ("soon", None),
        ]);
        check(&[("off", Some(OrOff(Duration::ZERO))), ("0s", None), ("forever", None)]);
        check(&[("forever", Some(OrForever(None))), ("off", Some(OrForever(Some(Duration::ZERO))))]);
        check(&[
            ("10.0.0.0/8", "10.0.0.0/8".parse::<IpNet>().ok()),
            ("::1", "::1/128".parse().ok()),
            ("x", None),
        ]);
        check::<SocketAddr>(&[
            ("8080", None),
            ("localhost:8080", None),
            ("[::1]:80", "[::1]:80".parse().ok()),
        ]);
    }

    #[test]
    fn quoted_numbers_are_numbers_only_in_variables() {
        assert_eq!(u32::read(&Raw::Text("5".to_owned())), None);
        assert_eq!(u32::read(&Raw::Word("5".to_owned())), Some(5));
        assert_eq!(u8::read(&Raw::Integer(Some(256))), None);
        assert_eq!(f64::read(&Raw::Integer(Some(1))), Some(1.0));
        assert_eq!(f64::read(&Raw::Word("inf".to_owned())), None);
    }
}
