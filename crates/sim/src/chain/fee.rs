//! The fee of a transaction: 5,000 lamports per signature, and the priority fee of its compute-budget instructions.

use slotfront_rpc::methods::Pubkey;

use super::address;
use super::layout::FieldReader;

pub(crate) const LAMPORTS_PER_SIGNATURE: u64 = 5_000;
/// The maximum compute units of a transaction.
const MAX_UNITS: u64 = 1_400_000;

/// The fee of a transaction in lamports. Half of the base fee is burned. The leader gets the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fee {
    pub(crate) base: u64,
    pub(crate) priority: u64,
}

impl Fee {
    /// Returns the sum of the base fee and the priority fee.
    pub(crate) fn total(self) -> u64 {
        self.base.saturating_add(self.priority)
    }
}

/// Returns the fee for `signatures` and `instructions` (program and data of each). If one compute-budget
/// instruction is invalid, all of them are ignored. A signature that a precompiled program checks costs as much as
/// a signature of the transaction.
pub(crate) fn fee<'a>(
    signatures: u64,
    instructions: impl Iterator<Item = (Pubkey, &'a [u8])> + Clone,
) -> Fee {
    let precompiled: u64 = instructions
        .clone()
        .filter(|(program, _)| [address::ED25519, address::SECP256K1, address::SECP256R1].contains(program))
        .map(|(_, data)| data.first().copied().map_or(0, u64::from))
        .sum();
    let price = price(instructions.clone());
    let units = unit_limit(instructions);
    let priority = (u128::from(price) * u128::from(units)).div_ceil(1_000_000);
    Fee {
        base: LAMPORTS_PER_SIGNATURE * (signatures + precompiled),
        priority: u64::try_from(priority).unwrap_or(u64::MAX),
    }
}

/// Returns the compute unit limit of a transaction. Without a requested limit, it is 3,000 per call of a builtin and
/// 200,000 per call of another program.
pub(crate) fn unit_limit<'a>(instructions: impl Iterator<Item = (Pubkey, &'a [u8])> + Clone) -> u64 {
    let asked = budget(instructions.clone()).and_then(|budget| budget.limit);
    asked
        .map_or_else(
            || {
                let is_builtin = |program| address::BUILTINS.iter().any(|(builtin, _)| *builtin == program);
                instructions
                    .map(|(program, _)| if is_builtin(program) { 3_000 } else { 200_000 })
                    .sum::<u64>()
            },
            u64::from,
        )
        .min(MAX_UNITS)
}

fn price<'a>(instructions: impl Iterator<Item = (Pubkey, &'a [u8])>) -> u64 {
    budget(instructions).and_then(|budget| budget.price).unwrap_or(0)
}

#[derive(Default)]
struct ComputeBudget {
    limit: Option<u32>,
    price: Option<u64>,
}

/// Reads the compute-budget instructions. Returns `None` if one of them is malformed, or if the limit or the price
/// is set twice.
fn budget<'a>(instructions: impl Iterator<Item = (Pubkey, &'a [u8])>) -> Option<ComputeBudget> {
    let mut budget = ComputeBudget::default();
    for (_, data) in instructions.filter(|(program, _)| *program == address::COMPUTE_BUDGET) {
        let mut fields = FieldReader(data);
        let repeated = match fields.u8()? {
            1 | 4 => fields.u32().map(|_| false)?,
            2 => budget.limit.replace(fields.u32()?).is_some(),
            3 => budget.price.replace(fields.u64()?).is_some(),
            _ => return None,
        };
        if repeated {
            return None;
        }
    }
    Some(budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(signatures: u64, instructions: &[(Pubkey, &[u8])], base: u64, priority: u64) {
        assert_eq!(fee(signatures, instructions.iter().copied()), Fee { base, priority });
    }

    #[test]
    fn fees() {
        let limit: &[u8] = &[2, 0x20, 0x4e, 0, 0]; // 20,000 units
        let price: &[u8] = &[3, 0x90, 0xd0, 3, 0, 0, 0, 0, 0]; // a quarter of a lamport
        let budget = |data| (address::COMPUTE_BUDGET, data);
        let (memo, system) = ((address::MEMO, &b"hi"[..]), (address::SYSTEM, &[2u8][..]));
        check(1, &[system], 5_000, 0);
        check(2, &[system, memo], 10_000, 0);
        check(1, &[budget(limit), budget(price), memo], 5_000, 5_000);
        check(1, &[budget(price), system], 5_000, 1_500); // 6,000 units by default
        check(1, &[budget(price), memo], 5_000, 50_750);
        check(1, &[budget(price), budget(price), memo], 5_000, 0);
        check(1, &[budget(&[9][..]), budget(price), memo], 5_000, 0);
        check(1, &[(address::ED25519, &[2, 0][..])], 15_000, 0);
        let most: &[u8] = &[2, 0xc0, 0x5c, 0x15, 0]; // 1,400,000 units
        let dearest =
            fee(1, [budget(most), budget(&[3, 255, 255, 255, 255, 255, 255, 255, 255])].into_iter());
        assert_eq!(dearest.total(), u64::MAX, "no account can pay it, and it does not overflow");
    }
}
