//! One gateway with nodes of its own, and the reads that it gets.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slotfront_lab::reads::{PlannedRead, WriteRate};
use slotfront_lab::wire::{BoxError, Connections, Target};
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};
use slotfront_sim::{Cluster, Node};
use tokio::time::Instant;

use crate::check::check;
use crate::upstream::{UpstreamCalls, UpstreamCounter};

/// The maximum number of connections to a gateway.
const CONNECTIONS: usize = 64;
/// The pause between two checks of a gateway's readiness.
const LOOK: Duration = Duration::from_millis(100);
/// The longest wait for a gateway to become ready.
const PATIENCE: Duration = Duration::from_mins(3);

/// One gateway with nodes of its own, and the counts of the reads that it gets.
pub(crate) struct Lane {
    /// True if the gateway gets reads of lists, false if it gets reads of single accounts.
    pub(crate) is_list: bool,
    /// True if the gateway follows the chain.
    pub(crate) follows: bool,
    connections: Connections,
    cluster: Arc<Cluster>,
    upstream: Arc<UpstreamCounter>,
    tally: Mutex<Tally>,
}

/// The counts of one gateway.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) micros: Vec<u64>,
    /// The number of slots by which each correct answer was behind the cluster. The key has the commitment and the
    /// source of the answer.
    pub(crate) behind: BTreeMap<(Commitment, &'static str), Vec<Slot>>,
    /// The number of reads that got no answer, or an answer with an HTTP error.
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
    /// The fault of the first failed or wrong read.
    pub(crate) remark: Option<String>,
}

impl Lane {
    /// Creates the lane of the gateway at `target`, whose nodes are `nodes`.
    pub(crate) fn new(
        is_list: bool,
        follows: bool,
        target: Target,
        cluster: &Arc<Cluster>,
        nodes: &[Arc<Node>],
        rates: &Arc<HashMap<Pubkey, WriteRate>>,
    ) -> Self {
        Self {
            is_list,
            follows,
            connections: Connections::new(target, CONNECTIONS),
            cluster: Arc::clone(cluster),
            upstream: UpstreamCounter::over(nodes, rates),
            tally: Mutex::default(),
        }
    }

    /// Waits until the gateway answers. If it follows the chain, also waits until it carries answers at finalized to
    /// newer slots.
    ///
    /// # Errors
    /// The gateway is not ready within [`PATIENCE`].
    pub(crate) async fn ready(&self) -> Result<(), BoxError> {
        let key = self.cluster.examples().nonce_account;
        let params = format!(r#"["{key}",{{"encoding":"base64","commitment":"finalized"}}]"#);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":{params}}}"#);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Ok(answer) = self.connections.post(&body).await {
                let is_carried = answer.cache_status.contains("detail=carried");
                if answer.status == 200 && (is_carried || !self.follows) {
                    return Ok(());
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        Err("a gateway did not begin".into())
    }

    pub(crate) async fn send(&self, read: &PlannedRead) {
        let due = Instant::now();
        let answer = self.connections.post(&read.body).await;
        let micros = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
        let newest = self.cluster.slot(read.commitment);
        let checked = match &answer {
            Ok(answer) if answer.status == 200 => check(&self.cluster, read, &answer.body),
            Ok(answer) => Err(format!("status {}", answer.status)),
            Err(error) => Err(error.to_string()),
        };
        let mut tally = self.tally();
        tally.micros.push(micros);
        match (checked, answer) {
            (Ok(slot), Ok(answer)) => {
                let kind = (read.commitment, source(&answer.cache_status));
                tally.behind.entry(kind).or_default().push(newest.saturating_sub(slot));
            }
            (Err(why), answer) => {
                let is_answer = answer.is_ok_and(|answer| answer.status == 200);
                *(if is_answer { &mut tally.wrong } else { &mut tally.failed }) += 1;
                tally.remark.get_or_insert(why);
            }
            (Ok(_), Err(_)) => tally.failed += 1,
        }
    }

    /// Returns the counts of the reads, and of the calls to the nodes, and sets all counts to 0.
    pub(crate) fn take(&self) -> (Tally, UpstreamCalls) {
        (std::mem::take(&mut *self.tally()), self.upstream.take())
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the source of an answer as one word, for example `hit` or `fetched`. `cache_status` is the header
/// `Cache-Status` of the answer.
fn source(cache_status: &str) -> &'static str {
    let has = |word: &str| cache_status.contains(word);
    if has("detail=carried") {
        "carried"
    } else if has("ttl=-") || has("detail=stale") {
        "stale"
    } else if has("detail=derived") {
        "derived"
    } else if has("hit") {
        "hit"
    } else if has("collapsed") {
        "collapsed"
    } else {
        "fetched"
    }
}
