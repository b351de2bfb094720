//! The faults of nodes that tests inject.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// A fault of a node, as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Answers after this delay.
    Latency(Duration),
    /// Accepts the request and never answers.
    Hang,
    /// Answers with HTTP 429 and `Retry-After`, like hosted nodes.
    Status429 {
        /// The seconds in `Retry-After`.
        retry_after_s: u64,
    },
    /// Answers with another HTTP status and a line of plain text.
    Status(u16),
    /// Answers with HTTP 502 and a web page, like load balancers.
    Html,
    /// Sends half of the answer with the Content-Length of the whole answer, then closes the connection.
    Truncated,
    /// Sends the right answer in ten pieces, with this pause between two.
    Trickle(Duration),
    /// Sends the right answer with a wrong id.
    WrongId,
    /// Closes the connection with a TCP reset, without an answer.
    Reset,
    /// Answers with -32005, like getHealth on a node that is behind. A fault for all methods affects only getHealth.
    Unhealthy,
    /// Answers with `result: null`, like getBlock for a block that is incomplete on a node.
    NullResult,
    /// Answers with an error object.
    Error {
        /// The code.
        code: i32,
        /// The message.
        message: String,
    },
    /// Answers every call with this result.
    Result(serde_json::Value),
    /// Answers with a result of this many bytes, one long string, streamed without Content-Length.
    Huge(usize),
    /// Answers with a result of this many nested arrays.
    Nested(usize),
    /// Sends the first half of the right answer as a complete response.
    Half,
    /// Answers every call with HTTP 200 and this body.
    Body {
        /// The content type.
        content_type: &'static str,
        /// The text.
        text: &'static str,
    },
    /// Sends the right answer with every slot this much higher, in the context or as the result.
    Ahead(u64),
    /// Sends the right answer with these members added to its result, in place of members with the same names. A
    /// block may thus lack its rewards, or be one of another fork.
    With(serde_json::Value),
}

/// The planned faults.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Vec<Planned>>);

struct Planned {
    /// The affected method. `None` means all.
    method: Option<String>,
    fault: Fault,
    /// The remaining number of times. `None` means no limit.
    left: Option<usize>,
}

impl Faults {
    /// Adds a fault after those that are already planned.
    pub(crate) fn plan(&self, method: Option<&str>, fault: Fault, times: Option<usize>) {
        let planned = Planned { method: method.map(str::to_owned), fault, left: times };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(planned);
    }

    /// Removes all faults.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the fault for a request with these methods: the first that is planned for any of them.
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

/// A hold on the replies to one method. Calling [`Self::release`] or dropping the value releases the replies.
#[derive(Debug)]
pub struct Hold {
    gate: Arc<Gate>,
}

impl Hold {
    /// Returns the number of waiting calls.
    pub fn waiting(&self) -> usize {
        *self.gate.waiting.borrow()
    }

    /// Waits until `n` calls wait.
    pub async fn arrived(&self, n: usize) {
        // The sender lives in the gate, which `self` owns.
        let _ = self.gate.waiting.subscribe().wait_for(|waiting| *waiting >= n).await;
    }

    /// Releases all waiting calls and all later ones.
    pub fn release(&self) {
        self.gate.open.send_replace(true);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

/// The node's side of a [`Hold`].
#[derive(Debug)]
struct Gate {
    open: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

/// A guard that decrements the number of waiting calls, however the wait ends.
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

/// The newest hold of each method.
#[derive(Default)]
pub(crate) struct Holds(Mutex<BTreeMap<String, Arc<Gate>>>);

impl Holds {
    /// Holds the replies to `method`. Replaces an earlier hold of this method.
    pub(crate) fn hold(&self, method: &str) -> Hold {
        let gate = Arc::new(Gate { open: watch::Sender::new(false), waiting: watch::Sender::new(0) });
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.insert(method.to_owned(), Arc::clone(&gate));
        Hold { gate }
    }

    /// Waits until no method of `methods` is held.
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
