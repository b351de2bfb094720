//! The faults of nodes that tests inject.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// The longest time for which a test waits for replies to be held. No machine is so busy that they take longer.
const PATIENCE: Duration = Duration::from_mins(1);

/// A fault of a node, as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Answers after this delay.
    Latency(Duration),
    /// Accepts the request and never answers. If it is added for all methods, sockets are silent until it is removed,
    /// and then go on where they were.
    Hang,
    /// Answers with HTTP 429 and `Retry-After`, like hosted nodes.
    Status429 {
        /// The seconds in `Retry-After`.
        retry_after_s: u64,
    },
    /// Answers with this HTTP status and a line of plain text.
    Status(u16),
    /// Answers with HTTP 502 and a web page, like load balancers.
    Html,
    /// Sends half of the answer with the Content-Length of the whole answer, then closes the connection.
    Truncated,
    /// Sends the right answer in ten pieces, with this pause between two pieces.
    Trickle(Duration),
    WrongId,
    /// Closes the connection with a TCP reset, without an answer.
    Reset,
    /// Answers with -32005, like getHealth on a node that is behind. If it is added for all methods, this fault
    /// affects only requests with getHealth.
    Unhealthy,
    /// Answers with `result: null`, like getBlock for a block that is incomplete on a node.
    NullResult,
    Error {
        code: i32,
        message: String,
    },
    Result(serde_json::Value),
    /// Answers with a result of this many bytes, one long string, streamed without Content-Length.
    Huge(usize),
    /// Answers with a result of this many nested arrays.
    Nested(usize),
    /// Sends the first half of the right answer as a complete response.
    Half,
    /// Answers every call with HTTP 200 and this body.
    Body {
        content_type: &'static str,
        text: &'static str,
    },
    /// Sends the right answer with this number added to its slot. The slot is the result if the result is a number,
    /// otherwise the context slot.
    Ahead(u64),
    /// Sends the right answer, but adds these members to its result or replaces members of the same names. A block may
    /// thus lack its rewards, or be a block of another fork.
    With(serde_json::Value),
    /// Sends the right answer as some providers write it: the absent one of result and error as `null`, the id as a
    /// string, and an error with this HTTP status.
    Provider(u16),
    /// Answers like an address behind which two machines are asked in turn, the second a slot behind the first. Both
    /// ignore `minContextSlot`.
    TwoMachines,
}

/// The faults that a test has added to a node, in the order in which they were added.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Vec<Planned>>);

struct Planned {
    /// The affected method. `None` means all methods.
    method: Option<String>,
    fault: Fault,
    /// The number of further requests with the fault. `None` means no limit.
    left: Option<usize>,
}

impl Faults {
    /// Adds a fault after all earlier ones: for `method` or for all methods, and for `times` requests or without limit.
    pub(crate) fn plan(&self, method: Option<&str>, fault: Fault, times: Option<usize>) {
        let planned = Planned { method: method.map(str::to_owned), fault, left: times };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(planned);
    }

    /// Returns true while every request meets [`Fault::Hang`].
    pub(crate) fn hang(&self) -> bool {
        let planned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        planned.iter().any(|plan| plan.method.is_none() && plan.left.is_none() && plan.fault == Fault::Hang)
    }

    /// Removes all faults.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the oldest fault that applies to a request with these methods. Counts the request against the
    /// limit of that fault.
    pub(crate) fn take(&self, methods: &[String]) -> Option<Fault> {
        let mut planned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        planned.retain(|plan| plan.left != Some(0));
        let plan = planned.iter_mut().find(|plan| {
            let everywhere =
                plan.fault != Fault::Unhealthy || methods.iter().any(|m| m == super::answer::HEALTH);
            plan.method.as_ref().map_or(everywhere, |method| methods.contains(method))
        })?;
        plan.left = plan.left.map(|left| left - 1);
        Some(plan.fault.clone())
    }
}

/// A hold on the replies of a node to one method. Calling [`Self::release`] or dropping the value sends the replies.
#[derive(Debug)]
pub struct Hold {
    gate: Arc<Gate>,
}

impl Hold {
    /// Returns the number of requests whose replies are held now.
    pub fn waiting(&self) -> usize {
        *self.gate.waiting.borrow()
    }

    /// Waits until the replies to at least `n` requests are held.
    ///
    /// # Panics
    /// They are not held within a minute.
    #[track_caller]
    pub fn arrived(&self, n: usize) -> impl Future<Output = ()> + '_ {
        let asked_at = Location::caller();
        async move {
            let mut waiting = self.gate.waiting.subscribe();
            // The wait itself cannot fail, because `self` keeps the gate, and with it the sender, alive.
            let arrived = timeout(PATIENCE, waiting.wait_for(|waiting| *waiting >= n)).await.is_ok();
            let (held, method) = (self.waiting(), &self.gate.method);
            assert!(arrived, "{asked_at}: waited for {n} calls of {method} to be held; {held} are");
        }
    }

    /// Sends the replies that are held, and holds no later replies.
    pub fn release(&self) {
        self.gate.open.send_replace(true);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

/// The state that a [`Hold`] shares with its node: the end of the hold, and the number of held replies.
#[derive(Debug)]
struct Gate {
    method: String,
    open: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

/// A guard of a held reply. Dropping it decrements the number of held replies, even if the wait is cancelled.
struct Waiting<'a>(&'a Gate);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

impl Gate {
    async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _waiting = Waiting(self);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

/// The newest hold on each method.
#[derive(Default)]
pub(crate) struct Holds(Mutex<BTreeMap<String, Arc<Gate>>>);

impl Holds {
    /// Holds the replies to `method`. For later requests, replaces an earlier hold on this method.
    pub(crate) fn hold(&self, method: &str) -> Hold {
        let (method, open, waiting) = (method.to_owned(), watch::Sender::new(false), watch::Sender::new(0));
        let gate = Arc::new(Gate { method: method.clone(), open, waiting });
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.insert(method, Arc::clone(&gate));
        Hold { gate }
    }

    /// Waits until no hold on one of these methods keeps the reply back.
    pub(crate) async fn pass(&self, methods: &[String]) {
        for method in methods {
            let gate = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(method).cloned();
            if let Some(gate) = gate {
                gate.pass().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waited for 2 calls of getBlock to be held; 1 are")]
    async fn what_is_never_held_is_not_waited_for_without_end() {
        let holds = Holds::default();
        let hold = holds.hold("getBlock");
        let methods = ["getBlock".to_owned()];
        tokio::join!(holds.pass(&methods), async {
            hold.arrived(1).await;
            hold.arrived(2).await;
        });
    }

    #[test]
    fn faults_happen_in_their_planned_order() {
        let faults = Faults::default();
        let methods = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        faults.plan(Some("getBlock"), Fault::Html, Some(2));
        faults.plan(Some("getBlock"), Fault::Reset, Some(1));
        faults.plan(None, Fault::Hang, Some(1));
        assert_eq!(faults.take(&methods(&["getSlot", "getBlock"])), Some(Fault::Html));
        assert_eq!(faults.take(&methods(&["getSlot"])), Some(Fault::Hang));
        assert_eq!(faults.take(&methods(&["getSlot"])), None);
        assert_eq!(faults.take(&methods(&["getBlock"])), Some(Fault::Html));
        assert_eq!(faults.take(&methods(&["getBlock"])), Some(Fault::Reset));
        assert_eq!(faults.take(&methods(&["getBlock"])), None);
        faults.plan(None, Fault::Unhealthy, None);
        assert_eq!(faults.take(&methods(&["getBlock"])), None);
        assert_eq!(faults.take(&methods(&["getHealth"])), Some(Fault::Unhealthy));
        faults.clear();
        assert_eq!(faults.take(&methods(&["getHealth"])), None);
    }
}
