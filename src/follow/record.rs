//! The record of a block in the shared store: its place in the chain, and the accounts that it may write.
//!
//! ```text
//! mac(32)                                     HMAC-SHA-256 over the key in the store and all that follows
//! "sfB1" flags(1) parent-slot(8)
//! length(1) blockhash length(1) previous-blockhash
//! fingerprint(8) fingerprint(8) …             one for each account, ascending
//! ```
//!
//! Numbers are big-endian. A record is refused if it is cut short, altered, of another version, signed with
//! another secret, or written for another key. A block from a record is joined to the chain by its hashes,
//! like a block from a node.

use super::block::BlockWrites;
use super::last_writes::Fingerprint;
use crate::redis_store::mac::{MAC_BYTES, StoreMac};

/// The bytes that name the format and the version of a record.
const VERSION: &[u8; 4] = b"sfB1";
/// The maximum number of accounts in a block's record. A block of mainnet writes a few thousand.
const MAX_WRITES: usize = 1 << 15;
pub(super) const MAX_RECORD: usize = MAC_BYTES + VERSION.len() + 1 + 8 + 2 * 256 + MAX_WRITES * 8;

const BEGINS_REWARDS: u8 = 1;
const LACKS_FEE_REWARD: u8 = 2;

/// Encodes the record of a block, signed for the key `key` of the shared store. `None` if the record would be too long.
pub(super) fn encode(mac: &StoreMac, key: &str, block: &BlockWrites) -> Option<Vec<u8>> {
    if block.writes.len() > MAX_WRITES {
        return None;
    }
    let mut signed = VERSION.to_vec();
    let begins_rewards = if block.begins_rewards { BEGINS_REWARDS } else { 0 };
    let lacks_fee_reward = if block.lacks_fee_reward { LACKS_FEE_REWARD } else { 0 };
    signed.push(begins_rewards | lacks_fee_reward);
    signed.extend(block.parent_slot.to_be_bytes());
    for hash in [&block.blockhash, &block.previous_blockhash] {
        signed.push(u8::try_from(hash.len()).ok()?);
        signed.extend(hash.as_bytes());
    }
    signed.extend(block.writes.iter().flat_map(|fingerprint| fingerprint.0.to_be_bytes()));
    Some([&mac.sign(&[key.as_bytes(), &signed]), &signed[..]].concat())
}

/// Decodes the record found under the key `key` of the shared store. `None` if the record is unreadable, or
/// was not signed for this key.
pub(super) fn decode(mac: &StoreMac, key: &str, record: &[u8]) -> Option<BlockWrites> {
    if record.len() > MAX_RECORD {
        return None;
    }
    let (signature, signed) = record.split_first_chunk::<MAC_BYTES>()?;
    if mac.sign(&[key.as_bytes(), signed]) != *signature {
        return None;
    }
    let (flags, rest) = signed.strip_prefix(VERSION)?.split_first()?;
    let (parent_slot, rest) = rest.split_first_chunk()?;
    let (blockhash, rest) = split_hash(rest)?;
    let (previous_blockhash, rest) = split_hash(rest)?;
    let (fingerprints, []) = rest.as_chunks() else { return None };
    Some(BlockWrites {
        blockhash,
        previous_blockhash,
        parent_slot: u64::from_be_bytes(*parent_slot),
        begins_rewards: flags & BEGINS_REWARDS != 0,
        lacks_fee_reward: flags & LACKS_FEE_REWARD != 0,
        writes: fingerprints.iter().map(|bytes| Fingerprint(u64::from_be_bytes(*bytes))).collect(),
    })
}

/// Splits a block hash off the start of `bytes`. Returns the hash and the remaining bytes.
fn split_hash(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (hash, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((String::from_utf8(hash.to_vec()).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    const KEY: &str = "slotfront:block1:genesis:{7}:00";

    fn mac(secret: &str) -> StoreMac {
        StoreMac::new(Some(&Secret::new(secret)))
    }

    fn block(writes: u64) -> BlockWrites {
        BlockWrites {
            blockhash: "b".repeat(44),
            previous_blockhash: "a".repeat(43),
            parent_slot: 6,
            begins_rewards: false,
            lacks_fee_reward: false,
            writes: (0..writes).map(|n| Fingerprint(n << 40 | n)).collect(),
        }
    }

    fn encoded(block: &BlockWrites) -> Vec<u8> {
        encode(&mac(""), KEY, block).unwrap()
    }

    #[test]
    fn records_round_trip() {
        for block in [
            block(0),
            block(3_000),
            block(MAX_WRITES as u64),
            BlockWrites { begins_rewards: true, ..block(1) },
            BlockWrites { lacks_fee_reward: true, ..block(1) },
            BlockWrites { blockhash: String::new(), previous_blockhash: "é".repeat(127), ..block(1) },
        ] {
            assert_eq!(decode(&mac(""), KEY, &encoded(&block)), Some(block));
        }
    }

    #[test]
    fn records_are_small_and_bounded() {
        assert_eq!(encoded(&block(3_000)).len(), 24_134);
        assert_eq!(encode(&mac(""), KEY, &block(MAX_WRITES as u64 + 1)), None);
        assert_eq!(encode(&mac(""), KEY, &BlockWrites { blockhash: "x".repeat(256), ..block(1) }), None);
        let mut long = encoded(&block(MAX_WRITES as u64));
        long.resize(MAX_RECORD + 1, 0);
        assert_eq!(decode(&mac(""), KEY, &long), None);
    }

    #[test]
    fn changed_records_are_refused() {
        let record = encoded(&block(3));
        for length in 0..record.len() {
            assert_eq!(decode(&mac(""), KEY, &record[..length]), None, "{length} bytes");
        }
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 1;
            assert_eq!(decode(&mac(""), KEY, &changed), None, "byte {at}");
        }
        assert_eq!(decode(&mac(""), &KEY.replace('7', "8"), &record), None, "another slot");
        assert_eq!(decode(&mac(""), &KEY.replace("genesis", "other"), &record), None, "another cluster");
        assert_eq!(decode(&mac("secret"), KEY, &record), None, "another secret");
    }

    #[test]
    fn signed_records_of_another_form_are_refused() {
        let whole = &encoded(&block(1))[MAC_BYTES..];
        let other_version = [b"sfB2", &whole[4..]].concat();
        for signed in [&[][..], &whole[..4], &whole[..20], &whole[..whole.len() - 1], &other_version] {
            let record = [&mac("").sign(&[KEY.as_bytes(), signed]), signed].concat();
            assert_eq!(decode(&mac(""), KEY, &record), None, "{} bytes", signed.len());
        }
    }
}
