//! Bounds and checks that several sections use: times, sizes, names, URLs and certificates.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::Secret;
use super::reader::TableReader;
use super::value::ByteSize;

/// The bounds of timeouts. Timers have a resolution of a millisecond, and an hour is as good as unlimited.
pub(super) const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);
/// The bounds of a share, such as the share of calls that may be retried.
pub(super) const SHARE: RangeInclusive<f64> = 0.0..=1.0;
/// The maximum length of a name. Names become metric labels.
pub(super) const MAX_NAME: usize = 64;

/// Returns true for a valid name of a plan, upstream or namespace: letters, digits, `-`, `_` and `.`.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// Reads the setting `key`, a size in bytes. Returns `default` if the setting is missing or invalid.
pub(super) fn size(r: &TableReader<'_>, key: &str, default: u64, bounds: RangeInclusive<u64>) -> usize {
    let bounds = ByteSize(*bounds.start())..=ByteSize(*bounds.end());
    usize::try_from(r.within(key, ByteSize(default), bounds).0).unwrap_or(usize::MAX)
}

/// Reads the setting `ca_file`, a path. Records a problem if the file is unreadable or has no certificate.
pub(super) fn ca_file(r: &TableReader<'_>) -> Option<PathBuf> {
    let ca_file = r.file("ca_file");
    let ca_fault = ca_file.as_ref().and_then(|path| match std::fs::read_to_string(path) {
        Err(e) => Some(format!("names the file {}, which cannot be read: {}", path.display(), e.kind())),
        Ok(text) if !text.contains("-----BEGIN CERTIFICATE-----") => {
            Some(format!("names the file {}, which has no certificate", path.display()))
        }
        Ok(_) => None,
    });
    if let Some(rule) = ca_fault {
        r.problem("ca_file", None, rule, "name a readable file with certificates in PEM");
    }
    ca_file
}

/// Returns the fault of an HTTP URL, without showing the URL. `None` for a valid URL. Also `None` for an
/// empty one, which is reported elsewhere.
pub fn url_fault(url: &Secret) -> Option<&'static str> {
    const SCHEME: &str = "expected a URL with http or https and a host";
    if url.expose().is_empty() {
        return None;
    }
    match url::Url::parse(url.expose()) {
        Err(_) => Some(SCHEME),
        Ok(url) if !matches!(url.scheme(), "http" | "https") || !url.has_host() => Some(SCHEME),
        Ok(url) if url.fragment().is_some() => Some("has a fragment (#…), which HTTP does not send"),
        Ok(_) => None,
    }
}
