//! Examples of accounts, slots and messages of each kind that a simulated cluster has.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use slotfront_rpc::methods::{Pubkey, Slot};

use super::chain::Chain;
use super::chain::cluster_addresses::ValidatorRole;
use super::chain::instruction::TypedInstruction;
use super::chain::message::Message;

/// Addresses, slots and messages that callers can use as params. The addresses stay valid. Slots and messages
/// become outdated.
#[derive(Debug, Clone)]
pub struct Examples {
    /// The wallets, which hold lamports and pay for transactions.
    pub wallets: Vec<Pubkey>,
    /// The token accounts of one mint with 6 decimals. Transactions write these accounts often.
    pub token_accounts: Vec<Pubkey>,
    /// The mints, one of each kind: 6, 8, 0 and 20 decimals, Token-2022 with 2 decimals, wrapped SOL with 9 decimals.
    pub mints: Vec<Pubkey>,
    /// A token account of each mint, in the order of `mints`.
    pub token_account_of_mint: Vec<Pubkey>,
    pub vote_accounts: Vec<Pubkey>,
    pub delinquent_vote_account: Pubkey,
    /// The vote account of a validator without stake.
    pub unstaked_vote_account: Pubkey,
    pub stake_accounts: Vec<Pubkey>,
    pub lookup_tables: Vec<Pubkey>,
    pub nonce_account: Pubkey,
    pub frozen_token_account: Pubkey,
    pub uninitialized_token_account: Pubkey,
    /// The accounts that are opened and closed repeatedly.
    pub passing_accounts: Vec<Pubkey>,
    /// The newest finalized slot whose block has a version 0 transaction. If there is none, the newest finalized slot.
    pub block_with_v0: Slot,
    /// The newest finalized slot whose block has at least one transaction, and only legacy transactions.
    pub legacy_block: Option<Slot>,
    /// The newest finalized slot without a block.
    pub skipped_slot: Option<Slot>,
    /// The message of a transfer with a finalized blockhash, in base64.
    pub fee_message: String,
    /// A version 0 message with accounts from a lookup table, in base64.
    pub fee_message_v0: String,
    /// A message with the newest blockhash, which nodes know only at processed, in base64.
    pub fee_message_processed: String,
}

pub(super) fn examples(chain: &Chain) -> Examples {
    let addresses = &chain.addresses;
    let tip = chain.tip_at(chain.slot());
    let mut finalized = chain.blocks_back_from(tip.finalized);
    let has_v0 = |block: &super::chain::block::Block| block.transactions.iter().any(|t| t.message.v0);
    let legacy = chain.blocks_back_from(tip.finalized).find(|b| !b.transactions.is_empty() && !has_v0(b));
    let oldest = chain.first_block().slot;
    let of = |role| addresses.validators.iter().find(move |validator| validator.role == role).map(|v| v.vote);
    let message = |hash, table: Option<usize>| {
        let from = addresses.wallets[0];
        let listed =
            addresses.tables[0].1.iter().find(|key| **key != from && addresses.wallets.contains(key));
        let to = listed.copied().unwrap_or(addresses.wallets[1]);
        let transfer = TypedInstruction::Transfer { from, to, lamports: 1, claims: None };
        let table = table.map(|n| (&addresses.tables[n].0, &addresses.tables[n].1[..]));
        BASE64.encode(Message::compile(from, &[transfer], table, hash).0.encode())
    };
    let final_hash = chain.tip_at(tip.finalized).hash;
    Examples {
        wallets: addresses.wallets.clone(),
        token_accounts: addresses.coins[0].holders.iter().map(|(token, _)| *token).collect(),
        mints: addresses.coins.iter().map(|coin| coin.mint).collect(),
        token_account_of_mint: addresses.coins.iter().map(|coin| coin.holders[0].0).collect(),
        vote_accounts: addresses.voting().map(|validator| validator.vote).collect(),
        delinquent_vote_account: of(ValidatorRole::Delinquent).unwrap_or(addresses.authority),
        unstaked_vote_account: of(ValidatorRole::Unstaked).unwrap_or(addresses.authority),
        stake_accounts: addresses.voting().map(|validator| validator.stake).collect(),
        lookup_tables: addresses.tables.iter().map(|(table, _)| *table).collect(),
        nonce_account: addresses.nonce,
        frozen_token_account: addresses.frozen_token.0,
        uninitialized_token_account: addresses.uninitialized_token,
        passing_accounts: addresses.pockets.clone(),
        block_with_v0: finalized.find(|block| has_v0(block)).map_or(tip.finalized, |block| block.slot),
        legacy_block: legacy.map(|block| block.slot),
        skipped_slot: (oldest..tip.finalized).rev().find(|slot| chain.block(*slot).is_none()),
        fee_message: message(final_hash, None),
        fee_message_v0: message(final_hash, Some(0)),
        fee_message_processed: message(tip.hash, None),
    }
}
