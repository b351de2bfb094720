//! The callers. Each caller requests one account after another, checks the answers, and counts its calls for the
//! current phase.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slotfront_lab::wire::{Connections, HttpResponse, Target};
use slotfront_rpc::methods::{Commitment, Pubkey};
use slotfront_sim::Cluster;
use tokio::time::{Instant, timeout};

use crate::answer;
use crate::beside::{ACCOUNT, Beside};
use crate::tally::{CallOutcome, Tally};

/// More connections than there are callers.
const CONNECTIONS: usize = 1_000;

/// The number of callers, the pause of each between two calls, and the longest wait for an answer.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) callers: usize,
    /// The pause between two calls of a caller.
    pub(crate) pause: Duration,
    /// The time after which a call without an answer has failed.
    pub(crate) give_up: Duration,
    /// True if all calls have the id 1, so that a cache of whole bodies can recognize equal calls.
    pub(crate) equal_ids: bool,
}

pub(crate) struct Callers {
    connections: Connections,
    commitments: Vec<String>,
    cluster: Arc<Cluster>,
    /// The accounts that are requested in turn. They always exist.
    addresses: Vec<Pubkey>,
    next: AtomicU64,
    /// The calls beside those for accounts, by the position of the phase. They are counted one position later.
    beside: Vec<Option<Beside>>,
    phase: AtomicUsize,
    counted_requests: AtomicU64,
    tallies: Mutex<Vec<Tally>>,
    remarks: Mutex<Vec<String>>,
    over: AtomicBool,
}

pub(crate) struct Row {
    pub(crate) name: String,
    /// The calls beside those for accounts, which the next row counts.
    pub(crate) beside: Option<Beside>,
}

impl Callers {
    /// Returns callers that count calls for these rows of the output.
    pub(crate) fn new(
        target: Target,
        commitments: Vec<String>,
        cluster: Arc<Cluster>,
        rows: Vec<Row>,
    ) -> Self {
        let addresses = addresses(&cluster);
        Self {
            connections: Connections::new(target, CONNECTIONS),
            commitments,
            cluster,
            addresses,
            next: AtomicU64::new(0),
            beside: rows.iter().map(|row| row.beside).collect(),
            phase: AtomicUsize::new(0),
            counted_requests: AtomicU64::new(0),
            tallies: Mutex::new(rows.into_iter().map(|row| Tally::new(row.name)).collect()),
            remarks: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    /// Sends calls until [`end`](Self::end) is called.
    pub(crate) async fn ask(&self, pace: Pace) {
        let callers = futures_util::future::join_all((0..pace.callers).map(|_| self.ask_alone(pace)));
        tokio::join!(callers, self.ask_beside(pace));
    }

    async fn ask_alone(&self, pace: Pace) {
        while !self.over.load(Ordering::Relaxed) {
            let phase = self.phase.load(Ordering::Relaxed);
            self.begin(phase);
            let (outcome, time) = in_time(pace.give_up, self.ask_once(pace.equal_ids)).await;
            // A call that began between two faults counts for the phase in which it ends.
            let counted = if phase == 0 { self.phase.load(Ordering::Relaxed) } else { phase };
            self.add(phase, counted, outcome, time);
            tokio::time::sleep(pace.pause).await;
        }
    }

    /// Makes the calls beside those for accounts, during the phases that have such calls.
    async fn ask_beside(&self, pace: Pace) {
        while !self.over.load(Ordering::Relaxed) {
            let phase = self.phase.load(Ordering::Relaxed);
            if let Some(beside) = self.beside.get(phase).copied().flatten() {
                self.begin(phase + 1);
                let (outcome, time) =
                    in_time(beside.give_up().unwrap_or(pace.give_up), self.ask_once_beside(beside)).await;
                self.add(phase + 1, phase + 1, outcome, time);
            }
            tokio::time::sleep(pace.pause).await;
        }
    }

    /// Makes one call beside those for accounts. Its answer has no age.
    async fn ask_once_beside(&self, beside: Beside) -> Result<u64, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let call = beside.call(&self.cluster, id, self.address(id));
        let answer = self.exchange(id, call.method, &call.params).await?;
        call.check(&self.cluster, &answer).map(|()| 0)
    }

    /// Requests the next account. Returns the number of slots by which the answer is older than the call.
    async fn ask_once(&self, equal_ids: bool) -> Result<u64, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let address = self.address(number);
        // All accounts are requested at one commitment, then at the next.
        let turn = usize::try_from(number).unwrap_or(0) / self.addresses.len();
        let commitment = &self.commitments[turn % self.commitments.len()];
        let newest = Commitment::from_name(commitment).map_or(0, |commitment| self.cluster.slot(commitment));
        let id = if equal_ids { 1 } else { number };
        let params = format!(r#"["{address}",{{"encoding":"base64","commitment":"{commitment}"}}]"#);
        let answer = self.exchange(id, ACCOUNT, &params).await?;
        let found = answer::read(&answer, id)?;
        let truth = self.cluster.account_at(address, found.slot).map(|account| account.lamports);
        if found.slot > self.cluster.slot(Commitment::Processed) {
            Err(format!("a slot in the future: {}", found.slot))
        } else if truth != Some(found.lamports) {
            Err(format!("{} lamports at slot {} instead of {truth:?}", found.lamports, found.slot))
        } else {
            Ok(newest.saturating_sub(found.slot))
        }
    }

    fn address(&self, id: u64) -> &Pubkey {
        &self.addresses[usize::try_from(id).unwrap_or(0) % self.addresses.len()]
    }

    async fn exchange(&self, id: u64, method: &str, params: &str) -> Result<HttpResponse, String> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.connections.post(&body).await.map_err(|error| error.to_string())
    }

    fn begin(&self, row: usize) {
        if let Some(tally) = self.tallies().get_mut(row) {
            tally.under_way += 1;
        }
    }

    /// Counts a call that began in the row `began`.
    fn add(&self, began: usize, counted: usize, outcome: CallOutcome, time: Duration) {
        let mut tallies = self.tallies();
        if let Some(tally) = tallies.get_mut(began) {
            tally.under_way -= 1;
        }
        if let Some(tally) = tallies.get_mut(counted) {
            tally.add(outcome, time);
        }
    }

    /// Makes the phase at this position the current phase. Calls that begin from now on count for this phase, and so do
    /// the requests that the nodes receive from now on.
    pub(crate) fn enter(&self, phase: usize) {
        let left = self.phase.swap(phase, Ordering::Relaxed);
        let requests = self.node_requests();
        let new = requests - self.counted_requests.swap(requests, Ordering::Relaxed);
        if let Some(tally) = self.tallies().get_mut(left) {
            tally.node_requests += new;
        }
    }

    /// Returns the number of requests that the nodes have received since the start.
    pub(crate) fn node_requests(&self) -> u64 {
        self.cluster.nodes().iter().map(|node| node.calls_total()).sum()
    }

    pub(crate) fn addresses(&self) -> &[Pubkey] {
        &self.addresses
    }

    /// Returns true if all calls that began during a fault have ended.
    pub(crate) fn are_done_with_faults(&self) -> bool {
        self.tallies().iter().skip(1).all(|tally| tally.under_way == 0)
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
        self.enter(self.phase.load(Ordering::Relaxed));
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let tallies = self.tallies();
        let remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = tallies.iter().filter_map(Tally::first_failure);
        let remarks = failures.chain(remarks.iter().cloned()).map(|remark| format!("# {remark}"));
        tallies.iter().map(Tally::line).chain(remarks).collect()
    }
}

/// Awaits a call, at most for the time after which it is given up. Returns its outcome and its duration.
async fn in_time(
    give_up: Duration,
    call: impl Future<Output = Result<u64, String>>,
) -> (CallOutcome, Duration) {
    let began = Instant::now();
    let outcome = match timeout(give_up, call).await {
        Ok(Ok(age)) => CallOutcome::Answer { age },
        Ok(Err(why)) => CallOutcome::Failed(why),
        Err(_) => CallOutcome::Failed(format!("no answer in {give_up:?}")),
    };
    (outcome, began.elapsed())
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
