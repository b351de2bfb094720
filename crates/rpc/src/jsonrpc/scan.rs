//! A fast scanner for the JSON that nearly all clients write, in one pass and without a tree.
//!
//! It accepts plain ASCII strings, whole numbers and limited nesting. On any other text it gives up, and a full parser
//! decides. Every accepted text means the same to all parsers.

/// The maximum nesting of an accepted text. No method has params that are nested this deeply.
const MAX_DEPTH: u32 = 8;
/// The maximum number of digits of an accepted number. Every such number fits into `u64` and `i64`, and is far below
/// the limit of `f64`.
const MAX_DIGITS: usize = 18;

/// A text and the position up to which it is read. After a method has returned `None`, the position is undefined.
pub(crate) struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    /// Returns a scanner at the start of `text`.
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Skips whitespace and returns the next byte, without reading it.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Skips whitespace, and reads `byte` if it is next. Returns true if it was.
    pub(crate) fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Skips whitespace and reads `byte`. Returns `None` if `byte` is not next.
    pub(crate) fn expect(&mut self, byte: u8) -> Option<()> {
        self.takes(byte).then_some(())
    }

    /// Returns true if nothing but whitespace is left.
    pub(crate) fn is_done(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Reads a string and returns its text without quotes.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        // A plain string is ASCII.
        str::from_utf8(self.string()?).ok()
    }

    /// Reads a string and returns its bytes without quotes.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        let length = plain(rest);
        if rest.get(length) != Some(&b'"') {
            return None;
        }
        self.at += length + 1;
        Some(&rest[..length])
    }

    /// Reads a whole number of at most 18 digits.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let first = self.peek()?;
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=MAX_DIGITS).contains(&digits) || (first == b'0' && digits > 1) {
            return None;
        }
        let number = self.text[self.at..][..digits].iter();
        let number = number.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        self.at += digits;
        // A number with a fraction or an exponent is left to the full parser.
        (!matches!(self.text.get(self.at), Some(b'.' | b'e' | b'E'))).then_some(number)
    }

    /// Reads an object. `member` gets the name of each member and reads its value.
    pub(crate) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, &'a [u8]) -> Option<()>,
    ) -> Option<()> {
        self.expect(b'{')?;
        if self.takes(b'}') {
            return Some(());
        }
        loop {
            let name = self.string()?;
            self.expect(b':')?;
            member(self, name)?;
            if !self.takes(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// Reads an array. `element` reads each element.
    pub(crate) fn elements(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        if self.takes(b']') {
            return Some(());
        }
        loop {
            element(self)?;
            if !self.takes(b',') {
                return self.expect(b']');
            }
        }
    }

    /// Skips a value of any type.
    pub(crate) fn skip(&mut self) -> Option<()> {
        self.skip_within(MAX_DEPTH)
    }

    fn skip_within(&mut self, depth: u32) -> Option<()> {
        let deeper = depth.checked_sub(1)?;
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' => self.members(|scan, _| scan.skip_within(deeper)),
            b'[' => self.elements(|scan| scan.skip_within(deeper)),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            b'-' => {
                self.at += 1;
                // A digit must follow the minus immediately.
                self.text.get(self.at).filter(|byte| byte.is_ascii_digit())?;
                self.number().map(drop)
            }
            _ => self.number().map(drop),
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        let is_next = self.text[self.at..].starts_with(word);
        self.at += word.len();
        is_next.then_some(())
    }
}

/// Returns the number of bytes before the first quote, backslash, control character or non-ASCII byte.
///
/// The search takes eight bytes at a time, by Mycroft's test for a zero byte in a word.
fn plain(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let (words, _) = text.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let quote = zeros(word ^ (ONES * u64::from(b'"')));
        let backslash = zeros(word ^ (ONES * u64::from(b'\\')));
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        // A borrow of the subtractions can mark a byte wrongly only above the first match. Only the first match counts.
        let found = (quote | backslash | control | word) & HIGHS;
        if found != 0 {
            return i * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let rest = words.len() * 8;
    let is_plain = |byte: &u8| (0x20..0x80).contains(byte) && !matches!(byte, b'"' | b'\\');
    rest + text[rest..].iter().take_while(|byte| is_plain(byte)).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Returns true if the scanner accepts the whole `text` as a value.
    fn reads(text: &str) -> bool {
        let mut scan = Scan::new(text.as_bytes());
        scan.skip().is_some() && scan.is_done()
    }

    #[test]
    fn scanner_gives_up_on_uncommon_bodies() {
        for (text, read) in [
            (r#" {"a" : [ 1,-2, "x y",true , false,null,{}] , "b":[]} "#, true),
            (r#""""#, true),
            ("0", true),
            ("-0", true),
            ("999999999999999999", true),
            ("[[[[[[[1]]]]]]]", true),
            // Valid JSON that the scanner leaves to the full parser.
            ("1000000000000000000", false),
            ("1.5", false),
            ("1e3", false),
            (r#""\n""#, false),
            ("\"\u{e9}\"", false),
            ("[[[[[[[[1]]]]]]]]", false),
            // Invalid JSON.
            ("", false),
            ("01", false),
            ("- 1", false),
            ("-", false),
            ("[1,]", false),
            ("[1 2]", false),
            ("{1:2}", false),
            (r#"{"a"}"#, false),
            (r#"{"a":1"#, false),
            (r#""a"#, false),
            ("\"a\u{1f}\"", false),
            ("tru", false),
            ("nul", false),
            ("[] []", false),
        ] {
            assert_eq!(reads(text), read, "{text}");
        }
    }

    proptest! {
        #[test]
        fn string_ends_are_found_at_any_offset(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let is_plain = |byte: &u8| (0x20..0x80).contains(byte) && !matches!(byte, b'"' | b'\\');
            prop_assert_eq!(plain(&text), text.iter().take_while(|byte| is_plain(byte)).count());
        }

        #[test]
        fn what_it_reads_is_json(text in r#"[\[\]{}:, "a-c0-9.eE\\tfnrualsx\-]{0,24}"#) {
            if reads(&text) {
                prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{}", text);
            }
        }
    }
}
