//! Transactions as nodes write them, for blocks of any length.

use std::fmt::Write as _;
use std::sync::OnceLock;

use crate::dice::Dice;

/// The number of different transactions. Longer blocks repeat them.
const DIFFERENT: u64 = 1024;
const BASE58: &[u8] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// Returns the elements of a block's `transactions` as JSON text. The text ends after the transaction with which
/// it reaches `length` bytes.
pub fn transactions(length: usize) -> String {
    static ALL: OnceLock<Vec<String>> = OnceLock::new();
    let all =
        ALL.get_or_init(|| (0..DIFFERENT).map(|number| transaction(&mut Dice::new(7, number))).collect());
    let mut text = String::with_capacity(length + 8192);
    for transaction in all.iter().cycle() {
        text.push_str(transaction);
        if text.len() >= length {
            return text;
        }
        text.push(',');
    }
    text
}

/// Returns a transaction with one to four instructions.
fn transaction(dice: &mut Dice) -> String {
    let instructions = dice.range(1, 4);
    let keys: Vec<String> = (0..instructions + dice.range(1, 5)).map(|_| base58(dice, 44)).collect();
    let amounts = |dice: &mut Dice| {
        let all = keys.iter().map(|_| (dice.bits() >> dice.range(8, 63)).to_string());
        all.collect::<Vec<_>>().join(",")
    };
    let (mut logs, mut calls) = (Vec::new(), Vec::new());
    for number in 0..instructions {
        let (program, units) = (&keys[usize::try_from(number).unwrap_or(0)], dice.below(200_000));
        logs.push(format!(r#""Program {program} invoke [1]""#));
        if dice.below(2) == 0 {
            logs.push(format!(r#""Program log: Memo (len {}): \"note {units}\"""#, dice.below(99)));
        }
        logs.push(format!(r#""Program {program} consumed {units} of 200000 compute units""#));
        logs.push(format!(r#""Program {program} success""#));
        let length = dice.range(4, 90);
        calls.push(format!(
            r#"{{"accounts":[{},{}],"data":"{}","programIdIndex":{number},"stackHeight":1}}"#,
            dice.below(9),
            dice.below(30),
            base58(dice, length)
        ));
    }
    let (before, after) = (amounts(dice), amounts(dice));
    let mut text = format!(
        r#"{{"meta":{{"computeUnitsConsumed":{},"err":null,"fee":5000,"innerInstructions":[],"loadedAddresses":{{"readonly":[],"writable":[]}},"logMessages":[{}],"postBalances":[{after}],"postTokenBalances":[],"preBalances":[{before}],"preTokenBalances":[],"rewards":[],"status":{{"Ok":null}}}},"#,
        dice.below(1_400_000),
        logs.join(",")
    );
    let _ = write!(
        text,
        r#""transaction":{{"message":{{"accountKeys":["{}"],"header":{{"numReadonlySignedAccounts":0,"numReadonlyUnsignedAccounts":{instructions},"numRequiredSignatures":1}},"instructions":[{}],"recentBlockhash":"{}"}},"signatures":["{}"]}},"version":"legacy"}}"#,
        keys.join(r#"",""#),
        calls.join(","),
        base58(dice, 44),
        base58(dice, 88)
    );
    text
}

/// Returns `letters` letters of base58.
fn base58(dice: &mut Dice, letters: u64) -> String {
    (0..letters).map(|_| char::from(BASE58[usize::try_from(dice.below(58)).unwrap_or(0)])).collect()
}
