//! The signals by which serving ends, and the times that clients are given meanwhile.

use std::time::Duration;

use super::signal::Signal;

/// The part of `server.drain_timeout` that is the time of notice: two looks of a usual balancer at the default.
const NOTICE_PART: u32 = 10;
/// The time for which a kept-alive connection may idle. Balancers keep theirs for 60 to 90 s, and the balancer should close
/// first: a connection that slotfront closes while a request is on its way is a 502 of the balancer's.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_mins(2);
/// Several round trips of a client.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// Several round trips of a client.
const LINGER: Duration = Duration::from_secs(1);

/// The times that clients are given as connections end. They are no settings; tests choose their own. By
/// default there is no time.
#[derive(Debug, Clone, Copy, Default)]
pub struct GracePeriods {
    /// The time from the start of a stop until the listener closes. Readiness fails, and clients are told to go.
    pub notice: Duration,
    /// The time for which idle connections are open once the listener has closed.
    pub last_moment: Duration,
    /// The longest time for which a client that still sends is read after its connection's last answer.
    pub linger: Duration,
}

impl GracePeriods {
    /// The times for a stop that may take `drain_timeout` in all.
    pub fn of(drain_timeout: Duration) -> Self {
        Self { notice: drain_timeout / NOTICE_PART, last_moment: LAST_MOMENT, linger: LINGER }
    }
}

/// The signals that are given one after the other as serving ends.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Connections of HTTP/1.1 end with their next answer.
    pub notice: Signal,
    /// The listener closes. Connections of HTTP/2 are told to go, and requests in flight finish. They are told no sooner:
    /// a GOAWAY does not wait for an answer as `connection: close` does, and a client that obeys it connects anew. While the
    /// listener is open, that may be to the same gateway.
    pub stop: Signal,
    /// Idle connections end.
    pub silence: Signal,
    /// All connections are dropped.
    pub cut: Signal,
    /// The times between the signals.
    pub periods: GracePeriods,
}

impl Ends {
    /// The signals, none of which is given.
    pub fn new(periods: GracePeriods) -> Self {
        let [notice, stop, silence, cut] = std::array::from_fn(|_| Signal::default());
        Self { notice, stop, silence, cut, periods }
    }

    /// True if an answer over HTTP/1.1 is its connection's last and has to say so. A client that was not told may have sent
    /// its next request when the connection closes.
    pub(super) fn answer_is_last(&self) -> bool {
        self.notice.is_given()
    }
}
