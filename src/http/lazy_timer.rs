//! Timers that cost little if they rarely fire.

use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A timer whose deadline often changes. The caller keeps the deadline, so setting it only stores a time. The runtime's
/// timer is reset only if it fires too early or would fire too late.
pub(super) struct LazyTimer {
    sleep: Pin<Box<Sleep>>,
    /// The deadline of `sleep`, so that its memory need not be read.
    pub(super) sleeps_until: Instant,
}

impl LazyTimer {
    pub(super) fn new(deadline: Instant) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep_until(deadline)), sleeps_until: deadline }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        loop {
            if self.sleeps_until > deadline || self.sleep.is_elapsed() {
                self.sleep.as_mut().reset(deadline);
                self.sleeps_until = deadline;
            }
            // Without `unconstrained`, a task that has used up its coop budget would not register with the sleep.
            let sleep = tokio::task::coop::unconstrained(self.sleep.as_mut());
            ready!(pin!(sleep).poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
        }
    }
}

/// Limits the time for which the writes to a client stay pending.
#[derive(Default)]
pub(super) struct StallTimer(Option<Pin<Box<Sleep>>>);

impl StallTimer {
    /// Returns `written`, the result of polling a write.
    ///
    /// # Errors
    /// `written` is an error, or writes have been pending for `timeout` ([`ErrorKind::TimedOut`]).
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        timeout: Duration,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.0 = None;
            return written;
        }
        let timer = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the client has stopped reading the answer")))
    }
}
