//! Addresses that encode the length of their account's data. A caller thereby chooses how long the answers of the
//! example `yardsticks` are.

/// The letters that stand for the digits 0 to 9, because base58 has no digit 0.
const DIGITS: &[u8; 10] = b"abcdefghij";
const MARK: &str = "Sz";
/// The number of letters that encode the length of the data.
const SIZE: usize = 6;

/// Returns the address of account number `number`, which has `size` bytes of data. `size` is at most 999,999.
///
/// The address has 43 letters, which are 32 bytes in base58. The number is in the middle of the letters, so a
/// different number also changes the later bytes.
pub fn address(size: usize, number: u64) -> String {
    let digits = format!("{size:06}{number:012}");
    let letters: String = digits.bytes().map(|digit| char::from(DIGITS[usize::from(digit - b'0')])).collect();
    format!("{MARK}{letters}{}", "z".repeat(43 - MARK.len() - letters.len()))
}

/// Returns the length of data that an address encodes. `None` if the address encodes no length.
pub fn size(address: &str) -> Option<usize> {
    let letters = address.strip_prefix(MARK)?.get(..SIZE)?;
    let digit = |letter: u8| DIGITS.iter().position(|digit| *digit == letter);
    letters.bytes().try_fold(0, |sum, letter| Some(sum * 10 + digit(letter)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_encodes_its_size() {
        for (size_of_data, number) in [(0, 0), (165, 7), (999_999, 999_999_999_999)] {
            let address = address(size_of_data, number);
            assert_eq!((address.len(), size(&address)), (43, Some(size_of_data)));
        }
        assert_eq!(size("SysvarC1ock11111111111111111111111111111111"), None);
    }
}
