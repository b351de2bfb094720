//! The counts of the calls of one phase.

use std::time::Duration;

/// The age in slots above which an answer is old.
const OLD_SLOTS: u64 = 60;

/// The result of a call.
pub(crate) enum CallOutcome {
    /// An account. The slot of the answer is `age` slots below the newest processed slot at the beginning of the
    /// call.
    Answer { age: u64 },
    /// Any other result, with the reason.
    Failed(String),
}

/// The counts of the calls of one phase.
pub(crate) struct Tally {
    name: String,
    /// The duration of each completed call, in microseconds.
    micros: Vec<u128>,
    failed: u64,
    old: u64,
    first_failure: Option<String>,
    /// The number of open calls that began in the phase.
    pub(crate) under_way: u64,
}

impl Tally {
    pub(crate) fn new(name: String) -> Self {
        Self { name, micros: Vec::new(), failed: 0, old: 0, first_failure: None, under_way: 0 }
    }

    pub(crate) fn add(&mut self, outcome: CallOutcome, time: Duration) {
        self.micros.push(time.as_micros());
        match outcome {
            CallOutcome::Answer { age } => self.old += u64::from(age > OLD_SLOTS),
            CallOutcome::Failed(why) => {
                self.failed += 1;
                self.first_failure.get_or_insert(why);
            }
        }
    }

    pub(crate) fn calls(&self) -> u64 {
        self.micros.len() as u64
    }

    /// Returns a line of the output, whose fields are separated by tabs: name, calls, failed calls, old answers,
    /// p50 and p99.
    pub(crate) fn line(&self) -> String {
        let mut micros = self.micros.clone();
        micros.sort_unstable();
        let percentile = |part: usize| micros.get(micros.len() * part / 100).copied().unwrap_or(0);
        let (name, calls, p50, p99) = (&self.name, self.calls(), percentile(50), percentile(99));
        format!("{name}\t{calls}\t{}\t{}\t{p50}\t{p99}", self.failed, self.old)
    }

    pub(crate) fn first_failure(&self) -> Option<String> {
        let on_one_line = |why: &String| why.split_whitespace().collect::<Vec<_>>().join(" ");
        self.first_failure.as_ref().map(|why| format!("{}: {}", self.name, on_one_line(why)))
    }
}
