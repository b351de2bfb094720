//! The signals that a running gateway obeys, caught from the moment that this is made: before it the system's defaults
//! hold, which end the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals, caught.
#[derive(Debug)]
pub struct Signals {
    /// Ctrl-C and SIGTERM.
    pub stop: Stop,
    /// SIGHUP.
    pub hangup: Hangup,
}

/// Ctrl-C and SIGTERM: end in order.
#[derive(Debug)]
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

/// SIGHUP: read the configuration again.
#[derive(Debug)]
pub struct Hangup(Signal);

impl Signals {
    /// Catches them from now on.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            stop: Stop {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
            },
            hangup: Hangup(signal(SignalKind::hangup())?),
        })
    }
}

impl Stop {
    /// Waits for the next one.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

impl Hangup {
    /// Waits for the next one.
    pub async fn asked(&mut self) {
        let _ = self.0.recv().await;
    }
}
