//! The shutdown of the public listener: its phases, and the signals that start them.

use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The value of [`GracePeriods::last_moment`]: several round trips of a client.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// The value of [`GracePeriods::linger`]: several round trips of a client.
const LINGER: Duration = Duration::from_secs(1);

/// The times that clients are given during a shutdown. [`Self::of`] returns those of a serving gateway, and tests
/// choose their own. `GracePeriods::default()` gives clients no time.
#[derive(Debug, Clone, Copy, Default)]
pub struct GracePeriods {
    /// The time from the start of a shutdown until the listener closes. Meanwhile `/readyz` and `/health` answer 503, and
    /// each HTTP/1.1 response closes its connection.
    pub notice: Duration,
    /// The time for which idle connections stay open after the listener has closed.
    pub last_moment: Duration,
    /// The longest time for which a client's bytes are read and discarded after the connection's last response.
    pub linger: Duration,
}

impl GracePeriods {
    /// Returns the times for a shutdown with this `server.unready_before_stop`.
    pub fn of(unready_before_stop: Duration) -> Self {
        Self { notice: unready_before_stop, last_moment: LAST_MOMENT, linger: LINGER }
    }
}

/// The phases of a shutdown, in order. A phase begins when its signal is triggered.
#[derive(Debug, Clone)]
pub struct Phases {
    /// HTTP/1.1 connections end with their next response, which has `Connection: close`. Without that field, a client
    /// could send its next request while the connection closes.
    pub notice: Signal,
    /// The listener closes, requests in flight finish, and HTTP/2 connections get a GOAWAY. A GOAWAY makes a client
    /// connect anew at once. A GOAWAY sent while the listener is open could lead the client back to this gateway.
    pub stop: Signal,
    /// Idle connections close. HTTP/1.1 has no announcement without a response, so a request that is on its way is lost.
    pub idle_close: Signal,
    /// All connections are dropped.
    pub abort: Signal,
    /// The times that clients are given in the phases.
    pub periods: GracePeriods,
}

impl Phases {
    /// Creates the phases. None of them has begun.
    pub fn new(periods: GracePeriods) -> Self {
        let [notice, stop, idle_close, abort] = std::array::from_fn(|_| Signal::default());
        Self { notice, stop, idle_close, abort, periods }
    }
}

/// A signal to all connections that costs them almost nothing until it is triggered.
///
/// A future of a `CancellationToken` takes the token's lock at every poll. A connection's task is polled for each
/// request, so all cores would contend for the lock. [`Wait`] registers with the token at its first poll. Afterwards it
/// only reads a flag.
#[derive(Debug, Clone, Default)]
pub struct Signal {
    is_triggered: Arc<AtomicBool>,
    token: CancellationToken,
}

impl Signal {
    pub fn trigger(&self) {
        // Set before the token is cancelled, because the tasks that the token wakes read this flag.
        self.is_triggered.store(true, Ordering::Release);
        self.token.cancel();
    }

    pub fn is_triggered(&self) -> bool {
        self.is_triggered.load(Ordering::Acquire)
    }

    /// Waits for the signal. All polls of the future must come from one task.
    pub fn wait(&self) -> Wait {
        Wait { signal: self.clone(), waiting: None, looks_again: false }
    }
}

/// The future of [`Signal::wait`].
#[derive(Debug)]
pub struct Wait {
    signal: Signal,
    /// The registration of the task's waker with the token. `None` until the first poll.
    waiting: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// True if the runtime asks the kernel for arrived bytes once more before the future ends.
    looks_again: bool,
}

impl Wait {
    /// Lets the future end only after the runtime has asked the kernel once more for bytes that have arrived.
    ///
    /// Without this, a connection that polls its socket before the future may close although a request has arrived,
    /// because a socket is polled by what the runtime last heard of it.
    pub(super) fn with_last_look(self) -> Self {
        Self { looks_again: true, ..self }
    }

    pub fn is_triggered(&self) -> bool {
        self.signal.is_triggered()
    }
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.signal.is_triggered() {
            if self.waiting.is_some() {
                return Poll::Pending;
            }
            let mut waiting = Box::pin(self.signal.token.clone().cancelled_owned());
            let triggered = waiting.as_mut().poll(cx);
            self.waiting = Some(waiting);
            ready!(triggered);
        }
        if mem::take(&mut self.looks_again) {
            // The first poll of a yield asks to be woken after the runtime's next look at the sockets.
            return pin!(tokio::task::yield_now()).poll(cx);
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test]
    async fn a_last_look_finds_bytes_that_arrived() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.writable().await.unwrap();
        let (signal, mut read) = (Signal::default(), [0; 8]);
        // The runtime remembers that there is nothing to read, and does not ask the kernel again before its next turn.
        let empty =
            std::future::poll_fn(|cx| Poll::Ready(pin!(server.read(&mut read)).poll(cx).is_pending()));
        assert!(empty.await);
        assert_eq!(client.try_write(b"request").ok(), Some(7));
        signal.trigger();
        let seen = tokio::select! {
            biased;
            bytes = server.read(&mut read) => bytes.ok(),
            () = signal.wait().with_last_look() => None,
        };
        assert_eq!(seen, Some(7));
    }

    #[tokio::test]
    async fn a_signal_wakes_earlier_and_later_waiters() {
        let signal = Signal::default();
        let tasks = TaskTracker::new();
        (0..3).for_each(|_| drop(tasks.spawn(signal.wait())));
        tokio::task::yield_now().await;
        assert!(!signal.is_triggered() && tasks.len() == 3);
        signal.trigger();
        tasks.close();
        tasks.wait().await;
        signal.wait().await;
        assert!(signal.is_triggered());
    }
}
