//! The time at which a certificate expires. rustls leaves it to clients and does not tell it, and a parser of whole
//! certificates would bring a dozen crates for one field.

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::Offset;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Returns the time at which each certificate in `pem` expires. `None` stands for one that cannot be read.
pub(crate) fn expiries(pem: &[u8]) -> impl Iterator<Item = Option<Timestamp>> {
    CertificateDer::pem_slice_iter(pem).map(|certificate| expiry(certificate.ok()?.as_ref()))
}

/// Reads `Certificate { tbsCertificate { [0] version?, serialNumber, signature, issuer, validity { notBefore, notAfter },
/// … }, … }` (RFC 5280).
fn expiry(certificate: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = element(certificate)?;
    let (_, fields, _) = element(certificate)?;
    let (tag, _, mut rest) = element(fields)?;
    // A certificate without a version, which has the tag 0xa0, begins with its serial number.
    for _ in 0..if tag == 0xa0 { 3 } else { 2 } {
        (_, _, rest) = element(rest)?;
    }
    let (_, validity, _) = element(rest)?;
    let (_, _, rest) = element(validity)?;
    let (tag, not_after, _) = element(rest)?;
    time(tag, not_after)
}

/// Returns the tag and the content of the first element of `der` (X.690), and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [tag, len, rest @ ..] = der else { return None };
    let (len, rest) = match len {
        0..=0x7f => (usize::from(*len), rest),
        // The low bits tell how many bytes the length has. No certificate has 4 GiB.
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(len & 0x7f))?;
            (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((*tag, content, rest))
}

/// Reads a `UTCTime` (tag 0x17), in which two digits stand for the years until 2068, or a `GeneralizedTime` (0x18).
fn time(tag: u8, text: &[u8]) -> Option<Timestamp> {
    let format = match tag {
        0x17 => "%y%m%d%H%M%SZ",
        0x18 => "%Y%m%d%H%M%SZ",
        _ => return None,
    };
    let time = strtime::parse(format, text).ok()?.to_datetime().ok()?;
    // The end of the year 9999, which stands for "never", is too late for a timestamp.
    Some(Offset::UTC.to_timestamp(time).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(until: (i32, u8, u8)) -> rcgen::Certificate {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn the_expiry_is_read() {
        // Years from 2050 on are written in another way.
        for (until, expected) in [
            ((2027, 1, 31), "2027-01-31T00:00:00Z"),
            ((2049, 12, 31), "2049-12-31T00:00:00Z"),
            ((2050, 1, 1), "2050-01-01T00:00:00Z"),
            ((4096, 1, 1), "4096-01-01T00:00:00Z"),
        ] {
            let found = expiries(certificate(until).pem().as_bytes()).collect::<Vec<_>>();
            assert_eq!(found, [Some(expected.parse().unwrap())]);
        }
        let chain = certificate((2030, 1, 1)).pem() + "# the next\n" + &certificate((2029, 1, 1)).pem();
        let ends = expiries(chain.as_bytes()).map(|expiry| expiry.unwrap().to_string());
        assert_eq!(ends.collect::<Vec<_>>(), ["2030-01-01T00:00:00Z", "2029-01-01T00:00:00Z"]);
    }

    #[test]
    fn times_are_read_in_both_forms() {
        for (tag, text, expected) in [
            (0x17, "491231235959Z", Some("2049-12-31T23:59:59Z")),
            (0x17, "990101000000Z", Some("1999-01-01T00:00:00Z")),
            (0x18, "20500101000000Z", Some("2050-01-01T00:00:00Z")),
            (0x18, "99991231235959Z", Some("9999-12-30T22:00:00.999999999Z")),
            (0x17, "20500101000000Z", None),
            (0x17, "271331000000Z", None),
            (0x17, "270131000000+0100", None),
            (0x18, "", None),
            (0x30, "270131000000Z", None),
        ] {
            let found = time(tag, text.as_bytes()).map(|time| time.to_string());
            assert_eq!(found.as_deref(), expected, "{tag:#x} {text}");
        }
    }

    #[test]
    fn broken_certificates_have_no_expiry() {
        let whole = certificate((2030, 1, 1));
        let whole: &[u8] = whole.der();
        assert!(expiry(whole).is_some());
        for end in 0..whole.len() {
            assert_eq!(expiry(&whole[..end]), None, "cut after {end} bytes");
        }
        // Whatever a byte becomes, reading ends.
        for at in 0..whole.len() {
            for byte in [0, 0x30, 0x80, 0x84, 0xff] {
                let mut broken = whole.to_vec();
                broken[at] = byte;
                expiry(&broken);
            }
        }
    }
}
