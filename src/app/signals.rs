//! The process signals that a running gateway handles.
//!
//! Signals are handled once [`Signals::catch`] has returned. A signal before that moment ends the process, as is
//! the default of the system.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug)]
pub struct Signals {
    /// Ctrl-C and SIGTERM.
    pub stop: StopSignal,
    pub hangup: HangupSignal,
}

/// Ctrl-C and SIGTERM, at which the gateway finishes its requests in flight and stops.
#[derive(Debug)]
pub struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
}

/// SIGHUP, at which the gateway reloads the configuration.
#[derive(Debug)]
pub struct HangupSignal(Signal);

impl Signals {
    /// Starts to handle the signals.
    ///
    /// # Errors
    /// The system refuses to register a handler.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            stop: StopSignal {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
            },
            hangup: HangupSignal(signal(SignalKind::hangup())?),
        })
    }
}

impl StopSignal {
    /// Waits for the next Ctrl-C or SIGTERM.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

impl HangupSignal {
    /// Waits for the next SIGHUP.
    pub async fn received(&mut self) {
        let _ = self.0.recv().await;
    }
}
