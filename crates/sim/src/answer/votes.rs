//! getVoteAccounts: current and delinquent validators.

use serde_json::{Value, json};
use slotfront_rpc::methods::{Pubkey, VotesQuery};

use super::View;
use crate::chain::vote::VoteState;
use crate::draw::Draw;

/// The maximum number of epochs for which an answer lists the credits of a validator.
const CREDITS: usize = 5;

/// Answers getVoteAccounts.
pub(super) fn answer(view: &View<'_>, query: &VotesQuery) -> Value {
    let slot = view.slot(query.commitment);
    let stakes = view.chain.stakes(slot);
    let (mut current, mut delinquent) = (Vec::new(), Vec::new());
    for vote in in_order(view) {
        if query.vote_pubkey.is_some_and(|wanted| wanted != vote) {
            continue;
        }
        let Some(state) =
            view.chain.account(&vote, slot).and_then(|account| VoteState::decode(&account.data))
        else {
            continue;
        };
        let activated = stakes.get(&vote).copied().unwrap_or(0);
        let last_vote = state.tower.votes.back().copied().unwrap_or(0);
        let answer = entry(vote, &state, activated, last_vote);
        if last_vote > slot.saturating_sub(query.delinquent_slot_distance) {
            current.push(answer);
        } else if activated > 0 || query.keep_unstaked_delinquents {
            delinquent.push(answer);
        }
    }
    json!({ "current": current, "delinquent": delinquent })
}

/// Returns every vote account. As on real nodes, the order is that of a hash map, and so differs between nodes.
fn in_order(view: &View<'_>) -> Vec<Pubkey> {
    let mut keys: Vec<Pubkey> =
        view.chain.addresses.validators.iter().map(|validator| validator.vote).collect();
    let salt = view.chain.genesis.seed ^ view.node.index() as u64;
    keys.sort_by_cached_key(|key| Draw::new(salt, &key.to_string(), 0).next());
    keys
}

fn entry(vote: Pubkey, state: &VoteState, activated: u64, last_vote: u64) -> Value {
    let listed = state.credits.len().saturating_sub(CREDITS);
    json!({
        "activatedStake": activated,
        "commission": state.commission_bps / 100,
        "epochCredits": state.credits[listed..],
        "epochVoteAccount": activated > 0,
        "lastVote": last_vote,
        "nodePubkey": state.node.to_string(),
        "rootSlot": state.tower.root.unwrap_or(0),
        "votePubkey": vote.to_string(),
    })
}
