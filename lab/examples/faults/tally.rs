//! The counts of the calls of one phase.

use std::time::Duration;

/// The age in slots above which an answer is old.
const OLD_SLOTS: u64 = 60;

pub(crate) enum CallOutcome {
    /// An account. The slot of the answer is `age` slots below the newest slot of its commitment at the beginning of
    /// the call.
    Answer { age: u64 },
    /// Any other result, with the reason.
    Failed(String),
}

/// The counts of the calls of one phase.
pub(crate) struct Tally {
    name: String,
    /// The duration of each completed call, in microseconds.
    micros: Vec<u128>,
    ages: Vec<u64>,
    failed: u64,
    pub(crate) node_requests: u64,
    first_failure: Option<String>,
    /// The number of open calls that began in the phase.
    pub(crate) under_way: u64,
}

impl Tally {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            micros: Vec::new(),
            ages: Vec::new(),
            failed: 0,
            node_requests: 0,
            first_failure: None,
            under_way: 0,
        }
    }

    pub(crate) fn add(&mut self, outcome: CallOutcome, time: Duration) {
        self.micros.push(time.as_micros());
        match outcome {
            CallOutcome::Answer { age } => self.ages.push(age),
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
    /// p50 and p99, requests to the nodes, p50 and p99 of the ages.
    pub(crate) fn line(&self) -> String {
        let old = self.ages.iter().filter(|age| **age > OLD_SLOTS).count();
        let [p50, p99] = percentiles(&self.micros);
        let [age, oldest] = percentiles(&self.ages);
        let (name, calls, failed, requests) = (&self.name, self.calls(), self.failed, self.node_requests);
        format!("{name}\t{calls}\t{failed}\t{old}\t{p50}\t{p99}\t{requests}\t{age}\t{oldest}")
    }

    pub(crate) fn first_failure(&self) -> Option<String> {
        let on_one_line = |why: &String| why.split_whitespace().collect::<Vec<_>>().join(" ");
        self.first_failure.as_ref().map(|why| format!("{}: {}", self.name, on_one_line(why)))
    }
}

/// Returns the p50 and the p99.
fn percentiles<T: Copy + Default + Ord>(values: &[T]) -> [T; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    [50, 99].map(|part| sorted.get(sorted.len() * part / 100).copied().unwrap_or_default())
}
