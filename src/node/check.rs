//! Checks a long answer while it comes, so that no pass over it is left once it is whole.
//!
//! It reads what has come of the text, stops where that ends, and goes on from there. What it takes is JSON to every
//! parser, in an envelope as nodes write it. On everything else (members that are unknown, escaped or doubled, nesting
//! that no answer has, and what is no JSON) it gives up, and serde decides on the whole text: there are never two opinions.

#![expect(
    clippy::inline_always,
    reason = "only within one function does what each byte changes stay in registers"
)]

use std::ops::Range;

/// Deeper than any answer of a node.
const MAX_DEPTH: u32 = 128;
/// Longer than any number in one.
const MAX_NUMBER: usize = 128;
/// The longest escape: `\u` and four digits.
const ESCAPE: usize = 6;
/// The envelope's members; a response has either of the two in the middle.
const NAMES: [&[u8]; 4] = [b"jsonrpc", b"result", b"error", b"id"];

/// Where the parts of a response stand in its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The `result`.
    pub result: Range<usize>,
    /// The `id`.
    pub id: Range<usize>,
}

/// What is expected next, blanks aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A name, or the end of the object that has just begun.
    FirstName,
    Name,
    Colon,
    /// A value, or the end of the array that has just begun.
    FirstValue,
    Value,
    /// A comma, or the end of what is around; behind the outermost value nothing.
    Comma,
}

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// More must come.
    Cut,
    /// This is for another reader.
    Odd,
}

/// How far a text is read.
#[derive(Debug)]
pub struct Check {
    next: Next,
    /// All before this is read.
    at: usize,
    /// The string that begins at `at` is read up to here.
    within: usize,
    /// All before this is UTF-8.
    utf8: usize,
    depth: u32,
    /// What is around, the innermost in the lowest bit: 1 for an object, 0 for an array.
    around: u128,
    /// Which of the envelope's members is read.
    member: usize,
    places: [Range<usize>; NAMES.len()],
    gave_up: bool,
}

impl Default for Check {
    /// Nothing has come.
    fn default() -> Self {
        const NOWHERE: Range<usize> = 0..0;
        Self {
            next: Next::Value,
            at: 0,
            within: 0,
            utf8: 0,
            depth: 0,
            around: 0,
            member: 0,
            places: [NOWHERE; NAMES.len()],
            gave_up: false,
        }
    }
}

impl Check {
    /// Reads on; `text` is all that has come, with what was read before at its front.
    pub fn read(&mut self, text: &[u8]) {
        self.gave_up = self.gave_up || !self.is_utf8(text) || self.read_on(text) == Stop::Odd;
    }

    /// The parts of `text`, if it was read to its end and is a response that holds a result.
    pub fn finish(mut self, text: &[u8]) -> Option<Parts> {
        self.read(text);
        let is_whole =
            (self.at, self.utf8, self.next, self.depth) == (text.len(), text.len(), Next::Comma, 0);
        let [version, result, error, id] = self.places;
        let is_response = text.get(version) == Some(br#""2.0""#) && error.is_empty();
        let parts = !result.is_empty() && !id.is_empty();
        (is_whole && !self.gave_up && is_response && parts).then_some(Parts { result, id })
    }

    fn is_utf8(&mut self, text: &[u8]) -> bool {
        match str::from_utf8(&text[self.utf8..]) {
            Ok(_) => self.utf8 = text.len(),
            Err(error) => {
                self.utf8 += error.valid_up_to();
                // A character may be cut off by the end of what has come.
                return error.error_len().is_none();
            }
        }
        true
    }

    /// What usually follows is looked for next, without going round.
    fn read_on(&mut self, text: &[u8]) -> Stop {
        // Of its own, so that what every byte changes can be kept in registers.
        let mut check = std::mem::take(self);
        let stop = loop {
            let read = check.name(text).and_then(|()| check.value(text)).and_then(|()| check.comma(text));
            if let Err(stop) = read {
                break stop;
            }
        };
        *self = check;
        stop
    }

    /// Reads a name and its colon, where those come next.
    #[inline(always)]
    fn name(&mut self, text: &[u8]) -> Result<(), Stop> {
        if let Next::FirstName | Next::Name = self.next {
            match self.peek(text)? {
                b'"' => {
                    let end = self.string(text)?;
                    if self.depth == 1 {
                        self.begin_member(&text[self.at + 1..end - 1])?;
                    }
                    (self.at, self.next) = (end, Next::Colon);
                }
                b'}' if self.next == Next::FirstName => self.close(),
                _ => return Err(Stop::Odd),
            }
        }
        if self.next == Next::Colon {
            if self.peek(text)? != b':' {
                return Err(Stop::Odd);
            }
            self.at += 1;
            self.next = Next::Value;
        }
        Ok(())
    }

    /// Reads a value, or the beginning of one that holds others, where one comes next.
    #[inline(always)]
    fn value(&mut self, text: &[u8]) -> Result<(), Stop> {
        let (Next::FirstValue | Next::Value) = self.next else { return Ok(()) };
        let byte = self.peek(text)?;
        if self.depth <= 1 {
            if self.depth == 0 && byte != b'{' {
                return Err(Stop::Odd);
            }
            self.places[self.member].start = self.at;
        }
        self.at = match byte {
            b'"' => self.string(text)?,
            b'0'..=b'9' | b'-' => number(text, self.at)?,
            b'{' | b'[' => return self.open(byte == b'{'),
            b']' if self.next == Next::FirstValue => {
                self.close();
                return Ok(());
            }
            b't' => word(text, self.at, b"true")?,
            b'f' => word(text, self.at, b"false")?,
            b'n' => word(text, self.at, b"null")?,
            _ => return Err(Stop::Odd),
        };
        self.next = Next::Comma;
        Ok(())
    }

    /// Reads commas and ends, until a name or a value comes next.
    #[inline(always)]
    fn comma(&mut self, text: &[u8]) -> Result<(), Stop> {
        while self.next == Next::Comma {
            if self.depth <= 1 {
                let place = &mut self.places[self.member];
                // Only at first: blanks may be read on before the comma comes.
                if self.depth == 1 && place.end == 0 {
                    place.end = self.at;
                }
            }
            let byte = self.peek(text)?;
            if self.depth == 0 {
                return Err(Stop::Odd);
            }
            let in_object = self.around & 1 == 1;
            if byte == b',' {
                self.at += 1;
                self.next = if in_object { Next::Name } else { Next::Value };
            } else if byte == if in_object { b'}' } else { b']' } {
                self.close();
            } else {
                return Err(Stop::Odd);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn open(&mut self, object: bool) -> Result<(), Stop> {
        if self.depth == MAX_DEPTH {
            return Err(Stop::Odd);
        }
        self.depth += 1;
        self.around = self.around << 1 | u128::from(object);
        self.at += 1;
        self.next = if object { Next::FirstName } else { Next::FirstValue };
        Ok(())
    }

    #[inline(always)]
    fn close(&mut self) {
        self.depth -= 1;
        self.around >>= 1;
        self.at += 1;
        self.next = Next::Comma;
    }

    /// A member of the envelope begins, which must be one that is known, and the first of its name.
    #[inline(always)]
    fn begin_member(&mut self, name: &[u8]) -> Result<(), Stop> {
        self.member = NAMES.iter().position(|known| *known == name).ok_or(Stop::Odd)?;
        if self.places[self.member].is_empty() { Ok(()) } else { Err(Stop::Odd) }
    }

    /// The next byte that is no blank, without reading it.
    #[inline(always)]
    fn peek(&mut self, text: &[u8]) -> Result<u8, Stop> {
        match text.get(self.at) {
            Some(byte) if *byte > b' ' => Ok(*byte),
            _ => {
                let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
                self.at += text[self.at..].iter().take_while(is_blank).count();
                text.get(self.at).copied().ok_or(Stop::Cut)
            }
        }
    }

    /// Where the string ends whose quote comes next, behind its other quote.
    #[inline(always)]
    fn string(&mut self, text: &[u8]) -> Result<usize, Stop> {
        let mut at = self.within.max(self.at + 1);
        loop {
            at += plain(&text[at..]);
            match &text[at..] {
                [b'"', ..] => break,
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => at += 2,
                [b'\\', b'u', digits @ ..] if are_hex(digits) => at += ESCAPE,
                [] | [b'\\'] | [b'\\', b'u', ..] if text.len() - at < ESCAPE => {
                    self.within = at;
                    return Err(Stop::Cut);
                }
                _ => return Err(Stop::Odd),
            }
        }
        self.within = 0;
        Ok(at + 1)
    }
}

fn are_hex(digits: &[u8]) -> bool {
    digits.first_chunk::<4>().is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Where the number ends that begins at `start`.
#[inline(always)]
fn number(text: &[u8], start: usize) -> Result<usize, Stop> {
    // One digit, as most have.
    if let [b'0'..=b'9', b',' | b']' | b'}', ..] = &text[start..] {
        return Ok(start + 1);
    }
    match long_number(&text[start..]) {
        // What the text ends with may go on.
        Some(length) if start + length < text.len() => Ok(start + length),
        _ if text.len() - start < MAX_NUMBER => Err(Stop::Cut),
        _ => Err(Stop::Odd),
    }
}

/// The length of the number at the front of `text`, if it is one.
fn long_number(text: &[u8]) -> Option<usize> {
    let digits = |at: usize| {
        let digits = text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        (digits > 0).then_some(at + digits)
    };
    let start = usize::from(text.first() == Some(&b'-'));
    let mut at = digits(start)?;
    if text[start] == b'0' && at > start + 1 {
        return None;
    }
    if text.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        at += 1;
        at = digits(at + usize::from(matches!(text.get(at), Some(b'+' | b'-'))))?;
    }
    Some(at)
}

/// Where `word` ends, which begins at `start`.
fn word(text: &[u8], start: usize, word: &[u8]) -> Result<usize, Stop> {
    let rest = &text[start..];
    if rest.starts_with(word) {
        Ok(start + word.len())
    } else if word.starts_with(rest) {
        Err(Stop::Cut)
    } else {
        Err(Stop::Odd)
    }
}

/// How many bytes stand before the first quote, backslash or control character.
#[inline(always)]
fn plain(text: &[u8]) -> usize {
    /// Where most strings have ended.
    const SOON: usize = 6;
    let mut at = 0;
    for [low @ .., a, b, c, d, e, f, g, h] in text.as_chunks::<16>().0.iter().take(SOON) {
        // Both at once: whether a string has eight letters or nine is for nobody to guess.
        let (low, high) = (odd(*low), odd([*a, *b, *c, *d, *e, *f, *g, *h]));
        if low | high != 0 {
            let (found, beside) = if low == 0 { (high, 8) } else { (low, 0) };
            return at + beside + found.trailing_zeros() as usize / 8;
        }
        at += 16;
    }
    at + long_plain(&text[at..])
}

/// The same where no end is near.
#[inline(never)]
fn long_plain(text: &[u8]) -> usize {
    let is_plain = |byte: &u8| *byte >= 0x20 && *byte != b'"' && *byte != b'\\';
    // Without an exit within, so that it is done on many bytes at once.
    let all_plain = |block: &&[u8; 64]| !block.iter().fold(false, |odd, byte| odd | !is_plain(byte));
    let at = text.as_chunks::<64>().0.iter().take_while(all_plain).count() * 64;
    at + text[at..].iter().take_while(|byte| is_plain(byte)).count()
}

/// Has the high bit of the first byte set that [`plain`] looks for, and maybe those of bytes behind it: Mycroft's test for a
/// zero byte in a word.
#[inline(always)]
fn odd(bytes: [u8; 8]) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    let word = u64::from_le_bytes(bytes);
    let quote = (word ^ (ONES * u64::from(b'"'))).wrapping_sub(ONES);
    let backslash = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
    let control = word.wrapping_sub(ONES * 0x20);
    (quote | backslash | control) & !word & HIGHS
}

#[cfg(test)]
mod tests;
