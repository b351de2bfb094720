//! The callers. Each caller requests one account after another, checks the answers, and counts its calls for the
//! current phase.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slotfront_lab::wire::{Connection, Target};
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};
use slotfront_sim::Cluster;
use tokio::time::{Instant, timeout};

use crate::answer;
use crate::phases::ACCOUNT;
use crate::tally::{CallOutcome, Tally};

/// The number of consecutive good answers that must come before the first fault.
const BEGUN: u64 = 100;
/// The value of [`Callers::phase`] until the first phase begins. Calls that begin earlier are not counted.
const UNCOUNTED: usize = usize::MAX;

/// The number of callers, the pause of each between two calls, and the longest wait for an answer.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) callers: usize,
    /// The pause between two calls of a caller.
    pub(crate) pause: Duration,
    /// The time after which a call without an answer has failed.
    pub(crate) give_up: Duration,
}

/// The callers of one gateway, and the counts of their calls.
pub(crate) struct Callers {
    target: Target,
    /// The commitments that are requested in turn.
    commitments: Vec<String>,
    cluster: Arc<Cluster>,
    /// The accounts that are requested in turn. They always exist.
    addresses: Vec<Pubkey>,
    next: AtomicU64,
    /// The position of the current phase.
    phase: AtomicUsize,
    tallies: Mutex<Vec<Tally>>,
    remarks: Mutex<Vec<String>>,
    good_in_a_row: AtomicU64,
    over: AtomicBool,
}

impl Callers {
    /// Returns callers that count calls for phases with these names.
    pub(crate) fn new(
        target: Target,
        commitments: Vec<String>,
        cluster: Arc<Cluster>,
        phases: Vec<&'static str>,
    ) -> Self {
        let addresses = addresses(&cluster);
        Self {
            target,
            commitments,
            cluster,
            addresses,
            next: AtomicU64::new(0),
            phase: AtomicUsize::new(UNCOUNTED),
            tallies: Mutex::new(phases.into_iter().map(Tally::new).collect()),
            remarks: Mutex::default(),
            good_in_a_row: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Sends calls until [`end`](Self::end) is called.
    pub(crate) async fn ask(&self, pace: Pace) {
        futures_util::future::join_all((0..pace.callers).map(|_| self.ask_alone(pace))).await;
    }

    async fn ask_alone(&self, pace: Pace) {
        let mut idle = None;
        while !self.over.load(Ordering::Relaxed) {
            let (phase, newest) = (self.begin(), self.newest());
            let began = Instant::now();
            let asked = timeout(pace.give_up, self.ask_once(&mut idle)).await;
            let outcome = match asked {
                Ok(Ok(slot)) => CallOutcome::Answer { age: newest.saturating_sub(slot) },
                Ok(Err(why)) => CallOutcome::Failed(why),
                Err(_) => CallOutcome::Failed(format!("no answer in {:?}", pace.give_up)),
            };
            self.add(phase, outcome, began.elapsed());
            tokio::time::sleep(pace.pause).await;
        }
    }

    /// Requests the next account, on the connection `idle` if that is still open. Returns the slot of the answer.
    async fn ask_once(&self, idle: &mut Option<Connection>) -> Result<Slot, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let turn = usize::try_from(id).unwrap_or(0);
        let address = &self.addresses[turn % self.addresses.len()];
        // All accounts are requested at one commitment, then at the next.
        let commitment = &self.commitments[turn / self.addresses.len() % self.commitments.len()];
        let mut connection = match idle.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::open(&self.target).await.map_err(|error| error.to_string())?,
        };
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{ACCOUNT}","params":["{address}",{{"encoding":"base64","commitment":"{commitment}"}}]}}"#
        );
        let answer = connection.post(&body).await.map_err(|error| error.to_string())?;
        *idle = Some(connection);
        let found = answer::read(&answer, id)?;
        let truth = self.cluster.account_at(address, found.slot).map(|account| account.lamports);
        if found.slot > self.newest() {
            Err(format!("a slot in the future: {}", found.slot))
        } else if truth != Some(found.lamports) {
            Err(format!("{} lamports at slot {} instead of {truth:?}", found.lamports, found.slot))
        } else {
            Ok(found.slot)
        }
    }

    fn newest(&self) -> Slot {
        self.cluster.slot(Commitment::Processed)
    }

    /// Notes that a call begins. Returns the position of the current phase.
    fn begin(&self) -> usize {
        let phase = self.phase.load(Ordering::Relaxed);
        if let Some(tally) = self.tallies().get_mut(phase) {
            tally.under_way += 1;
        }
        phase
    }

    /// Counts a call that began in the phase `began`. A call that began between two faults counts for the phase in
    /// which it ends.
    fn add(&self, began: usize, outcome: CallOutcome, time: Duration) {
        match &outcome {
            CallOutcome::Answer { .. } => self.good_in_a_row.fetch_add(1, Ordering::Relaxed),
            CallOutcome::Failed(_) => self.good_in_a_row.swap(0, Ordering::Relaxed),
        };
        let phase = if began == 0 { self.phase.load(Ordering::Relaxed) } else { began };
        let mut tallies = self.tallies();
        if let Some(tally) = tallies.get_mut(began) {
            tally.under_way -= 1;
        }
        if let Some(tally) = tallies.get_mut(phase) {
            tally.add(outcome, time);
        }
    }

    /// Returns true once the gateway has given [`BEGUN`] good answers in a row.
    pub(crate) fn have_begun(&self) -> bool {
        self.good_in_a_row.load(Ordering::Relaxed) >= BEGUN
    }

    /// Makes the phase at this position the current phase. Calls that begin from now on count for this phase.
    pub(crate) fn enter(&self, phase: usize) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    /// Returns the number of completed calls of the phase at this position.
    pub(crate) fn ended(&self, phase: usize) -> u64 {
        self.tallies().get(phase).map_or(0, Tally::calls)
    }

    /// Returns true if all calls that began in the phase at this position have ended.
    pub(crate) fn are_done_with(&self, phase: usize) -> bool {
        self.tallies().get(phase).is_none_or(|tally| tally.under_way == 0)
    }

    fn tallies(&self) -> MutexGuard<'_, Vec<Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line that begins with `#` to the output.
    pub(crate) fn remark(&self, text: String) {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Stops each caller after its current call.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Returns the lines of the output.
    pub(crate) fn lines(&self) -> Vec<String> {
        let tallies = self.tallies();
        let remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = tallies.iter().filter_map(Tally::first_failure);
        let remarks = failures.chain(remarks.iter().cloned()).map(|remark| format!("# {remark}"));
        tallies.iter().map(Tally::line).chain(remarks).collect()
    }
}

/// Returns about a hundred accounts that always exist.
fn addresses(cluster: &Cluster) -> Vec<Pubkey> {
    let examples = cluster.examples();
    let mut addresses = [
        examples.wallets,
        examples.token_accounts,
        examples.mints,
        examples.token_account_of_mint,
        examples.vote_accounts,
        examples.stake_accounts,
        examples.lookup_tables,
        vec![examples.nonce_account],
    ]
    .concat();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
