use proptest::prelude::*;

use super::*;
use crate::methods::{AccountEncoding, AccountForm, Pubkey};

const MAX: usize = 1 << 20;

fn mac(secret: &str) -> ValueMac {
    ValueMac::new(Some(&Secret::new(secret)))
}

fn key(byte: u8) -> Key {
    let form = AccountForm { encoding: AccountEncoding::Base64, slice: None };
    Key::Account(Pubkey([byte; 32]), form, Commitment::Finalized)
}

fn name(mac: &ValueMac, key: &Key) -> SecondLevelKey {
    mac.name("ns", "genesis", key).unwrap()
}

fn value(body: NodeReply) -> SharedValue {
    SharedValue {
        slot: 345_600_000,
        generation: 7,
        sent_at: 1_795_000_000_000_000,
        wall_us: 1_795_000_000_000_001,
        body,
    }
}

fn result(bytes: usize) -> NodeReply {
    NodeReply::Result(Bytes::from(vec![b'x'; bytes]))
}

#[test]
fn values_round_trip() {
    let mac = mac("");
    let name = name(&mac, &key(1));
    let error = NodeReply::Error { code: -32007, body: Bytes::from_static(b"{}") };
    for body in [result(1), result(2000), NodeReply::Result(Bytes::new()), error] {
        let value = value(body);
        let bytes = Bytes::from(mac.encode(&name, &value));
        assert_eq!(mac.decode(&name, &bytes, MAX), Some(value));
    }
    let long = mac.encode(&name, &value(result(100_000)));
    assert!(long.len() < 1000, "{} bytes", long.len());
    assert_eq!(mac.decode(&name, &Bytes::from(long), 99_999), None, "longer than may be stored");
}

#[test]
fn newer_answers_rank_higher_as_text() {
    let mac = mac("");
    let name = name(&mac, &key(1));
    let rank = |slot, sent_at| {
        mac.encode(&name, &SharedValue { slot, sent_at, ..value(result(1)) })[..RANK].to_vec()
    };
    assert!(rank(9, 5) < rank(10, 4) && rank(10, 4) < rank(10, 5) && rank(10, 5) < rank(1_000_000_000, 0));
}

#[test]
fn values_of_other_keys_are_refused() {
    let (ours, theirs) = (mac("a"), mac("b"));
    let bytes = Bytes::from(ours.encode(&name(&ours, &key(1)), &value(result(10))));
    assert_eq!(ours.decode(&name(&ours, &key(2)), &bytes, MAX), None, "another question");
    let alternate_key = ours.name("ns", "another genesis", &key(1)).unwrap();
    assert_eq!(ours.decode(&alternate_key, &bytes, MAX), None, "another cluster");
    let here = SecondLevelKey { key: name(&ours, &key(1)).key, question: name(&theirs, &key(1)).question };
    assert_eq!(theirs.decode(&here, &bytes, MAX), None, "another secret");
    assert_ne!(name(&ours, &key(1)).key, name(&theirs, &key(1)).key, "which has names of its own");
}

#[test]
fn keys_of_one_plan_share_a_hash_tag() {
    let mac = mac("");
    let tag = |name: &SecondLevelKey| name.key.split(['{', '}']).nth(1).unwrap().to_owned();
    let block = |details| {
        let shape = crate::cache::derive::block::BlockShape {
            details,
            encoding: crate::methods::BlockEncoding::Json,
            rewards: true,
            max_version: None,
        };
        name(&mac, &Key::Block(7, shape, Finality::Final))
    };
    let (full, none) = (block(crate::methods::BlockDetails::Full), block(crate::methods::BlockDetails::None));
    assert!(full.key != none.key && tag(&full) == tag(&none));
    for key in [Key::NoBlock(7), Key::NotYet(7, Commitment::Confirmed)] {
        assert!(mac.name("ns", "g", &key).is_none());
    }
    insta::assert_snapshot!(none.key, @"ns:cache2:genesis:{302206d48639e446}:eb8314a55cf8d71cae0ae34811473019");
    insta::assert_snapshot!(
        name(&mac, &key(1)).question,
        @r#"getAccountInfo ["4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi",{"commitment":"finalized","encoding":"base64"}]"#
    );
}

proptest! {
    /// Checks that a value with a flipped bit or a missing end is refused, and never read as another answer.
    #[test]
    fn altered_or_cut_values_are_refused(bytes in 0_usize..3000, at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mac = mac("secret");
        let name = name(&mac, &key(1));
        let whole = mac.encode(&name, &value(result(bytes)));
        let mut altered = whole.clone();
        altered[at.index(whole.len())] ^= 1 << bit;
        prop_assert_eq!(mac.decode(&name, &Bytes::from(altered), MAX), None);
        let cut = whole[..at.index(whole.len())].to_vec();
        prop_assert_eq!(mac.decode(&name, &Bytes::from(cut), MAX), None);
    }

    /// Checks that arbitrary bytes are refused without a panic.
    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mac = mac("");
        prop_assert_eq!(mac.decode(&name(&mac, &key(1)), &Bytes::from(bytes), MAX), None);
    }
}
