//! The faults that a node can be given on command.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// A fault of a node, as its callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Answers after this long.
    Latency(Duration),
    /// Takes the request and never answers.
    Hang,
    /// HTTP 429 with `Retry-After`, as hosted nodes refuse.
    Status429 {
        /// Seconds in `Retry-After`.
        retry_after_s: u64,
    },
    /// Another HTTP status, with a line of plain text.
    Status(u16),
    /// HTTP 502 with a web page, as load balancers answer.
    Html,
    /// Half of the answer under the whole answer's Content-Length, then the connection ends.
    Truncated,
    /// The right answer in ten pieces, with this long between two.
    Trickle(Duration),
    /// The right answer under another id.
    WrongId,
    /// Closes the connection without a byte, with a TCP reset.
    Reset,
    /// -32005, as getHealth answers on a node that is behind; other methods give it only if it was set for them.
    Unhealthy,
    /// `result: null`, as getBlock answers for a block that is incomplete on a node.
    NullResult,
    /// An error object.
    Error {
        /// Its code.
        code: i32,
        /// Its message.
        message: String,
    },
    /// This result, whatever was asked: a node that is wrong.
    Result(serde_json::Value),
    /// A result of this many bytes, one long text, streamed without Content-Length.
    Huge(usize),
    /// A result of this many arrays, each inside the one before it.
    Nested(usize),
    /// The first half of the right answer, sent as if it were whole.
    Half,
    /// HTTP 200 with this body, whatever was asked.
    Body {
        /// Its content type.
        content_type: &'static str,
        /// Its text.
        text: &'static str,
    },
    /// The right answer with each slot of it this many slots higher, that of the context or the result itself.
    Ahead(u64),
}

/// The faults that wait to happen.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Vec<Planned>>);

struct Planned {
    /// For one method, or for all.
    method: Option<String>,
    fault: Fault,
    /// How often still; for ever if `None`.
    left: Option<usize>,
}

impl Faults {
    /// Adds a fault behind those that wait already.
    pub(crate) fn plan(&self, method: Option<&str>, fault: Fault, times: Option<usize>) {
        let planned = Planned { method: method.map(str::to_owned), fault, left: times };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(planned);
    }

    /// Drops all.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The fault that a request with these methods meets: the first that was planned for any of them.
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

/// Replies to one method that wait for a test to let them go. Dropping it releases them.
#[derive(Debug)]
pub struct Hold {
    gate: Arc<Gate>,
}

impl Hold {
    /// How many calls wait now.
    pub fn waiting(&self) -> usize {
        *self.gate.waiting.borrow()
    }

    /// Waits until `n` calls wait.
    pub async fn arrived(&self, n: usize) {
        // The sender lives in the gate, which `self` holds.
        let _ = self.gate.waiting.subscribe().wait_for(|waiting| *waiting >= n).await;
    }

    /// Lets all of them go, and those to come.
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

/// One fewer waits, however the wait ended.
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
    /// Holds the replies to `method`, in place of an earlier hold of it.
    pub(crate) fn hold(&self, method: &str) -> Hold {
        let gate = Arc::new(Gate { open: watch::Sender::new(false), waiting: watch::Sender::new(0) });
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.insert(method.to_owned(), Arc::clone(&gate));
        Hold { gate }
    }

    /// Waits until none of `methods` is held.
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
