//! What has happened lately, for whoever opens the status page because of it.

use std::collections::VecDeque;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

use crate::named;

/// The number of events that are kept.
const KEPT: usize = 200;

named! {
    /// The kind of an event.
    pub enum EventKind {
        /// slotfront has started.
        Start = "start",
        /// A node gives no usable answers any more, or gets no calls.
        NodeDown = "node_down",
        /// A node answers well again.
        NodeUp = "node_up",
        /// The configuration was read again, or was refused.
        Reload = "reload",
        /// Keys were changed.
        Keys = "keys",
        /// A key has used up 80 % or all of a quota.
        Quota = "quota",
        /// An operator has drained or restored a node, or purged the cache.
        Action = "action",
    }
}

impl Serialize for EventKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Something that has happened, in words.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// The time in milliseconds of the Unix epoch.
    pub at_ms: i64,
    /// The kind.
    pub kind: EventKind,
    /// What has happened.
    pub text: String,
}

/// The newest events, oldest first.
#[derive(Debug, Default)]
pub struct Events(Mutex<VecDeque<Event>>);

impl Events {
    /// Notes an event, and forgets the oldest one beyond `KEPT`.
    pub fn note(&self, kind: EventKind, text: impl Into<String>) {
        let event = Event { at_ms: Timestamp::now().as_millisecond(), kind, text: text.into() };
        let mut events = self.0.lock();
        if events.len() == KEPT {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Returns all events, oldest first.
    pub fn all(&self) -> Vec<Event> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_events_are_kept() {
        let events = Events::default();
        (0..KEPT + 3).for_each(|n| events.note(EventKind::Action, n.to_string()));
        let all = events.all();
        assert_eq!((all.len(), &*all[0].text, &*all[KEPT - 1].text), (KEPT, "3", "202"));
    }
}
