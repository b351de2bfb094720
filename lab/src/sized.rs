//! Addresses that say how long their account's data is, so that a load chooses what the yardstick node answers.

/// The letters that stand for decimal digits, because 0 is no letter of base58.
const DIGITS: &[u8; 10] = b"abcdefghij";
const MARK: &str = "Sz";
/// Digits of a size.
const SIZE: usize = 6;

/// The address number `number` of those whose data is `size` bytes long, which is at most 999,999: 43 letters that are
/// 32 bytes in base58. The number stands in the middle, so that all bytes behind it differ, too.
pub fn address(size: usize, number: u64) -> String {
    let digits = format!("{size:06}{number:012}");
    let letters: String = digits.bytes().map(|digit| char::from(DIGITS[usize::from(digit - b'0')])).collect();
    format!("{MARK}{letters}{}", "z".repeat(43 - MARK.len() - letters.len()))
}

/// The size that an address names; `None` for every other address.
pub fn size(address: &str) -> Option<usize> {
    let letters = address.strip_prefix(MARK)?.get(..SIZE)?;
    let digit = |letter: u8| DIGITS.iter().position(|digit| *digit == letter);
    letters.bytes().try_fold(0, |sum, letter| Some(sum * 10 + digit(letter)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_size() {
        for (size_of_data, number) in [(0, 0), (165, 7), (999_999, 999_999_999_999)] {
            let address = address(size_of_data, number);
            assert_eq!((address.len(), size(&address)), (43, Some(size_of_data)));
        }
        assert_eq!(size("SysvarC1ock11111111111111111111111111111111"), None);
    }
}
