//! Fixed cases: those in which random tests found a fault, and some that are drawn too seldom.

use super::*;

const ONE_SLOT: Settings = Settings { assemble: Assemble::SameSlot, merge: false };

fn plays(steps: Vec<Step>) {
    on_a_stepped_clock(Play::new(ONE_SLOT).plays(steps)).unwrap();
}

fn ask(n: u8, encoding: AccountEncoding, slice: Option<DataSlice>, conditions: Conditions) -> Step {
    let form = AccountForm { encoding, slice };
    Step::Ask(Wish { accounts: vec![n], list: false, form, commitment: Commitment::Finalized }, conditions)
}

fn ask_list(encoding: AccountEncoding) -> Step {
    let (form, commitment) = (AccountForm { encoding, slice: None }, Commitment::Finalized);
    Step::Ask(Wish { accounts: vec![0, 1], list: true, form, commitment }, Conditions::default())
}

#[test]
fn whoever_asks_after_the_cache_was_emptied_joins_no_call_of_before() {
    let asks = || ask(1, AccountEncoding::Base64, None, Conditions::default());
    plays(vec![asks(), Step::Clear, asks(), Step::Lands(0, Some(0)), Step::Lands(0, Some(0))]);
}

#[test]
fn what_another_waits_for_is_taken_in_time_only_also_by_whoever_was_told_less_before() {
    let asks = |min, floor| ask(1, AccountEncoding::Base64, None, Conditions { min, floor, bypass: false });
    plays(vec![
        asks(Some(0), None),
        // The answer is too low, so one at the frontier's slot is requested. Much later another caller wants
        // that slot, too.
        Step::Lands(0, Some(1)),
        Step::Wait(5_001),
        asks(None, Some(0)),
        Step::Lands(1, Some(1)),
        Step::Lands(0, Some(0)),
    ]);
}

#[test]
fn an_account_that_has_shrunk_is_found_where_it_was_kept() {
    let slice = Some(DataSlice { offset: 1, length: 3 });
    let asks = || ask(2, AccountEncoding::JsonParsed, slice, Conditions::default());
    plays(vec![
        asks(),
        Step::Lands(0, Some(0)),
        Step::Wait(8_000),
        Step::Frontier(Commitment::Finalized, 1),
        asks(),
        Step::Lands(0, Some(0)),
        asks(),
    ]);
}

#[test]
fn a_list_is_as_old_as_its_oldest_account() {
    let asks = |n| ask(n, AccountEncoding::Base64, None, Conditions::default());
    let list = || ask_list(AccountEncoding::Base64);
    let lands = || Step::Lands(0, Some(0));
    plays(vec![asks(0), lands(), Step::Wait(3_000), asks(1), lands(), list(), Step::Wait(2_500), list()]);
}

#[test]
fn a_list_is_not_put_together_behind_one_that_was_shown() {
    let asks = |n| ask(n, AccountEncoding::Base64, None, Conditions::default());
    let list = || ask_list(AccountEncoding::Base64Zstd);
    let lands = |behind| Step::Lands(0, Some(behind));
    // No sizes are known, so the list is fetched as it was asked for. Each account is fetched whole after
    // that.
    plays(vec![list(), lands(-1), Step::Wait(8_000), asks(0), lands(0), asks(1), lands(0), list()]);
}

#[test]
fn a_kept_list_is_not_shown_behind_one_of_its_accounts() {
    let asks = |n| ask(n, AccountEncoding::Base64, None, Conditions::default());
    let list = || ask_list(AccountEncoding::Base64);
    let lands = |behind| Step::Lands(0, Some(behind));
    plays(vec![list(), lands(2), Step::Wait(8_000), asks(0), lands(0), list(), lands(0)]);
    let parsed = || ask(0, AccountEncoding::JsonParsed, None, Conditions::default());
    plays(vec![asks(0), lands(2), parsed(), lands(0), asks(0), lands(0)]);
}

#[test]
fn a_list_made_of_what_is_above_a_fallen_floor_raises_it() {
    let finalized = |accounts: &[u8]| {
        let (form, commitment) =
            (AccountForm { encoding: AccountEncoding::Base64, slice: None }, Commitment::Finalized);
        Step::Ask(Wish { accounts: accounts.to_vec(), list: true, form, commitment }, Conditions::default())
    };
    let single = || ask(0, AccountEncoding::Base64, None, Conditions::default());
    let lands = |behind| Step::Lands(0, Some(behind));
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
fn an_overtaken_list_is_asked_for_again() {
    let single = |encoding| ask(0, encoding, None, Conditions::default());
    let lands = |n, behind| Step::Lands(n, Some(behind));
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
fn a_caller_who_joins_a_call_is_not_given_another_callers_form() {
    let base58 = |offset| {
        ask(2, AccountEncoding::Base58, Some(DataSlice { offset, length: 3 }), Conditions::default())
    };
    let all = ask(2, AccountEncoding::Binary, None, Conditions::default());
    let (form, commitment) =
        (AccountForm { encoding: AccountEncoding::Binary, slice: None }, Commitment::Finalized);
    let list = Wish { accounts: vec![0, 2], list: true, form, commitment };
    let other = ask(1, AccountEncoding::Base64, None, Conditions::default());
    let lands = |n, behind| Step::Lands(n, Some(behind));
    // The size is known by then, so both callers ask for the whole account. The list holds its first bytes.
    plays(vec![
        other,
        lands(0, 0),
        base58(150),
        lands(0, 0),
        all,
        base58(1),
        Step::Ask(list, Conditions::default()),
        lands(1, 0),
        lands(0, 1),
        lands(0, 0),
    ]);
}

#[test]
fn an_account_that_stands_in_above_a_fallen_floor_raises_it() {
    let single =
        |bypass| ask(1, AccountEncoding::Base64Zstd, None, Conditions { min: None, floor: None, bypass });
    let list = |accounts: &[u8]| {
        let form = AccountForm { encoding: AccountEncoding::Base64Zstd, slice: None };
        let wish = Wish { accounts: accounts.to_vec(), list: true, form, commitment: Commitment::Finalized };
        Step::Ask(wish, Conditions::default())
    };
    plays(vec![
        single(false),
        Step::Lands(0, Some(-1)),
        list(&[0, 1]),
        // No node reaches the floor any more, and then no node answers.
        Step::Lands(0, Some(0)),
        single(true),
        Step::Lands(0, None),
        list(&[0, 1, 2, 3]),
        Step::Lands(0, Some(0)),
    ]);
}
