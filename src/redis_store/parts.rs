//! The parts of a store, which fail independently. In a Redis cluster, a part is a range of hash slots.

/// The number of hash slots of a Redis cluster.
const SLOTS: usize = 16_384;

/// Returns the number of the part that holds `key`, in a store of `parts` parts. If `key` has text in braces, only
/// that text is hashed, as in a Redis cluster.
pub(super) fn part_of(key: &str, parts: usize) -> usize {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    let slot = usize::from(crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes())) % SLOTS;
    slot * parts / SLOTS
}

/// Returns a hash tag such as `{7}`. A key with this tag lies in part number `part`.
pub(super) fn tag_in(part: usize, parts: usize) -> String {
    let mut tags = (0_u32..).map(|n| format!("{{{n}}}")).filter(|tag| part_of(tag, parts) == part);
    // Each part has some number that hashes to it, so the search always ends.
    tags.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_one_tag_share_a_part() {
        assert_eq!(part_of("a:{x}:1", 64), part_of("b:{x}:2", 64));
        // The hash slot that a Redis cluster returns for `foo`.
        assert_eq!(part_of("foo", SLOTS), 12_182);
        assert!((0..64).all(|part| part_of(&format!("ns:trial:{}", tag_in(part, 64)), 64) == part));
        assert!((0..9).all(|key| part_of(&key.to_string(), 1) == 0));
    }
}
