//! Random accounts and blocks: made from parts that nodes treat specially, and from mutations of recorded ones.

use serde_json::json;
use solana_account::Account;
use solana_pubkey::Pubkey;
use solana_transaction_status::{
    ConfirmedBlock, InnerInstruction, InnerInstructions, Reward, RewardType, TransactionStatusMeta,
    TransactionTokenBalance, TransactionWithStatusMeta, VersionedTransactionWithStatusMeta,
};

use crate::accounts::TOKEN_PROGRAMS;
use crate::draw::Draw;

/// Programs and sysvars. Nodes parse the accounts and instructions of most, and show all of them as read-only.
const KNOWN: [&str; 16] = [
    "11111111111111111111111111111111",
    TOKEN_PROGRAMS[0],
    TOKEN_PROGRAMS[1],
    "Vote111111111111111111111111111111111111111",
    "Stake11111111111111111111111111111111111111",
    "Config1111111111111111111111111111111111111",
    "AddressLookupTab1e1111111111111111111111111",
    "BPFLoaderUpgradeab1e11111111111111111111111",
    "ComputeBudget111111111111111111111111111111",
    "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr",
    "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL",
    "Sysvar1111111111111111111111111111111111111",
    "SysvarC1ock11111111111111111111111111111111",
    "SysvarRent111111111111111111111111111111111",
    "Ed25519SigVerify111111111111111111111111111",
    "Secp256r1SigVerify1111111111111111111111111",
];

const ERRORS: [&str; 9] = [
    r#""AccountInUse""#,
    r#""InsufficientFundsForFee""#,
    r#"{"InstructionError":[0,"InvalidArgument"]}"#,
    r#"{"InstructionError":[255,{"Custom":4294967295}]}"#,
    r#"{"InstructionError":[1,"BorshIoError"]}"#,
    r#"{"DuplicateInstruction":3}"#,
    r#"{"InsufficientFundsForRent":{"account_index":2}}"#,
    r#"{"ProgramExecutionTemporarilyRestricted":{"account_index":0}}"#,
    r#""CommitCancelled""#,
];

pub fn key(draw: &mut Draw) -> Pubkey {
    if draw.once_in(3) { known(draw) } else { draw.array::<32>().into() }
}

fn known(draw: &mut Draw) -> Pubkey {
    draw.pick(&KNOWN).parse().expect("an address")
}

/// Returns an account of any length and owner, or `recorded` with changed bytes.
pub fn account(draw: &mut Draw, recorded: &[Account]) -> Account {
    let mut account = if draw.once_in(2) && !recorded.is_empty() {
        draw.pick(recorded).clone()
    } else {
        let length = *draw.pick(&[0, 1, 31, 32, 80, 82, 127, 128, 129, 165, 200, 1000]);
        Account {
            lamports: 1,
            data: draw.bytes(length),
            owner: key(draw),
            executable: false,
            rent_epoch: u64::MAX,
        }
    };
    for _ in 0..draw.below(3) {
        draw.mutate(&mut account.data);
    }
    match draw.below(6) {
        0 => account.owner = known(draw),
        1 => account.lamports = draw.number() | 1,
        2 => account.rent_epoch = draw.number(),
        3 => account.executable = true,
        _ => {}
    }
    account
}

pub fn block(draw: &mut Draw, slot: u64) -> ConfirmedBlock {
    let hash = |draw: &mut Draw| Pubkey::from(draw.array::<32>()).to_string();
    let transactions = draw.below(5);
    let legacy_only = draw.once_in(3);
    let rewards = draw.below(4);
    ConfirmedBlock {
        previous_blockhash: hash(draw),
        blockhash: hash(draw),
        parent_slot: slot - 1,
        transactions: (0..transactions).map(|_| transaction(draw, legacy_only)).collect(),
        rewards: (0..rewards).map(|_| reward(draw)).collect(),
        num_partitions: draw.once_in(3).then(|| draw.number()),
        block_time: (!draw.once_in(4)).then(|| draw.number() as i64 >> 20),
        block_height: (!draw.once_in(8)).then(|| slot - 1),
    }
}

fn reward(draw: &mut Draw) -> Reward {
    let kinds = [
        None,
        Some(RewardType::Fee),
        Some(RewardType::Rent),
        Some(RewardType::Staking),
        Some(RewardType::Voting),
    ];
    Reward {
        pubkey: key(draw).to_string(),
        lamports: draw.number() as i64,
        post_balance: draw.number(),
        reward_type: *draw.pick(&kinds),
        commission: draw.once_in(2).then(|| draw.byte()),
        commission_bps: draw.once_in(3).then(|| draw.number() as u16),
    }
}

/// Writes a short length as compact-u16.
fn counted(out: &mut Vec<u8>, bytes: &[u8]) {
    length(out, bytes.len());
    out.extend(bytes);
}

fn length(out: &mut Vec<u8>, length: usize) {
    if length < 0x80 {
        out.push(length as u8)
    } else {
        out.extend([length as u8 | 0x80, (length >> 7) as u8])
    }
}

/// Returns a transaction whose indexes are all valid, as in every block. Its signatures sign nothing.
fn transaction(draw: &mut Draw, legacy: bool) -> TransactionWithStatusMeta {
    let v0 = !legacy && draw.once_in(2);
    let signers = 1 + draw.below(3);
    let keys = signers + 1 + draw.below(8);
    let mut bytes = vec![signers as u8];
    bytes.extend(draw.bytes(64 * signers));
    if v0 {
        bytes.push(0x80);
    }
    let readonly = [draw.below(signers), draw.below(keys - signers + 1)];
    bytes.extend([signers, readonly[0], readonly[1], keys].map(|count| count as u8));
    for _ in 0..keys {
        bytes.extend(key(draw).to_bytes());
    }
    bytes.extend(draw.bytes(32));
    let lookups: Vec<(usize, usize)> = if v0 {
        (0..draw.below(3)).map(|_| (1 + draw.below(3), draw.below(3))).collect()
    } else {
        Vec::new()
    };
    let loaded = [lookups.iter().map(|lookup| lookup.0).sum(), lookups.iter().map(|lookup| lookup.1).sum()];
    let accounts = keys + loaded[0] + loaded[1];
    let instructions = draw.below(4);
    bytes.push(instructions as u8);
    let instruction = |draw: &mut Draw| {
        let program = 1 + draw.below(keys - 1);
        let indexes: Vec<u8> = (0..draw.below(8)).map(|_| draw.below(accounts) as u8).collect();
        // Short data with a small first byte is often an instruction that a node can parse.
        let length = *draw.pick(&[0, 1, 4, 8, 9, 10, 12, 12, 150]);
        let mut data = draw.bytes(length);
        data.iter_mut().take(1).for_each(|byte| *byte %= 32);
        data.iter_mut().skip(1).take(3).for_each(|byte| *byte = 0);
        (program as u8, indexes, data)
    };
    for _ in 0..instructions {
        let (program, indexes, data) = instruction(draw);
        bytes.push(program);
        counted(&mut bytes, &indexes);
        counted(&mut bytes, &data);
    }
    if v0 {
        bytes.push(lookups.len() as u8);
        for (writable, readonly) in &lookups {
            bytes.extend(draw.bytes(32));
            for count in [*writable, *readonly] {
                let indexes = draw.bytes(count);
                counted(&mut bytes, &indexes);
            }
        }
    }
    let inner = |draw: &mut Draw| {
        let (program, accounts, data) = instruction(draw);
        let stack_height = draw.once_in(2).then_some(2);
        let instruction = solana_message::compiled_instruction::CompiledInstruction {
            program_id_index: program,
            accounts,
            data,
        };
        InnerInstruction { instruction, stack_height }
    };
    let inner = (!draw.once_in(4)).then(|| {
        let lists = (0..draw.below(3)).map(|index| InnerInstructions {
            index: index as u8,
            instructions: (0..draw.below(3)).map(|_| inner(draw)).collect(),
        });
        lists.collect()
    });
    let texts = ["Program log: \"\u{e9}\" \\ \n", "", "Log truncated", "Program log: \u{1f600}\u{7}"];
    let mut meta = TransactionStatusMeta {
        status: if draw.once_in(3) {
            Err(serde_json::from_str(ERRORS[draw.below(ERRORS.len())]).expect("an error"))
        } else {
            Ok(())
        },
        fee: draw.number() >> 40,
        pre_balances: (0..accounts).map(|_| draw.number()).collect(),
        post_balances: (0..accounts).map(|_| draw.number() >> 20).collect(),
        inner_instructions: inner,
        log_messages: (!draw.once_in(4))
            .then(|| (0..draw.below(4)).map(|_| draw.pick(&texts).to_string()).collect()),
        pre_token_balances: token_balances(draw),
        post_token_balances: token_balances(draw),
        rewards: (!draw.once_in(4)).then(|| (0..draw.below(2)).map(|_| reward(draw)).collect()),
        compute_units_consumed: draw.once_in(2).then(|| draw.number() >> 44),
        cost_units: draw.once_in(2).then(|| draw.number() >> 44),
        ..TransactionStatusMeta::default()
    };
    meta.loaded_addresses.writable = (0..loaded[0]).map(|_| key(draw)).collect();
    meta.loaded_addresses.readonly = (0..loaded[1]).map(|_| key(draw)).collect();
    if draw.once_in(3) {
        let returned = meta.return_data.insert(Default::default());
        returned.program_id = key(draw);
        let length = draw.below(40);
        returned.data = draw.bytes(length);
    }
    let transaction = bincode::deserialize(&bytes).expect("a transaction");
    TransactionWithStatusMeta::Complete(VersionedTransactionWithStatusMeta { transaction, meta })
}

fn token_balances(draw: &mut Draw) -> Option<Vec<TransactionTokenBalance>> {
    if draw.once_in(5) {
        return None;
    }
    let balance = |draw: &mut Draw| {
        let decimals = draw.below(12) as u8;
        let amount = draw.number() >> draw.below(64);
        let ui = amount as f64 / 10f64.powi(i32::from(decimals));
        // Blocks of old nodes lack owner and program.
        let text = |draw: &mut Draw| if draw.once_in(4) { String::new() } else { key(draw).to_string() };
        TransactionTokenBalance {
            account_index: draw.byte(),
            mint: key(draw).to_string(),
            ui_token_amount: serde_json::from_value(json!({
                "amount": amount.to_string(),
                "decimals": decimals,
                "uiAmount": (!draw.once_in(5)).then_some(ui),
                "uiAmountString": ui.to_string(),
            }))
            .expect("an amount"),
            owner: text(draw),
            program_id: text(draw),
        }
    };
    Some((0..draw.below(3)).map(|_| balance(draw)).collect())
}
