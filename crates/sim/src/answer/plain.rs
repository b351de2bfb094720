//! The methods whose answers slotfront keeps as nodes write them: the dispatch, and what the cluster keeps for an epoch or for
//! ever.

use serde_json::{Value, json};
use slotfront_rpc::methods::{Commitment, Method, PlainQuery, Pubkey, Slot};

use super::{FEATURE_SET, Refusal, View, argument, health, history, leaders, scan, status};
use crate::chain::accounts::rent_exempt;
use crate::draw::Draw;

/// The share of a year's new lamports in the first year, and by how much it falls each year.
const INFLATION: (f64, f64) = (0.08, 0.15);
/// The share of new lamports that a foundation gets.
const FOUNDATION: f64 = 0.05;
/// The number of newest blocks that getRecentPrioritizationFees lists.
const FEE_BLOCKS: usize = 150;
/// The slots between two full snapshots, and between two incremental ones.
const SNAPSHOT_SLOTS: (Slot, Slot) = (1000, 100);
/// The number of slots below the finalized one of which a node still counts the votes.
const COUNTED_SLOTS: u64 = 300;
/// The number of depths at which votes are counted. A block at the last one is final.
const VOTE_DEPTHS: usize = 32;

/// The methods of a node without its full API.
pub(super) fn is_minimal(method: Method) -> bool {
    matches!(
        method,
        Method::GetBalance
            | Method::GetGenesisHash
            | Method::GetHealth
            | Method::GetHighestSnapshotSlot
            | Method::GetIdentity
            | Method::GetLeaderSchedule
            | Method::GetTransactionCount
            | Method::GetVersion
            | Method::GetVoteAccounts
    )
}

/// Answers a query whose params are valid.
pub(super) fn answer(view: &View<'_>, query: &PlainQuery) -> Result<Value, Refusal> {
    let params: Vec<Value> = serde_json::from_str(&query.params).unwrap_or_default();
    let commitment = query.commitment.unwrap_or(Commitment::Finalized);
    let slot = view.slot_from(commitment, query.min_context_slot)?;
    match query.method {
        Method::GetBlockTime => history::block_time(view, number(&params, 0)?),
        Method::GetBlocks => {
            let last = params.get(1).and_then(Value::as_u64);
            history::blocks(view, slot, number(&params, 0)?, last)
        }
        Method::GetBlocksWithLimit => {
            let limit = usize::try_from(number(&params, 1)?).unwrap_or(usize::MAX);
            Ok(history::blocks_with_limit(view, slot, number(&params, 0)?, limit))
        }
        Method::GetTransaction => status::one(view, &at(params, commitment)),
        Method::GetSignaturesForAddress => history::signatures(view, slot, &params),
        Method::GetInflationReward => history::inflation_reward(view, slot, &params),
        Method::GetLeaderSchedule => Ok(leaders::schedule(view, slot, &params)),
        Method::GetSlotLeaders => leaders::of_slots(view, slot, number(&params, 0)?, number(&params, 1)?),
        Method::GetSlotLeader => Ok(leaders::of_slot(view, slot).into()),
        Method::GetBlockProduction => leaders::production(view, slot, &params),
        Method::GetTokenAccountsByOwner | Method::GetTokenAccountsByDelegate => {
            let by_delegate = query.method == Method::GetTokenAccountsByDelegate;
            scan::token_accounts(view, slot, &params, by_delegate)
        }
        Method::GetProgramAccounts => scan::program_accounts(view, slot, &params),
        Method::GetTokenLargestAccounts => scan::token_largest(view, slot, &params),
        Method::GetLargestAccounts => Ok(scan::largest(view, slot, &params)),
        Method::GetSupply => Ok(scan::supply(view, slot)),
        Method::GetHealth => health(view).map(Value::from),
        Method::GetVersion => Ok(json!({ "feature-set": FEATURE_SET, "solana-core": view.node.version() })),
        Method::GetGenesisHash => Ok(genesis_hash(view.chain.genesis.seed).into()),
        Method::GetFirstAvailableBlock | Method::MinimumLedgerSlot => Ok(view.first_available().into()),
        Method::GetEpochSchedule => Ok(epoch_schedule(view)),
        Method::GetInflationGovernor => Ok(inflation_governor()),
        Method::GetInflationRate => Ok(inflation_rate(view, slot)),
        Method::GetStakeMinimumDelegation => Ok(view.contextual(slot, &1_000_000_000_u64.into())),
        Method::GetMinimumBalanceForRentExemption => {
            Ok(rent_exempt(usize::try_from(number(&params, 0)?).unwrap_or(usize::MAX)).into())
        }
        Method::GetRecentPrioritizationFees => Ok(prioritization_fees(view)),
        Method::GetTransactionCount => Ok(view.chain.tip_at(slot).transaction_count.into()),
        Method::GetBlockCommitment => Ok(block_commitment(view, number(&params, 0)?)),
        Method::GetHighestSnapshotSlot => highest_snapshot(view),
        Method::GetMaxRetransmitSlot | Method::GetMaxShredInsertSlot => Ok(view.tip.slot.into()),
        Method::GetIdentity => {
            let validator = view.chain.addresses.validators.get(view.node.index());
            Ok(json!({ "identity": validator.map(|validator| validator.identity.to_string()) }))
        }
        _ => Err(Refusal::new(-32_601, "Method not found")),
    }
}

/// Returns the param at `index`, a number.
pub(super) fn number(params: &[Value], index: usize) -> Result<u64, Refusal> {
    argument(params, index)?.as_u64().ok_or_else(|| Refusal::param("Invalid params: expected u64."))
}

fn at(mut params: Vec<Value>, commitment: Commitment) -> Vec<Value> {
    if let Some(Value::Object(config)) = params.last_mut() {
        config.insert("commitment".to_owned(), commitment.as_str().into());
    }
    params
}

pub(crate) fn genesis_hash(seed: u64) -> String {
    Pubkey(Draw::new(seed, "genesis", 0).bytes()).to_string()
}

fn epoch_schedule(view: &View<'_>) -> Value {
    let epochs = view.chain.genesis.epochs;
    json!({
        "firstNormalEpoch": epochs.first_normal,
        "firstNormalSlot": epochs.first_normal_slot,
        "leaderScheduleSlotOffset": epochs.slots,
        "slotsPerEpoch": epochs.slots,
        "warmup": epochs.warmup,
    })
}

fn inflation_governor() -> Value {
    let (initial, taper) = INFLATION;
    json!({ "foundation": FOUNDATION, "foundationTerm": 7.0, "initial": initial, "taper": taper, "terminal": 0.015 })
}

/// Returns the inflation of the epoch of `slot`. Some 182 epochs make a year.
#[expect(clippy::cast_precision_loss, reason = "epochs are few")]
fn inflation_rate(view: &View<'_>, slot: Slot) -> Value {
    let epoch = view.chain.genesis.epochs.of(slot).number;
    let (initial, taper) = INFLATION;
    let total = (initial * (1.0 - taper).powf(epoch as f64 / 182.0)).max(0.015);
    let foundation = total * FOUNDATION;
    json!({ "epoch": epoch, "foundation": foundation, "total": total, "validator": total - foundation })
}

fn prioritization_fees(view: &View<'_>) -> Value {
    let blocks = view.chain.blocks_back_from(view.tip.slot).take(FEE_BLOCKS);
    let mut fees: Vec<Value> =
        blocks.map(|block| json!({ "prioritizationFee": 0, "slot": block.slot })).collect();
    fees.reverse();
    fees.into()
}

/// Returns the stake that has voted on the block of `slot`, by how deep it is in the votes. All validators vote on each
/// block here. `null` for a slot that is skipped, or not among the newest that a node counts.
fn block_commitment(view: &View<'_>, slot: Slot) -> Value {
    let total: u64 = view.chain.stakes(view.tip.slot).values().sum();
    let is_counted = slot.saturating_add(COUNTED_SLOTS) >= view.tip.finalized
        && slot <= view.tip.slot
        && view.block(slot).is_some();
    let stakes = is_counted.then(|| {
        let newer = view.chain.blocks_back_from(view.tip.slot).take_while(|newer| newer.slot > slot);
        let mut stakes = [0; VOTE_DEPTHS];
        stakes[newer.count().min(VOTE_DEPTHS - 1)] = total;
        stakes
    });
    json!({ "commitment": stakes, "totalStake": total })
}

/// Returns the newest full snapshot, and the newest incremental one upon it. Before the first one there is an error.
fn highest_snapshot(view: &View<'_>) -> Result<Value, Refusal> {
    let last = |every: Slot| view.tip.finalized - view.tip.finalized % every;
    let (full, incremental) = (last(SNAPSHOT_SLOTS.0), last(SNAPSHOT_SLOTS.1));
    if full == 0 {
        return Err(Refusal::new(-32_008, "No snapshot"));
    }
    Ok(json!({ "full": full, "incremental": Some(incremental).filter(|incremental| *incremental > full) }))
}
