//! Reads JSON as nearly all clients write it, in one pass and without a tree.
//!
//! It knows strings of plain ASCII, whole numbers, and nesting that no call needs more of. On everything else it gives up,
//! and a full parser decides; so it never has to know what is wrong with a text, or what an odd one means. What it does
//! read means the same to every parser.

/// Deeper than any call's params.
const MAX_DEPTH: u32 = 8;
/// Digits that fit any integer type of 64 bits, and an f64's exponent a hundred times.
const MAX_DIGITS: usize = 18;

/// A text, and how far it is read. Every method that gives nothing leaves it useless.
pub(crate) struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    /// `text` from its start.
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// How many bytes were read.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// The next byte that is no blank, without reading it.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Reads `byte`, blanks before it aside, if it is the next.
    pub(crate) fn takes(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Reads `byte`.
    pub(crate) fn expect(&mut self, byte: u8) -> Option<()> {
        self.takes(byte).then_some(())
    }

    /// Returns true if nothing but whitespace is left.
    pub(crate) fn is_done(&mut self) -> bool {
        self.peek().is_none()
    }

    /// A string as text, without its quotes.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        // ASCII, by the way it is found.
        str::from_utf8(self.string()?).ok()
    }

    /// A string, without its quotes.
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

    /// A whole number of at most 18 digits.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let first = self.peek()?;
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=MAX_DIGITS).contains(&digits) || (first == b'0' && digits > 1) {
            return None;
        }
        let number = self.text[self.at..][..digits].iter();
        let number = number.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        self.at += digits;
        // A fraction or an exponent goes on.
        (!matches!(self.text.get(self.at), Some(b'.' | b'e' | b'E'))).then_some(number)
    }

    /// The members of an object, which starts here; `member` reads the value of the one whose name it is given.
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

    /// The elements of an array, which starts here; `element` reads each.
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

    /// Reads over a value.
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
                // No blank may stand between.
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

/// How many bytes stand before the first that a plain string does not hold: a quote, a backslash, a control character, or
/// one beyond ASCII. Eight at a time, by Mycroft's test for a zero byte in a word.
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
        // Borrows spoil bytes above the first that is found, never the first.
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

    /// Reads the whole of `text` as a value.
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
            // Legal, and not plain.
            ("1000000000000000000", false),
            ("1.5", false),
            ("1e3", false),
            (r#""\n""#, false),
            ("\"\u{e9}\"", false),
            ("[[[[[[[[1]]]]]]]]", false),
            // Not legal.
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
