//! W3C Trace Context: reads `traceparent` and `tracestate`, and writes what goes on to a node.
//!
//! Pure: knows no HTTP library and no exporter. A header that breaks a rule of the specification is as good as none,
//! since half a trace leads nowhere; the surprise is that a *later* version is no such break: its first four fields
//! are read, and version 00 is written onwards.
//!
//! Source: <https://www.w3.org/TR/trace-context-2/>, sections 3.2 and 3.3.

use std::fmt;

/// A `traceparent` of version 00, in bytes.
pub const PARENT_LEN: usize = 55;
/// The flag of a caller who records the trace and would like everybody to.
const SAMPLED: u8 = 0b01;
/// The flag of an id that is random in its last 7 bytes; it belongs to the id, and goes on with it.
const RANDOM: u8 = 0b10;
/// A `tracestate` longer than this need not be passed on (3.3.1.5), and goes up with every attempt.
const MAX_STATE_BYTES: usize = 512;
/// Members of a `tracestate` (3.3.1.1).
const MAX_STATE_MEMBERS: usize = 32;
/// A member's key, and its value.
const MAX_STATE_WORD: usize = 256;

/// The number of a trace: not zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// The number of a span in its trace: not zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

/// Where in which trace a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span that whoever gets this is called from.
    pub span: SpanId,
    flags: u8,
}

impl TraceId {
    /// An id of these bytes; `None` of all zeros.
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// The last seven bytes as a number, which are random where any are: what a share of all traces is drawn by.
    pub fn randomness(self) -> u64 {
        let mut last = [0; 8];
        last[1..].copy_from_slice(&self.0[9..]);
        u64::from_be_bytes(last)
    }
}

impl SpanId {
    /// An id of these bytes; `None` of all zeros.
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }
}

impl TraceContext {
    /// The start of a trace of our own, with a random id.
    pub fn root(trace: TraceId, span: SpanId, sampled: bool) -> Self {
        Self { trace, span, flags: RANDOM | if sampled { SAMPLED } else { 0 } }
    }

    /// Reads a `traceparent`; `None` where it is not one.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let (head, rest) = header.split_at_checked(PARENT_LEN)?;
        let [version] = hex(&head[..2])?;
        // 00 ends here; of later ones only what follows a further dash is unknown, and ff is forbidden.
        let ends = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|b| *b == b'-'),
        };
        if !ends || [head[2], head[35], head[52]] != *b"---" {
            return None;
        }
        let [flags] = hex(&head[53..])?;
        Some(Self {
            trace: TraceId::new(hex(&head[3..35])?)?,
            span: SpanId::new(hex(&head[36..52])?)?,
            // Bits that no rule names are not passed on as if they were understood.
            flags: flags & (SAMPLED | RANDOM),
        })
    }

    /// Whether the caller records this trace.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace, seen from `span`.
    #[must_use]
    pub fn within(self, span: SpanId) -> Self {
        Self { span, ..self }
    }
}

/// As a `traceparent` header.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes written in lower-case hex; upper case is none (3.2.2.3).
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// The `tracestate` of one request, whose header may come in several lines, as one line; `None` where there is none, or
/// it breaks a rule: then it is left out, and the `traceparent` goes on alone.
pub fn trace_state<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Box<str>> {
    let mut state = String::new();
    for line in lines {
        let line = str::from_utf8(line).ok()?;
        for member in line.split(',').map(|member| member.trim_matches([' ', '\t'])) {
            // Empty members are allowed, and say nothing.
            if member.is_empty() {
                continue;
            }
            if !is_member(member) {
                return None;
            }
            if !state.is_empty() {
                state.push(',');
            }
            state.push_str(member);
            if state.len() > MAX_STATE_BYTES {
                return None;
            }
        }
    }
    let members = state.split(',').filter(|member| !member.is_empty());
    let keys: Vec<&str> = members.filter_map(|member| Some(member.split_once('=')?.0)).collect();
    let twice = || (1..keys.len()).any(|i| keys[..i].contains(&keys[i]));
    (!keys.is_empty() && keys.len() <= MAX_STATE_MEMBERS && !twice()).then(|| state.into_boxed_str())
}

/// Whether this is `key=value` as 3.3.1.3 has it.
fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let starts = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let in_key = |b: &u8| starts(b) || b"_-*/@".contains(b);
    let in_value = |b: &u8| (0x20..=0x7e).contains(b) && *b != b'=';
    key.len() <= MAX_STATE_WORD
        && key.as_bytes().first().is_some_and(starts)
        && key.as_bytes().iter().all(in_key)
        && key.bytes().filter(|b| *b == b'@').count() <= 1
        && (1..=MAX_STATE_WORD).contains(&value.len())
        && value.as_bytes().iter().all(in_value)
}

#[cfg(test)]
mod tests;
