//! Fixed cases: those in which random tests found a fault, and some that are drawn too seldom.

use super::*;

const ONE_SLOT: Settings = Settings { assemble: Assemble::SameSlot, merge: false };

fn plays(steps: Vec<ModelStep>) {
    on_a_stepped_clock(Simulation::new(ONE_SLOT).plays(steps)).unwrap();
}

fn ask(n: u8, encoding: AccountEncoding, slice: Option<DataSlice>, conditions: Conditions) -> ModelStep {
    let form = AccountForm { encoding, slice };
    ModelStep::Ask(
        TestCall { accounts: vec![n], list: false, form, commitment: Commitment::Finalized },
        conditions,
    )
}

fn ask_list(encoding: AccountEncoding) -> ModelStep {
    let (form, commitment) = (AccountForm { encoding, slice: None }, Commitment::Finalized);
    ModelStep::Ask(TestCall { accounts: vec![0, 1], list: true, form, commitment }, Conditions::default())
}

#[test]
fn callers_after_a_purge_join_no_earlier_call() {
    let asks = || ask(1, AccountEncoding::Base64, None, Conditions::default());
    plays(vec![asks(), ModelStep::Clear, asks(), ModelStep::Lands(0, Some(0)), ModelStep::Lands(0, Some(0))]);
}

#[test]
fn second_flight_joiner_refuses_an_old_answer() {
    let asks = |min, floor| ask(1, AccountEncoding::Base64, None, Conditions { min, floor, bypass: false });
    plays(vec![
        asks(Some(0), None),
        // The answer is too low, so one at the frontier's slot is requested. Much later another caller wants
        // that slot, too.
        ModelStep::Lands(0, Some(1)),
        ModelStep::Wait(5_001),
        asks(None, Some(0)),
        ModelStep::Lands(1, Some(1)),
        ModelStep::Lands(0, Some(0)),
    ]);
}

#[test]
fn shrunk_account_is_found_under_its_old_form() {
    let slice = Some(DataSlice { offset: 1, length: 3 });
    let asks = || ask(2, AccountEncoding::JsonParsed, slice, Conditions::default());
    plays(vec![
        asks(),
        ModelStep::Lands(0, Some(0)),
        ModelStep::Wait(8_000),
        ModelStep::Frontier(Commitment::Finalized, 1),
        asks(),
        ModelStep::Lands(0, Some(0)),
        asks(),
    ]);
}

#[test]
fn assembled_list_is_as_old_as_its_oldest() {
    let asks = |n| ask(n, AccountEncoding::Base64, None, Conditions::default());
    let list = || ask_list(AccountEncoding::Base64);
    let lands = || ModelStep::Lands(0, Some(0));
    plays(vec![
        asks(0),
        lands(),
        ModelStep::Wait(3_000),
        asks(1),
        lands(),
        list(),
        ModelStep::Wait(2_500),
        list(),
    ]);
}

#[test]
fn assembled_list_is_not_behind_a_shown_one() {
    let asks = |n| ask(n, AccountEncoding::Base64, None, Conditions::default());
    let list = || ask_list(AccountEncoding::Base64Zstd);
    let lands = |behind| ModelStep::Lands(0, Some(behind));
    // No sizes are known, so the list is fetched as it was asked for. Each account is fetched whole after
    // that.
    plays(vec![list(), lands(-1), ModelStep::Wait(8_000), asks(0), lands(0), asks(1), lands(0), list()]);
}

#[test]
fn held_list_is_not_behind_its_accounts() {
    let asks = |n| ask(n, AccountEncoding::Base64, None, Conditions::default());
    let list = || ask_list(AccountEncoding::Base64);
    let lands = |behind| ModelStep::Lands(0, Some(behind));
    plays(vec![list(), lands(2), ModelStep::Wait(8_000), asks(0), lands(0), list(), lands(0)]);
    let parsed = || ask(0, AccountEncoding::JsonParsed, None, Conditions::default());
    plays(vec![asks(0), lands(2), parsed(), lands(0), asks(0), lands(0)]);
}

#[test]
fn assembled_list_raises_a_fallen_floor() {
    let finalized = |accounts: &[u8]| {
        let (form, commitment) =
            (AccountForm { encoding: AccountEncoding::Base64, slice: None }, Commitment::Finalized);
        ModelStep::Ask(
            TestCall { accounts: accounts.to_vec(), list: true, form, commitment },
            Conditions::default(),
        )
    };
    let single = || ask(0, AccountEncoding::Base64, None, Conditions::default());
    let lands = |behind| ModelStep::Lands(0, Some(behind));
    plays(vec![
        single(),
        lands(0),
        finalized(&[1, 0]),
        lands(1),
        finalized(&[0, 0]),
        finalized(&[1, 0]),
        lands(0),
    ]);
}

#[test]
fn overtaken_list_is_fetched_again() {
    let single = |encoding| ask(0, encoding, None, Conditions::default());
    let lands = |n, behind| ModelStep::Lands(n, Some(behind));
    for encoding in [AccountEncoding::JsonParsed, AccountEncoding::Base64] {
        plays(vec![
            ask_list(AccountEncoding::Base64),
            single(encoding),
            lands(1, 0),
            lands(0, 2),
            lands(0, 0),
        ]);
    }
}

#[test]
fn joiner_never_gets_another_callers_form() {
    let base58 = |offset| {
        ask(2, AccountEncoding::Base58, Some(DataSlice { offset, length: 3 }), Conditions::default())
    };
    let all = ask(2, AccountEncoding::Binary, None, Conditions::default());
    let (form, commitment) =
        (AccountForm { encoding: AccountEncoding::Binary, slice: None }, Commitment::Finalized);
    let list = TestCall { accounts: vec![0, 2], list: true, form, commitment };
    let other = ask(1, AccountEncoding::Base64, None, Conditions::default());
    let lands = |n, behind| ModelStep::Lands(n, Some(behind));
    // The size is known by then, so both callers ask for the whole account. The list holds its first bytes.
    plays(vec![
        other,
        lands(0, 0),
        base58(150),
        lands(0, 0),
        all,
        base58(1),
        ModelStep::Ask(list, Conditions::default()),
        lands(1, 0),
        lands(0, 1),
        lands(0, 0),
    ]);
}

#[test]
fn stand_in_raises_a_fallen_floor() {
    let single =
        |bypass| ask(1, AccountEncoding::Base64Zstd, None, Conditions { min: None, floor: None, bypass });
    let list = |accounts: &[u8]| {
        let form = AccountForm { encoding: AccountEncoding::Base64Zstd, slice: None };
        let test_call =
            TestCall { accounts: accounts.to_vec(), list: true, form, commitment: Commitment::Finalized };
        ModelStep::Ask(test_call, Conditions::default())
    };
    plays(vec![
        single(false),
        ModelStep::Lands(0, Some(-1)),
        list(&[0, 1]),
        // No node reaches the floor any more, and then no node answers.
        ModelStep::Lands(0, Some(0)),
        single(true),
        ModelStep::Lands(0, None),
        list(&[0, 1, 2, 3]),
        ModelStep::Lands(0, Some(0)),
    ]);
}

/// Checks that a list assembled of several slots is not served once one of its accounts was shown later.
#[test]
fn newer_single_overtakes_an_assembled_list() {
    let form = AccountForm { encoding: AccountEncoding::Base64, slice: None };
    let single = || ask(0, AccountEncoding::Base64, None, Conditions::default());
    let list = |accounts: &[u8]| {
        let test_call =
            TestCall { accounts: accounts.to_vec(), list: true, form, commitment: Commitment::Finalized };
        ModelStep::Ask(test_call, Conditions::default())
    };
    let lands = |n, behind| ModelStep::Lands(n, Some(behind));
    let steps = vec![
        single(),
        list(&[0, 0]),
        list(&[0, 1]),
        // The list of both accounts lands first, so the list of one account twice is assembled from it.
        lands(2, 1),
        list(&[0, 0]),
        // Then the account is shown at a higher slot, and the first fetch of its list lands at a lower one.
        lands(0, 0),
        lands(0, 2),
    ];
    let settings = Settings { assemble: Assemble::WithinBound, merge: false };
    on_a_stepped_clock(Simulation::new(settings).plays(steps)).unwrap();
}
