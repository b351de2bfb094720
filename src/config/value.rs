//! The types of settings and their syntax: `"400ms"`, `"512MiB"`, `"forever"`, `100`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::methods::{AnyMethod, Commitment, PassthroughMethod, Profile};

use super::raw::Raw;
use super::{Assemble, AuthMode, ClientIpHeader, FollowMode, GenesisCheck, LogFormat};

/// A type that settings can have.
pub(super) trait Setting: Sized {
    /// The description of valid values, which follows "expected" in a problem.
    const EXPECTED: &'static str;
    /// An example of a valid value, to be shown in a problem.
    const EXAMPLE: &'static str;

    /// Parses a value of this type; `None` if it is invalid.
    fn read(raw: &Raw) -> Option<Self>;

    /// Formats a value of this type, for the bounds in a problem.
    fn show(&self) -> String {
        Self::EXAMPLE.to_owned()
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

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
whole_numbers!(u8, u32, u64, usize);

/// Implements [`Setting`] for a type that has one word for each value.
macro_rules! words {
    ($type:ty, $expected:literal, $($word:literal => $value:expr),*) => {
        impl Setting for $type {
            const EXPECTED: &'static str = $expected;
            const EXAMPLE: &'static str = words!(@first $($word),*);

            fn read(raw: &Raw) -> Option<Self> {
                match raw.text()? {
                    $($word => Some($value),)*
                    _ => None,
                }
            }
        }
    };
    (@first $first:literal $(, $rest:literal)*) => { concat!("\"", $first, "\"") };
}
words!(Profile, r#""node" or "spec""#, "node" => Self::Node, "spec" => Self::Spec);
words!(GenesisCheck, r#""checked" or "unchecked""#, "checked" => Self::Checked, "unchecked" => Self::Unchecked);
words!(AuthMode, r#""keys" or "open""#, "keys" => Self::Keys, "open" => Self::Open);
words!(ClientIpHeader, r#""x-forwarded-for" or "forwarded""#,
    "x-forwarded-for" => Self::XForwardedFor, "forwarded" => Self::Forwarded);
words!(Assemble, r#""same-slot" or "off""#,
    "same-slot" => Self::SameSlot, "off" => Self::Off);
words!(FollowMode, r#""off", "shadow" or "on""#,
    "off" => Self::Off, "shadow" => Self::Shadow, "on" => Self::On);
words!(LogFormat, r#""auto", "pretty" or "json""#,
    "auto" => Self::Auto, "pretty" => Self::Pretty, "json" => Self::Json);

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

    fn show(&self) -> String {
        format!("{self:?}")
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

impl Setting for IpNet {
    const EXPECTED: &'static str = "an IP address or a network";
    const EXAMPLE: &'static str = r#""10.0.0.0/8" or "192.0.2.7""#;

    fn read(raw: &Raw) -> Option<Self> {
        let text = raw.text()?.trim();
        text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(Self::from))
    }
}

impl Setting for AnyMethod {
    const EXPECTED: &'static str =
        "an exact method name: one of the eight methods, or any that passthrough.methods accepts";
    const EXAMPLE: &'static str = r#""getBlock""#;

    fn read(raw: &Raw) -> Option<Self> {
        Self::from_name(raw.text()?.trim())
    }
}

impl Setting for PassthroughMethod {
    const EXPECTED: &'static str = "the exact name of a read method that slotfront does not cache; methods that write are never forwarded";
    const EXAMPLE: &'static str = r#""getSlot""#;

    fn read(raw: &Raw) -> Option<Self> {
        Self::from_name(raw.text()?.trim())
    }
}

impl Setting for Commitment {
    const EXPECTED: &'static str = r#""processed", "confirmed" or "finalized""#;
    const EXAMPLE: &'static str = r#""confirmed""#;

    fn read(raw: &Raw) -> Option<Self> {
        Self::from_name(raw.text()?.trim())
    }
}

impl Setting for Duration {
    const EXPECTED: &'static str = "a duration with a unit";
    const EXAMPLE: &'static str = r#""400ms", "10s" or "24h""#;

    fn read(raw: &Raw) -> Option<Self> {
        humantime::parse_duration(raw.text()?.trim()).ok()
    }

    fn show(&self) -> String {
        format!("\"{}\"", humantime::format_duration(*self))
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

    fn show(&self) -> String {
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

    fn show(&self) -> String {
        if self.0.is_zero() { "\"off\"".to_owned() } else { self.0.show() }
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
