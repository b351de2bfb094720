//! Cases that were drawn, and showed a fault.

use super::*;

const ONE_SLOT: Settings = Settings { assemble: Assemble::SameSlot, merge: false };

fn plays(steps: Vec<Step>) {
    on_a_stepped_clock(Play::new(ONE_SLOT).plays(steps)).unwrap();
}

fn ask(n: u8, encoding: AccountEncoding, slice: Option<DataSlice>, conditions: Conditions) -> Step {
    let form = AccountForm { encoding, slice };
    Step::Ask(Wish { accounts: vec![n], list: false, form, commitment: Commitment::Finalized }, conditions)
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
        // Too little, so one of the frontier's slot is asked for; and long after somebody else wants that, too.
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
    plays(vec![asks(), Step::Lands(0, Some(0)), Step::Wait(8_000), asks(), Step::Lands(0, Some(0)), asks()]);
}
