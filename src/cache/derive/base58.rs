//! Base58 of any length, for whole transactions and the data of instructions. The crate `bs58` takes a step for each
//! byte and digit, and this encoder one for four bytes and five digits.

const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
/// The number of digits that are worked on at once.
const DIGITS: usize = 5;
/// 58 to the power of [`DIGITS`], which fits in 32 bits.
const BASE: u64 = 58_u64.pow(5);

pub(super) fn encode(bytes: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    // The lowest digits come first. The bytes are read as one number from the highest on, four at a time.
    let mut limbs: Vec<u64> = Vec::with_capacity(bytes.len() / 3 + 1);
    let (head, words) = bytes.split_at(bytes.len() % 4);
    for word in [head].into_iter().chain(words.chunks_exact(4)) {
        let mut carry = word.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        for limb in &mut limbs {
            carry += *limb << 32;
            (carry, *limb) = (carry / BASE, carry % BASE);
        }
        while carry > 0 {
            limbs.push(carry % BASE);
            carry /= BASE;
        }
    }
    let mut digits = Vec::with_capacity(limbs.len() * DIGITS + zeros);
    for mut limb in limbs {
        for _ in 0..DIGITS {
            digits.push(ALPHABET[usize::try_from(limb % 58).unwrap_or(0)]);
            limb /= 58;
        }
    }
    // The highest limb may begin with zeros.
    let used = digits.iter().rposition(|digit| *digit != ALPHABET[0]).map_or(0, |last| last + 1);
    digits.truncate(used);
    digits.extend(std::iter::repeat_n(ALPHABET[0], zeros));
    digits.iter().rev().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_written_like_bs58(
            zeros in 0..9_usize,
            high in prop::collection::vec(250..=255_u8, 0..40),
            rest in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let bytes = [vec![0; zeros], high, rest].concat();
            prop_assert_eq!(encode(&bytes), bs58::encode(&bytes).into_string());
        }
    }
}
