//! A word to all connections at once, which costs them nothing while it is not given.
//!
//! A future of a `CancellationToken` takes the token's lock whenever it is polled, and a connection's task is polled for
//! each request: all cores would take turns. Here a future asks the token when it is first polled, which leaves its task's
//! waker there, and from then on looks at a flag that nobody writes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A word that is given once.
#[derive(Debug, Clone, Default)]
pub struct Signal {
    is_given: Arc<AtomicBool>,
    token: CancellationToken,
}

impl Signal {
    /// Gives it.
    pub fn give(&self) {
        // First: whoever is woken looks at it.
        self.is_given.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Acquire)
    }

    /// Until it is given, for one task: it is to be polled by the same task from first to last.
    pub fn given(&self) -> Given {
        Given { signal: self.clone(), waiting: None }
    }
}

/// The future of [`Signal::given`].
#[derive(Debug)]
pub struct Given {
    signal: Signal,
    /// Holds the task's waker at the token.
    waiting: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Given {
    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        self.signal.is_given()
    }
}

impl Future for Given {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.signal.is_given() {
            return Poll::Ready(());
        }
        if self.waiting.is_some() {
            return Poll::Pending;
        }
        let mut waiting = Box::pin(self.signal.token.clone().cancelled_owned());
        let given = waiting.as_mut().poll(cx);
        self.waiting = Some(waiting);
        given
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_hears_it_and_whoever_comes_later_too() {
        let signal = Signal::default();
        let tasks = TaskTracker::new();
        (0..3).for_each(|_| drop(tasks.spawn(signal.given())));
        tokio::task::yield_now().await;
        assert!(!signal.is_given() && tasks.len() == 3);
        signal.give();
        tasks.close();
        tasks.wait().await;
        signal.given().await;
        assert!(signal.is_given());
    }
}
