//! `X-Request-Id`: the caller's own, kept, or one made here, so that a line in anybody's log finds the others.
//!
//! Every answer that is ours carries it. What hyper refuses before there is a request (a head that is no HTTP, or is
//! too long) has none.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

pub(super) const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Longer than any tracing system's id; what is longer is no id, and would fill logs.
const MAX_LEN: usize = 128;

/// What tells two processes' ids apart.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The id of one request.
#[derive(Debug, Clone)]
pub(super) struct RequestId(HeaderValue);

impl RequestId {
    /// The one that the request names, if it is 1 to 128 visible ASCII characters; else a fresh one.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        headers.get(NAME).filter(|value| is_token(value)).map_or_else(Self::fresh, |id| Self(id.clone()))
    }

    /// Unique in this process, and in all likelihood among others; no secret.
    fn fresh() -> Self {
        let id = format!("{:016x}{:016x}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed));
        Self(HeaderValue::try_from(id).unwrap_or_else(|_| HeaderValue::from_static("none")))
    }

    /// As it stands in logs.
    pub(super) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// As it stands in the answer.
    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

fn is_token(value: &HeaderValue) -> bool {
    (1..=MAX_LEN).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_id_is_kept_and_another_replaced() {
        let (long, longer) = ("x".repeat(128), "x".repeat(129));
        for (sent, kept) in [
            ("4bf92f3577b34da6a3ce929d0e0e4736", true),
            ("!a-b_c/d~", true),
            (&long, true),
            (&longer, false),
            ("", false),
            ("two words", false),
            ("caf\u{e9}", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(NAME, HeaderValue::from_bytes(sent.as_bytes()).unwrap());
            let id = RequestId::of(&headers);
            assert_eq!(id.as_str() == sent, kept, "{sent:?}");
            assert!((1..=128).contains(&id.as_str().len()));
        }
        let fresh = || RequestId::of(&HeaderMap::new()).as_str().to_owned();
        assert_ne!(fresh(), fresh());
    }
}
