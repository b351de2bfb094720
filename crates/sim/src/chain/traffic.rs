//! The transactions of users in a slot.

use slotfront_rpc::methods::Pubkey;

use super::address;
use super::bank::Bank;
use super::cluster_addresses::{ClusterAddresses, Coin};
use super::instruction::TypedInstruction;
use super::token::TokenAccount;
use super::transaction::Draft;
use crate::draw::Draw;

/// The minimum lamports for a new account that is closed again later, slightly above the rent-exempt minimum.
const POCKET_LAMPORTS: u64 = 900_000;
/// An amount that exceeds every balance.
const TOO_MUCH: u64 = 1_000_000_000_000_000_000;

/// Returns a random transaction of a user, for the state that `bank` has.
pub(crate) fn draft(addresses: &ClusterAddresses, bank: &Bank<'_>, draw: &mut Draw) -> Draft {
    let payer = *draw.pick(&addresses.wallets);
    let plain = |instructions| Draft { payer, instructions, table: None };
    match draw.below(100) {
        0..=33 => plain(vec![transfer(addresses, bank, payer, draw)]),
        34..=62 => tokens(addresses, bank, draw),
        63..=72 => through_table(addresses, bank, payer, draw),
        73..=81 => plain(vec![memo(payer, draw)]),
        82..=88 => pocket(addresses, bank, payer, draw),
        89..=94 => {
            let to = *draw.pick(&addresses.wallets);
            plain(vec![TypedInstruction::Transfer { from: payer, to, lamports: TOO_MUCH, claims: None }])
        }
        // The system program ignores the third account, which is a sysvar that no transaction may write.
        _ => {
            let (to, claims) = (*draw.pick(&addresses.wallets), Some(address::CLOCK));
            plain(vec![TypedInstruction::Transfer {
                from: payer,
                to,
                lamports: draw.range(1, 9_000),
                claims,
            }])
        }
    }
}

fn transfer(
    addresses: &ClusterAddresses,
    bank: &Bank<'_>,
    from: Pubkey,
    draw: &mut Draw,
) -> TypedInstruction {
    let to = *draw.pick(&addresses.wallets);
    TypedInstruction::Transfer { from, to, lamports: draw.range(1, bank.lamports(&from) / 50), claims: None }
}

fn memo(signer: Pubkey, draw: &mut Draw) -> TypedInstruction {
    let subject = draw.pick(&["thanks", "lunch", "rent", "order", "for you", "gm", "\u{2600} holiday"]);
    TypedInstruction::Memo { signers: vec![signer], text: format!("{subject} {}", draw.below(10_000)) }
}

/// Returns a transfer of tokens between two holders. The sender pays the fee. Most transfers are checked, some have a
/// priority fee, and some exceed the balance.
fn tokens(addresses: &ClusterAddresses, bank: &Bank<'_>, draw: &mut Draw) -> Draft {
    let coin: &Coin = draw.pick(&addresses.coins);
    let (source, payer) = *draw.pick(&coin.holders);
    let (destination, _) = *draw.pick(&coin.holders);
    let held = bank.account(&source).and_then(|account| TokenAccount::decode(&account.data));
    let held = held.map_or(0, |account| account.amount);
    let native = coin.mint == address::NATIVE_MINT;
    let amount = if draw.chance(60) { held + 1 } else { draw.below(held / 40 + 1) };
    let token = TypedInstruction::TokenTransfer {
        program: coin.program,
        source,
        destination,
        authority: payer,
        amount,
        checked: (native || !draw.chance(200)).then_some((coin.mint, coin.decimals)),
    };
    let mut instructions = vec![token];
    if draw.chance(300) {
        let price = draw.range(1, 40) * 10_000;
        instructions.splice(0..0, [TypedInstruction::UnitLimit(20_000), TypedInstruction::UnitPrice(price)]);
    }
    Draft { payer, instructions, table: None }
}

/// Returns transfers of lamports to several wallets, whose addresses come from a lookup table.
fn through_table(addresses: &ClusterAddresses, bank: &Bank<'_>, payer: Pubkey, draw: &mut Draw) -> Draft {
    let table = usize::from(draw.chance(500));
    let listed: Vec<Pubkey> = addresses.tables[table]
        .1
        .iter()
        .filter(|key| addresses.wallets.contains(key) && **key != payer)
        .copied()
        .collect();
    let lamports = draw.range(1, bank.lamports(&payer) / 500);
    let transfers = draw.range(2, 5);
    let mut instructions: Vec<TypedInstruction> = (0..transfers)
        .map(|_| TypedInstruction::Transfer { from: payer, to: *draw.pick(&listed), lamports, claims: None })
        .collect();
    instructions.push(memo(payer, draw));
    Draft { payer, instructions, table: Some(table) }
}

/// Returns a transaction that opens an account, or closes an open one by emptying it.
fn pocket(addresses: &ClusterAddresses, bank: &Bank<'_>, payer: Pubkey, draw: &mut Draw) -> Draft {
    let pocket = *draw.pick(&addresses.pockets);
    let (from, to, lamports) = match bank.lamports(&pocket) {
        0 => (payer, pocket, POCKET_LAMPORTS + draw.below(1_000)),
        all => (pocket, payer, all),
    };
    let instructions = vec![TypedInstruction::Transfer { from, to, lamports, claims: None }];
    Draft { payer, instructions, table: None }
}
