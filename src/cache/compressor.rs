//! The compression of answers by a [`Compressor`], which compresses a limited number of long texts at a time.
//!
//! The compressed form of a stored text belongs to the entry and is counted in the entry's weight. A text
//! that is written for one caller is compressed for that caller only.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::low_priority;
use crate::telemetry::{Compression, Metrics};

/// The length in bytes above which a text is compressed off the async workers, because it would block a worker for
/// too long.
const COMPRESS_OFF_WORKER_BYTES: usize = 64 * 1024;

/// Compresses texts, a bounded number of long ones at a time. Long texts are compressed on threads of low
/// priority.
///
/// No call waits for its turn. A long text for which no thread is free goes out uncompressed.
pub struct Compressor {
    permits: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl Compressor {
    /// Creates a compressor that compresses at most `permits` long texts at once.
    pub fn new(permits: usize, metrics: Arc<Metrics>) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits)), metrics }
    }

    /// Runs `work`, which compresses a text of `bytes` bytes. `None` if too many long texts are being
    /// compressed, or if the work fails.
    pub async fn compress<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let count = |what| self.metrics.compressions.at(what).inc();
        if bytes <= COMPRESS_OFF_WORKER_BYTES {
            return work().inspect(|_| count(Compression::Done));
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            count(Compression::Skipped);
            return None;
        };
        let work = low_priority::run(move || {
            // The permit is held until the work ends, even if the caller has left.
            let _permit = permit;
            work()
        });
        work.await.flatten().inspect(|_| count(Compression::Done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn text_without_a_permit_is_not_compressed() {
        let metrics = Metrics::new();
        let compressor = Compressor::new(1, Arc::clone(&metrics));
        let (go, held) = std::sync::mpsc::channel::<()>();
        let long = COMPRESS_OFF_WORKER_BYTES + 1;
        let first = compressor.compress(long, move || held.recv().ok());
        let mut first = std::pin::pin!(first);
        assert!(futures_util::poll!(&mut first).is_pending());
        assert_eq!(compressor.compress(long, || Some(2)).await, None);
        assert_eq!(
            compressor.compress(COMPRESS_OFF_WORKER_BYTES, || Some(3)).await,
            Some(3),
            "short work is done at once"
        );
        go.send(()).unwrap();
        assert_eq!(first.await, Some(()));
        assert_eq!(compressor.compress(long, || Some(4)).await, Some(4));
        let counted =
            [Compression::Done, Compression::Skipped].map(|what| metrics.compressions.at(what).get());
        assert_eq!(counted, [3, 1]);
    }
}
