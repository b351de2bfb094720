//! The limit on the lines of the access log at info level.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The maximum number of lines a second at info level. In an outage every request may fail, and the log must not add
/// load.
const PER_SECOND: u32 = 5;

/// The rate limit on the lines of the access log at info level.
#[derive(Debug, Default)]
pub struct LogSampler(Mutex<SampledSecond>);

#[derive(Debug, Default)]
struct SampledSecond {
    began: Option<Instant>,
    lines: u32,
    /// The number of lines suppressed at info level since the last line was written at this level.
    left_out: u64,
}

impl LogSampler {
    /// Returns the number of lines suppressed since the last written line. `None` if the line at `now` is suppressed,
    /// too.
    pub(super) fn take(&self, now: Instant) -> Option<u64> {
        let mut second = self.0.lock();
        if second.began.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1)) {
            second.began = Some(now);
            second.lines = 0;
        }
        if second.lines == PER_SECOND {
            second.left_out += 1;
            return None;
        }
        second.lines += 1;
        Some(std::mem::take(&mut second.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_above_the_rate_are_counted() {
        let (sampler, start) = (LogSampler::default(), Instant::now());
        let taken: Vec<_> = (0..20).map(|_| sampler.take(start)).collect();
        assert_eq!(taken.iter().filter(|taken| **taken == Some(0)).count(), 5);
        assert_eq!(taken[5..], [None; 15]);
        assert_eq!(sampler.take(start + Duration::from_millis(999)), None);
        assert_eq!(sampler.take(start + Duration::from_secs(1)), Some(16));
        assert_eq!(sampler.take(start + Duration::from_secs(1)), Some(0));
    }
}
