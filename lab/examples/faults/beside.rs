//! The calls that some phases make beside the account calls, and what is right for each.

use std::ops::Range;
use std::time::Duration;

use serde_json::Value;
use slotfront_lab::wire::HttpResponse;
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};
use slotfront_sim::{Cluster, Settings};

pub(crate) const ACCOUNT: &str = "getAccountInfo";
/// The node that is well while the faulty one is an archive that fails, and that has the whole history.
pub(crate) const WELL: usize = 1;
/// The method that the nodes refuse in some phases. No refusal is cached, so each call meets it.
pub(crate) const REFUSED: &str = "getTokenAccountsByDelegate";
const TOKEN: &str = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";
/// A node's error for a `minContextSlot` that it has not reached.
const NOT_REACHED: i64 = -32_016;

pub(crate) const PAGES: &str = "getSignaturesForAddress";
const SCANS: &str = "getProgramAccounts";
/// The number of signatures of a page. The accounts of the callers have that many.
const PAGE: usize = 3;
/// The time that a node needs for a scan in one of the phases: more than the time of other calls.
pub(crate) const SCAN: Duration = Duration::from_secs(14);

/// The errors of a node for a slot without a block.
const SKIPPED: [i64; 2] = [-32_007, -32_009];
/// The number of slots below the hole, and above it, whose blocks are requested.
const AROUND: Slot = 10;

/// Calls that a phase makes beside the account calls.
#[derive(Clone, Copy)]
pub(crate) enum Beside {
    /// Calls of [`REFUSED`], which every node refuses. An error is right, with `Retry-After` if the nodes' own has it.
    Refused { retry_after: bool },
    /// getAccountInfo with the cluster's newest slot as `minContextSlot`. An answer from this slot or a later one is
    /// right, and so is a node's refusal.
    NewestSlot,
    /// getSignaturesForAddress. A page is right if it is as long as that of the node that is well.
    Pages,
    /// getProgramAccounts, for which the nodes need a long time. Any result is right.
    Scans,
    /// getBlock for the slots of the [`hole`] and around it. The block is right, or for a skipped slot a node's refusal.
    Blocks,
}

/// Returns the slots whose blocks some nodes have lost in one of the phases.
pub(crate) fn hole() -> Range<Slot> {
    let first = Settings::default().first_slot + 300;
    first..first + 20
}

/// One of these calls, and what its answer is compared with.
pub(crate) struct BesideCall {
    beside: Beside,
    /// The slot of the requested block, or the `minContextSlot`.
    slot: Slot,
    pub(crate) method: &'static str,
    pub(crate) params: String,
}

impl Beside {
    /// Returns the text by which the output tells these calls from those for accounts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Refused { .. } => "calls of this method",
            Self::NewestSlot => "with `minContextSlot`",
            Self::Blocks => "getBlock",
            Self::Pages => PAGES,
            Self::Scans => SCANS,
        }
    }

    /// Returns the time after which a caller gives such a call up. `None` for that of the account calls.
    pub(crate) fn give_up(self) -> Option<Duration> {
        matches!(self, Self::Scans).then_some(2 * SCAN)
    }

    pub(crate) fn call(self, cluster: &Cluster, number: u64, address: &Pubkey) -> BesideCall {
        let newest = cluster.slot(Commitment::Processed);
        let (method, slot, params) = match self {
            Self::Refused { .. } => (REFUSED, newest, format!(r#"["{address}",{{"programId":"{TOKEN}"}}]"#)),
            Self::NewestSlot => {
                let config =
                    format!(r#"{{"encoding":"base64","commitment":"processed","minContextSlot":{newest}}}"#);
                (ACCOUNT, newest, format!(r#"["{address}",{config}]"#))
            }
            Self::Pages => (PAGES, newest, format!(r#"["{address}",{{"limit":{PAGE}}}]"#)),
            // Each is another question, so that none waits for the answer of another.
            Self::Scans => {
                let filter = format!(r#"{{"dataSize":{number}}}"#);
                (SCANS, newest, format!(r#"["{TOKEN}",{{"filters":[{filter}]}}]"#))
            }
            Self::Blocks => {
                let Range { start, end } = hole();
                let slot = start - AROUND + number % (end - start + 2 * AROUND);
                ("getBlock", slot, format!(r#"[{slot},{{"transactionDetails":"none","rewards":false}}]"#))
            }
        };
        BesideCall { beside: self, slot, method, params }
    }
}

impl BesideCall {
    /// Checks the answer.
    ///
    /// # Errors
    /// The answer is wrong. The text says why.
    pub(crate) fn check(&self, cluster: &Cluster, answer: &HttpResponse) -> Result<(), String> {
        let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let code = json["error"]["code"].as_i64();
        let is_right = match self.beside {
            Beside::Refused { retry_after } => {
                (answer.status >= 400 || code.is_some()) && (!retry_after || !answer.retry_after.is_empty())
            }
            Beside::NewestSlot => {
                let from = json["result"]["context"]["slot"].as_u64();
                code == Some(NOT_REACHED) || from.is_some_and(|from| from >= self.slot)
            }
            Beside::Pages => {
                let (method, params) = (self.method, &self.params);
                let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
                let whole: Value =
                    serde_json::from_slice(&cluster.node(WELL).answer(body.as_bytes())).unwrap_or_default();
                let count = |page: &Value| page["result"].as_array().map(Vec::len);
                count(&json).is_some() && count(&json) == count(&whole)
            }
            Beside::Scans => json["result"].is_array(),
            Beside::Blocks if cluster.has_block(self.slot) => json["result"]["blockhash"].is_string(),
            Beside::Blocks => code.is_some_and(|code| SKIPPED.contains(&code)),
        };
        let (slot, status, retry_after) = (self.slot, answer.status, &answer.retry_after);
        let shown = crate::answer::shown(answer);
        is_right
            .then_some(())
            .ok_or_else(|| format!("slot {slot}, status {status}, Retry-After {retry_after:?}: {shown}"))
    }
}
