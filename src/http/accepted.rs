//! The content codings that a client accepts (`Accept-Encoding`: RFC 9110, 12.5.3).

use hyper::header::HeaderMap;

use super::fields::{all, elements};
use crate::coding::Coding;

/// The weight of a coding in thousandths, 0 to 1000. Weight 0 refuses the coding.
type Weight = u16;
const FULL: Weight = 1000;

/// The content codings that a client accepts, of those that slotfront supports (`Accept-Encoding`: RFC 9110, 12.5.3).
///
/// A client that refuses `identity` still gets short responses uncompressed, as RFC 9110, 12.1, permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    /// The weights, indexed by `Coding as usize`. 0 if the client does not accept the coding, or prefers `identity`.
    weights: [Weight; Coding::ALL.len()],
}

impl Accepted {
    /// Parses all `Accept-Encoding` fields as one list. Without such a field no coding is accepted.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let (mut named, mut identity, mut star) = ([None; Coding::ALL.len()], None, None);
        for (name, weight) in all(headers, "accept-encoding").flat_map(elements).filter_map(element) {
            let known = if let Some(coding) = Coding::of_header(name) {
                &mut named[coding as usize]
            } else if name.eq_ignore_ascii_case(b"identity") {
                &mut identity
            } else if name == b"*" {
                &mut star
            } else {
                continue;
            };
            // If a coding is named twice, the lower weight counts.
            *known = Some(known.map_or(weight, |before: Weight| before.min(weight)));
        }
        let plain = identity.or(star).unwrap_or(0);
        let weights = named.map(|own| own.or(star).unwrap_or(0)).map(|own| if own < plain { 0 } else { own });
        Self { weights }
    }

    /// Returns the accepted coding with the highest weight. On a tie it is zstd, which is faster and compresses better.
    /// `None` if the client accepts no coding.
    pub(super) fn best(self) -> Option<Coding> {
        let weight = |coding: &Coding| self.weights[*coding as usize];
        let taken = [Coding::Gzip, Coding::Zstd].into_iter().filter(|coding| weight(coding) > 0);
        taken.max_by_key(weight)
    }

    /// Returns true if the client accepts `coding`, even if it prefers another.
    pub(super) fn takes(self, coding: Coding) -> bool {
        self.weights[coding as usize] > 0
    }
}

/// Parses an element such as `gzip;q=0.5` into its name and weight. `None` if it is malformed.
fn element(text: &[u8]) -> Option<(&[u8], Weight)> {
    let mut parts = text.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let weight = match parts.next() {
        None => FULL,
        Some([b'q' | b'Q', b'=', digits @ ..]) => weight(digits)?,
        Some(_) => return None,
    };
    parts.next().is_none().then_some((name, weight))
}

/// Parses a weight such as `0`, `0.25` or `1.000`. `None` if it is malformed, above 1, or has over three decimals.
fn weight(text: &[u8]) -> Option<Weight> {
    let (whole, fraction) = match text {
        [whole] => (whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let digits = (0..3).map(|place| fraction.get(place).copied().unwrap_or(b'0'));
    let all = std::iter::once(*whole).chain(digits).try_fold(0, |weight, digit| {
        digit.is_ascii_digit().then(|| weight * 10 + Weight::from(digit - b'0'))
    })?;
    (all <= FULL).then_some(all)
}

#[cfg(test)]
mod tests {
    use hyper::header::{ACCEPT_ENCODING, HeaderValue};

    use super::*;

    #[test]
    fn the_client_chooses() {
        for (header, expected) in [
            ("", None),
            ("br", None),
            ("identity", None),
            ("gzip, deflate", Some(Coding::Gzip)),
            ("GZIP;q=0.5", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("gzip, zstd", Some(Coding::Zstd)),
            ("ZSTD ; Q=0.001 , br", Some(Coding::Zstd)),
            // A weight of zero refuses the coding in any notation.
            ("gzip;q=0", None),
            ("gzip;Q=0", None),
            ("gzip; q=0.000", None),
            ("gzip ;\tq=0.", None),
            ("zstd;q=0, gzip", Some(Coding::Gzip)),
            // The higher weight wins; `identity` competes, too.
            ("zstd;q=0.2, gzip;q=0.9", Some(Coding::Gzip)),
            ("zstd;q=0.9, gzip;q=1.000", Some(Coding::Gzip)),
            ("identity, gzip;q=0.5", None),
            ("identity;q=0.5, gzip;q=0.5", Some(Coding::Gzip)),
            ("identity;q=0, gzip", Some(Coding::Gzip)),
            ("identity;q=0", None),
            // The star stands for all codings that are not named.
            ("*", Some(Coding::Zstd)),
            ("*;q=0", None),
            ("gzip, *;q=0", Some(Coding::Gzip)),
            ("zstd;q=0, *", Some(Coding::Gzip)),
            ("*;q=0.1, gzip;q=0", Some(Coding::Zstd)),
            ("gzip;q=0, zstd;q=0, *", None),
            ("*;q=0.5", Some(Coding::Zstd)),
            ("*;q=0.5, gzip;q=0.501", Some(Coding::Gzip)),
            ("br, *;q=0.001", Some(Coding::Zstd)),
            ("br, deflate;q=0.9, gzip;q=0.001, *;q=0", Some(Coding::Gzip)),
            ("gzip;q=0.333, zstd;q=0.332", Some(Coding::Gzip)),
            ("*;q=0.25, zstd;q=0.2, gzip;q=0.3", Some(Coding::Gzip)),
            // `identity` is also one of those, unless it is named.
            ("*;q=0.5, gzip;q=0.2, zstd;q=0.2", None),
            ("identity;q=0, *", Some(Coding::Zstd)),
            ("identity;q=0.5, *;q=0", None),
            ("identity, *;q=0.999", None),
            ("identity;q=0.001, *;q=0.002", Some(Coding::Zstd)),
            ("identity;q=0, *;q=0", None),
            // Elements with invalid weights or unknown parameters are ignored.
            ("gzip;q=2", None),
            ("gzip;q=-1", None),
            ("gzip;q=0.0001", None),
            ("gzip;q=1.001", None),
            ("gzip;q=.5", None),
            ("gzip;q=", None),
            ("gzip;level=1", None),
            ("gzip;q=1;q=0", None),
            (",, ,gzip,", Some(Coding::Gzip)),
            // If a coding is named twice, the lower weight counts.
            ("gzip, gzip;q=0", None),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(header))]);
            assert_eq!(Accepted::of(&headers).best(), expected, "{header}");
            // The order does not count, and neither does the number of fields.
            let mut headers = HeaderMap::new();
            for element in header.rsplit(',') {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_static(element));
            }
            assert_eq!(Accepted::of(&headers).best(), expected, "{header}, backwards");
        }
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(ACCEPT_ENCODING, HeaderValue::from_static("*;q=0"));
        assert_eq!(Accepted::of(&headers).best(), Some(Coding::Gzip), "several fields are one list");
    }
}
