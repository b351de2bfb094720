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
    given: Arc<AtomicBool>,
    token: CancellationToken,
}

impl Signal {
    /// Gives it.
    pub fn give(&self) {
        // First: whoever is woken looks at it.
        self.given.store(true, Ordering::Release);
        self.token.cancel();
    }

    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }

    /// Until it is given, for one task: it is to be polled by the same task from first to last.
    pub fn given(&self) -> Given {
        Given { given: Arc::clone(&self.given), waiting: None, token: self.token.clone() }
    }
}

/// The future of [`Signal::given`].
#[derive(Debug)]
pub struct Given {
    given: Arc<AtomicBool>,
    token: CancellationToken,
    /// Holds the task's waker at the token.
    waiting: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Future for Given {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.given.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if self.waiting.is_some() {
            return Poll::Pending;
        }
        let mut waiting = Box::pin(self.token.clone().cancelled_owned());
        let given = waiting.as_mut().poll(cx);
        self.waiting = Some(waiting);
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_hears_it_and_whoever_comes_later_too() {
        let signal = Signal::default();
        let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(signal.given())).collect();
        tokio::task::yield_now().await;
        assert!(!signal.is_given() && waiting.iter().all(|task| !task.is_finished()));
        signal.give();
        for task in waiting {
            task.await.unwrap();
        }
        signal.given().await;
        assert!(signal.is_given());
    }
}
