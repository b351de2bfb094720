use proptest::prelude::*;

use super::*;
use crate::methods::{AccountEncoding, AccountForm, Pubkey};

const MAX: usize = 1 << 20;

fn seal(secret: &str) -> Seal {
    Seal::new(Some(&Secret::new(secret)))
}

fn key(byte: u8) -> Key {
    let form = AccountForm { encoding: AccountEncoding::Base64, slice: None };
    Key::Account(Pubkey([byte; 32]), form, Commitment::Finalized)
}

fn name(seal: &Seal, key: &Key) -> Name {
    seal.name("ns", "genesis", key).unwrap()
}

fn value(body: NodeReply) -> Value {
    Value {
        slot: 345_600_000,
        sent_at: 1_795_000_000_000_000,
        wall_us: 1_795_000_000_000_001,
        confirmed: true,
        body,
    }
}

fn result(bytes: usize) -> NodeReply {
    NodeReply::Result(Bytes::from(vec![b'x'; bytes]))
}

#[test]
fn what_was_closed_opens_again() {
    let seal = seal("");
    let name = name(&seal, &key(1));
    let error = NodeReply::Error { code: -32007, body: Bytes::from_static(b"{}") };
    for body in [result(1), result(2000), NodeReply::Result(Bytes::new()), error] {
        let value = value(body);
        let bytes = Bytes::from(seal.close(&name, &value));
        assert_eq!(seal.open(&name, &bytes, MAX), Some(value));
    }
    let long = seal.close(&name, &value(result(100_000)));
    assert!(long.len() < 1000, "{} bytes", long.len());
    assert_eq!(seal.open(&name, &Bytes::from(long), 99_999), None, "longer than may be kept");
}

#[test]
fn the_rank_of_a_newer_answer_is_the_higher_text() {
    let seal = seal("");
    let name = name(&seal, &key(1));
    let rank =
        |slot, sent_at| seal.close(&name, &Value { slot, sent_at, ..value(result(1)) })[..RANK].to_vec();
    assert!(rank(9, 5) < rank(10, 4) && rank(10, 4) < rank(10, 5) && rank(10, 5) < rank(1_000_000_000, 0));
}

#[test]
fn what_was_closed_for_another_is_no_value() {
    let (ours, theirs) = (seal("a"), seal("b"));
    let bytes = Bytes::from(ours.close(&name(&ours, &key(1)), &value(result(10))));
    assert_eq!(ours.open(&name(&ours, &key(2)), &bytes, MAX), None, "another question");
    let elsewhere = ours.name("ns", "another genesis", &key(1)).unwrap();
    assert_eq!(ours.open(&elsewhere, &bytes, MAX), None, "another cluster");
    let here = Name { key: name(&ours, &key(1)).key, question: name(&theirs, &key(1)).question };
    assert_eq!(theirs.open(&here, &bytes, MAX), None, "another secret");
    assert_ne!(name(&ours, &key(1)).key, name(&theirs, &key(1)).key, "which has names of its own");
}

#[test]
fn names_differ_by_cluster_and_question_and_lie_together_where_one_plan_asks_for_both() {
    let seal = seal("");
    let tag = |name: &Name| name.key.split(['{', '}']).nth(1).unwrap().to_owned();
    let block = |details| {
        let shape = crate::cache::derive::block::Shape {
            details,
            encoding: crate::methods::BlockEncoding::Json,
            rewards: true,
            max_version: None,
        };
        name(&seal, &Key::Block(7, shape, Finality::Final))
    };
    let (full, none) = (block(crate::methods::BlockDetails::Full), name(&seal, &Key::NoBlock(7)));
    assert!(full.key != none.key && tag(&full) == tag(&none));
    assert!(tag(&none) != tag(&name(&seal, &Key::NoBlock(8))));
    assert!(seal.name("ns", "g", &Key::NotYet(7, Commitment::Confirmed)).is_none());
    insta::assert_snapshot!(none.key, @"ns:cache1:genesis:{302206d48639e446}:6e2450d99d00cb524254151e26f5314e");
    insta::assert_snapshot!(
        name(&seal, &key(1)).question,
        @r#"getAccountInfo ["4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi",{"commitment":"finalized","encoding":"base64"}]"#
    );
}

proptest! {
    /// An accident never turns a value into another answer.
    #[test]
    fn what_is_altered_or_cut_is_no_value(bytes in 0_usize..3000, at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let seal = seal("secret");
        let name = name(&seal, &key(1));
        let whole = seal.close(&name, &value(result(bytes)));
        let mut altered = whole.clone();
        altered[at.index(whole.len())] ^= 1 << bit;
        prop_assert_eq!(seal.open(&name, &Bytes::from(altered), MAX), None);
        let cut = whole[..at.index(whole.len())].to_vec();
        prop_assert_eq!(seal.open(&name, &Bytes::from(cut), MAX), None);
    }

    /// Arbitrary bytes are refused without harm.
    #[test]
    fn anything_may_lie_there(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let seal = seal("");
        prop_assert_eq!(seal.open(&name(&seal, &key(1)), &Bytes::from(bytes), MAX), None);
    }
}
