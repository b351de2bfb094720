//! The `rentEpoch` of accounts, put right where a provider has rounded it.
//!
//! Nodes write the highest 64-bit number for an account that pays no rent. Some providers read the numbers of an answer as
//! floating point and so write the next power of two, which is no 64-bit number: clients in Rust and Python then refuse the
//! whole answer. No epoch is that high, so only the highest number is ever rounded to it.

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;

/// The digits of 2^64 as the shortest text of a floating point number: `18446744073709552000`, `1.8446744073709552e19`.
const ROUNDED: &str = "8446744073709552";

/// Returns the JSON `text` of a node with every rounded `rentEpoch` as the node has written it.
pub fn unrounded(text: Bytes) -> Bytes {
    let spans: Vec<_> =
        memmem::find_iter(&text, ROUNDED).filter_map(|at| rounded_rent_epoch(&text, at)).collect();
    if spans.is_empty() {
        return text;
    }
    let mut made = Vec::with_capacity(text.len());
    let mut copied = 0;
    for Range { start, end } in spans {
        made.extend_from_slice(&text[copied..start]);
        made.extend_from_slice(u64::MAX.to_string().as_bytes());
        copied = end;
    }
    made.extend_from_slice(&text[copied..]);
    made.into()
}

/// Returns the span of the number that has [`ROUNDED`] at `at`, if it is 2^64 and the value of a member `rentEpoch`. Within
/// a text, a quote would have a backslash before it.
fn rounded_rent_epoch(text: &[u8], at: usize) -> Option<Range<usize>> {
    let before = &text[..at];
    let before = before.strip_suffix(b"1.").or_else(|| before.strip_suffix(b"1"))?;
    let is_part = |byte: &&u8| byte.is_ascii_digit() || b".eE+-".contains(*byte);
    let end = at + text[at..].iter().take(ROUNDED.len() + 8).take_while(is_part).count();
    let number: f64 = str::from_utf8(&text[before.len()..end]).ok()?.parse().ok()?;
    let name = before.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
    let is_value = matches!(text[end..].trim_ascii_start().first(), Some(b',' | b'}'));
    let is_rounded = number.to_bits() == 2_f64.powi(64).to_bits();
    (is_rounded && is_value && name.ends_with(br#""rentEpoch""#)).then_some(before.len()..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_the_rounded_number_is_put_right() {
        let right = r#"{"value":[{"lamports":5,"rentEpoch":18446744073709551615,"space":0},{"rentEpoch":18446744073709551615}]}"#;
        for number in [
            "18446744073709552000",
            "18446744073709552000.0",
            "1.8446744073709552e19",
            "1.8446744073709552e+19",
            "1.8446744073709552E19",
            "1.8446744073709552E+19",
            "1.84467440737095520e19",
        ] {
            let rounded = right.replace("18446744073709551615", number);
            assert_eq!(unrounded(rounded.into()), right, "{number}");
        }
        let spaced = "{ \"rentEpoch\" :\n 18446744073709552000 , \"space\" : 0 }";
        assert_eq!(unrounded(spaced.into()), spaced.replace("552000", "551615"));
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for text in [
            "",
            "8446744073709552",
            "18446744073709552000",
            r#"{"rentEpoch":18446744073709551615}"#,
            r#"{"rentEpoch":0}"#,
            r#"{"rentEpoch":"18446744073709552000"}"#,
            r#"{"rentEpoch":118446744073709552000}"#,
            r#"{"rentEpoch":-18446744073709552000}"#,
            r#"{"rentEpoch":184467440737095520000}"#,
            r#"{"rentEpoch":1844674407370955200}"#,
            r#"{"rentEpoch":1.8446744073709552e18}"#,
            r#"{"rentEpoch":1.8446744073709552e190}"#,
            r#"{"rentEpoch":18446744073709552001.5e}"#,
            r#"{"rentEpoch":18446744073709552000"#,
            r#"{"lamports":18446744073709552000,"rentEpoch":0}"#,
            r#"{"currentRentEpoch":18446744073709552000}"#,
            r#"{"data":["rentEpoch:18446744073709552000,","base64"]}"#,
            r#"{"logs":["{\"rentEpoch\":18446744073709552000,"]}"#,
            r#"["rentEpoch",18446744073709552000]"#,
        ] {
            let bytes = Bytes::from(text);
            let (same, at) = (unrounded(bytes.clone()), bytes.as_ptr());
            assert!(same == text && same.as_ptr() == at, "{text}: {same:?}");
        }
    }
}
