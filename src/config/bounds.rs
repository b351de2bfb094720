//! Bounds that several sections have in common: of times, sizes, counts, names, addresses and certificates.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::Secret;
use super::reader::Reader;
use super::value::Size;

/// Timeouts. A millisecond is the least that a timer tells apart, and to a client an hour is for ever.
pub(super) const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);
/// A share of something.
pub(super) const SHARE: RangeInclusive<f64> = 0.0..=1.0;
/// The longest name, since names are labels of metrics, too.
pub(super) const MAX_NAME: usize = 64;

/// Returns true if `name` may name a plan, an upstream or a namespace. It will stand in metrics, logs and errors.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// Reads a size that is a `usize`, too, on every machine that slotfront runs on.
pub(super) fn size(r: &Reader<'_>, key: &str, default: u64, bounds: RangeInclusive<u64>) -> usize {
    let bounds = Size(*bounds.start())..=Size(*bounds.end());
    usize::try_from(r.within(key, Size(default), bounds).0).unwrap_or(usize::MAX)
}

/// Reads the file of the section's own certificate authority, if one is named.
pub(super) fn ca_file(r: &Reader<'_>) -> Option<PathBuf> {
    let ca_file = r.file("ca_file");
    let ca_fault = ca_file.as_ref().and_then(|path| match std::fs::read_to_string(path) {
        Err(e) => Some(format!("cannot be read: {}", e.kind())),
        Ok(text) if !text.contains("-----BEGIN CERTIFICATE-----") => Some("holds no certificate".to_owned()),
        Ok(_) => None,
    });
    if let Some(rule) = ca_fault {
        r.problem("ca_file", None, rule, "name a readable file with certificates in PEM");
    }
    ca_file
}

/// Returns the fault of an HTTP address, without showing the address. An empty one has been refused before.
pub fn url_fault(url: &Secret) -> Option<&'static str> {
    const SCHEME: &str = "expected a URL with http or https and a host";
    if url.expose().is_empty() {
        return None;
    }
    match url::Url::parse(url.expose()) {
        Err(_) => Some(SCHEME),
        Ok(url) if !matches!(url.scheme(), "http" | "https") || !url.has_host() => Some(SCHEME),
        Ok(url) if url.fragment().is_some() => Some("has a fragment (#…), which is never sent"),
        Ok(_) => None,
    }
}
