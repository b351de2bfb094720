//! Tests with fixed sequences of steps. Some of these sequences have revealed a fault. Random tests rarely
//! generate the others.

use super::*;
use AccountEncoding::{Base58, Base64, Base64Zstd, Binary, JsonParsed};
use Commitment::Finalized;
use ModelStep::{AdvanceFrontier, NodeFailure, PurgeAccount, PurgeAll};

const ONE_SLOT: Settings = Settings { assemble: Assemble::SameSlot };
const NEVER: Settings = Settings { assemble: Assemble::Off };

fn run(settings: Settings, steps: Vec<ModelStep>) {
    on_a_stepped_clock(async { AccountModel::new(settings).run(steps).await }).unwrap();
}

/// Returns the limits of age and lag for the answers in these tests. All answers are at finalized.
fn bounds() -> AnswerBounds {
    AnswerBounds::of_accounts(Finalized)
}

fn wait(time: Duration) -> ModelStep {
    ModelStep::Wait { ms: bounds::millis(time) }
}

/// Returns a wait after which no stored answer is served, not even while a fresh one is fetched.
fn wait_until_stale() -> ModelStep {
    wait(bounds().past_stretched_ttl())
}

fn form(encoding: AccountEncoding) -> AccountForm {
    AccountForm { encoding, slice: None }
}

fn slice_of(encoding: AccountEncoding, offset: u64) -> AccountForm {
    AccountForm { encoding, slice: Some(DataSlice { offset, length: 3 }) }
}

/// Returns the step in which a caller asks for one account.
fn ask(account: u8, form: AccountForm) -> ModelStep {
    ask_under(account, form, Conditions::default())
}

fn ask_under(account: u8, form: AccountForm, conditions: Conditions) -> ModelStep {
    let call = TestCall { accounts: vec![account], list: false, form, commitment: Finalized };
    ModelStep::Ask { call, conditions }
}

/// Returns the step in which a caller asks for a list.
fn ask_list(accounts: &[u8], encoding: AccountEncoding) -> ModelStep {
    let (accounts, form) = (accounts.to_vec(), form(encoding));
    let call = TestCall { accounts, list: true, form, commitment: Finalized };
    ModelStep::Ask { call, conditions: Conditions::default() }
}

/// Returns the step in which a node answers a call under way, at the slot `behind` slots below the newest
/// known one. `choice` picks the call.
fn reply(choice: usize, behind: i64) -> ModelStep {
    ModelStep::NodeReply { choice, behind }
}

#[test]
fn callers_after_a_purge_join_no_earlier_call() {
    for purge in [PurgeAll, PurgeAccount { account: 1 }, PurgeAccount { account: 0 }] {
        let asks = || ask(1, form(Base64));
        run(ONE_SLOT, vec![asks(), purge, asks(), reply(0, 0), reply(0, 0)]);
    }
}

#[test]
fn purge_of_one_account_removes_its_lists() {
    let list = || ask_list(&[1, 0], Binary);
    run(ONE_SLOT, vec![list(), reply(0, 0), PurgeAccount { account: 0 }, list()]);
}

/// Checks a purge of one of two accounts. Afterwards the cache serves nothing that was stored about that account,
/// and still serves the other account.
#[test]
fn purge_of_one_account_keeps_the_others() {
    let purge = || PurgeAccount { account: 1 };
    let list = || ask_list(&[0, 1], Base64);
    // The purge removes the list, and the single entry of account 1 that was stored with the list.
    run(ONE_SLOT, vec![list(), reply(0, 0), purge(), list(), reply(0, 0)]);
    run(ONE_SLOT, vec![list(), reply(0, 0), purge(), ask(1, form(Base64)), reply(0, 0)]);
    // The model itself checks that the other account is served without a node.
    run(ONE_SLOT, vec![list(), reply(0, 0), purge(), ask(0, form(Base64))]);
}

/// Checks that the slot below which an account must not be shown outlasts the purge of another account.
#[test]
fn purge_of_one_account_keeps_other_floors() {
    let steps = vec![
        ask(0, form(JsonParsed)),
        reply(0, 0),
        PurgeAccount { account: 1 },
        ask(0, form(Base64)),
        // The answer is behind the slot at which the account was shown, so the account is fetched again.
        reply(0, 1),
        reply(0, 0),
    ];
    run(ONE_SLOT, steps);
}

/// Checks that an answer from before a purge of its account is not stored.
#[test]
fn purge_of_one_account_reaches_fetches_under_way() {
    let asks = || ask(1, form(Base64));
    run(ONE_SLOT, vec![asks(), PurgeAccount { account: 1 }, reply(0, 0), asks(), reply(0, 0)]);
}

#[test]
fn second_flight_joiner_refuses_an_old_answer() {
    let asks = |min_behind, floor_behind| {
        ask_under(1, form(Base64), Conditions { min_behind, floor_behind, bypass: false })
    };
    let steps = vec![
        asks(Some(0), None),
        // The answer's slot is too low, so an answer at the newest known slot is requested. Much later another
        // caller wants an answer at that slot, too.
        reply(0, 1),
        wait(bounds().past_ttl()),
        asks(None, Some(0)),
        reply(1, 1),
        reply(0, 0),
    ];
    run(ONE_SLOT, steps);
}

/// Checks that a caller who joins the second flight of an earlier caller, and finds its answer too old, gets a third
/// flight and no error. At processed no stored answer may be served instead.
#[test]
fn late_second_flight_is_followed_by_a_third() {
    let processed = AnswerBounds::of_accounts(Commitment::Processed);
    let asks = || {
        let commitment = Commitment::Processed;
        let call = TestCall { accounts: vec![1], list: false, form: form(Base64), commitment };
        ModelStep::Ask { call, conditions: Conditions { floor_behind: Some(0), ..Conditions::default() } }
    };
    let steps = vec![
        asks(),
        // The slot is below what the caller's key has seen, so a second flight asks for that slot.
        reply(0, 1),
        ModelStep::Wait { ms: 1 },
        // For this caller the stored answer is too low as well, so it joins the second flight.
        asks(),
        wait(processed.past_ttl()),
        reply(0, 0),
        reply(0, 0),
    ];
    run(ONE_SLOT, steps);
}

#[test]
fn shrunk_account_is_found_under_its_old_form() {
    let asks = || ask(2, slice_of(JsonParsed, 1));
    let steps = vec![
        asks(),
        reply(0, 0),
        wait_until_stale(),
        AdvanceFrontier { commitment: Finalized, slots: 1 },
        asks(),
        reply(0, 0),
        asks(),
    ];
    run(ONE_SLOT, steps);
}

#[test]
fn assembled_list_is_as_old_as_its_oldest() {
    let asks = |account| ask(account, form(Base64));
    let list = || ask_list(&[0, 1], Base64);
    let steps = vec![
        asks(0),
        reply(0, 0),
        wait(bounds().part_of_ttl(0.6)),
        asks(1),
        reply(0, 0),
        list(),
        // The answer for the first account is past its age limit now. The answer for the second account is not.
        wait(bounds().part_of_ttl(0.5)),
        list(),
    ];
    run(ONE_SLOT, steps);
}

#[test]
fn assembled_list_is_not_behind_a_shown_one() {
    let asks = |account| ask(account, form(Base64));
    let list = || ask_list(&[0, 1], Base64Zstd);
    // No sizes are known, so the list is fetched in the form of the call. Later each account is fetched
    // whole.
    let steps =
        vec![list(), reply(0, -1), wait_until_stale(), asks(0), reply(0, 0), asks(1), reply(0, 0), list()];
    run(ONE_SLOT, steps);
}

/// Checks that an assembled list replaces an older list of the same slot.
#[test]
fn assembled_list_replaces_one_of_its_slot() {
    let asks = |account| ask(account, form(Base64));
    let list = || ask_list(&[0, 1], Base64);
    on_a_stepped_clock(async {
        let mut model = AccountModel::new(ONE_SLOT);
        for step in
            [list(), reply(0, 0), wait_until_stale(), asks(0), reply(0, 0), asks(1), reply(0, 0), list()]
        {
            let must_hit = model.apply(step).await;
            model.settle_and_check(must_hit, false).await.unwrap();
        }
        assert_eq!(model.cache.calls.len(), 3, "the second list asks no node");
    });
}

#[test]
fn stored_list_is_not_behind_its_accounts() {
    let asks = || ask(0, form(Base64));
    let list = || ask_list(&[0, 1], Base64);
    run(ONE_SLOT, vec![list(), reply(0, 2), wait_until_stale(), asks(), reply(0, 0), list(), reply(0, 0)]);
    let parsed = || ask(0, form(JsonParsed));
    run(ONE_SLOT, vec![asks(), reply(0, 2), parsed(), reply(0, 0), asks(), reply(0, 0)]);
}

#[test]
fn assembled_list_raises_a_fallen_floor() {
    let list = |accounts: &[u8]| ask_list(accounts, Base64);
    let steps = vec![
        ask(0, form(Base64)),
        reply(0, 0),
        list(&[1, 0]),
        reply(0, 1),
        list(&[0, 0]),
        list(&[1, 0]),
        reply(0, 0),
    ];
    run(ONE_SLOT, steps);
}

#[test]
fn overtaken_list_is_fetched_again() {
    for encoding in [JsonParsed, Base64] {
        let steps =
            vec![ask_list(&[0, 1], Base64), ask(0, form(encoding)), reply(1, 0), reply(0, 2), reply(0, 0)];
        run(ONE_SLOT, steps);
    }
}

#[test]
fn joiner_never_gets_another_callers_form() {
    // After the first answer about account 2, its size is known. Both later calls for that account then fetch
    // it whole. The list fetches only the first bytes.
    let steps = vec![
        ask(1, form(Base64)),
        reply(0, 0),
        ask(2, slice_of(Base58, 150)),
        reply(0, 0),
        ask(2, form(Binary)),
        ask(2, slice_of(Base58, 1)),
        ask_list(&[0, 2], Binary),
        reply(1, 0),
        reply(0, 1),
        reply(0, 0),
    ];
    run(ONE_SLOT, steps);
}

#[test]
fn stand_in_raises_a_fallen_floor() {
    let bypass = Conditions { bypass: true, ..Conditions::default() };
    let steps = vec![
        ask(1, form(Base64Zstd)),
        reply(0, -1),
        ask_list(&[0, 1], Base64Zstd),
        // This answer is below the floor of account 1. Then the node fails.
        reply(0, 0),
        ask_under(1, form(Base64Zstd), bypass),
        NodeFailure { choice: 0 },
        ask_list(&[0, 1, 2, 3], Base64Zstd),
        reply(0, 0),
    ];
    run(ONE_SLOT, steps);
}

/// Checks that the floor after a failure depends on who was answered last. The refusal of account 2 in base58 raises
/// the floors, so no answer that the model knows has shown account 0 before the node fails.
#[test]
fn last_of_two_stand_ins_sets_the_floor() {
    let list = || ask_list(&[0, 1], Base64);
    let until_the_failure =
        || vec![list(), ask_list(&[0, 2], Base58), ask(0, form(Base64)), reply(1, 0), reply(0, 1)];
    // The call for account 0 fails first. The list is then served as a last resort, and lowers the floor.
    let mut list_last = until_the_failure();
    list_last.extend([NodeFailure { choice: 0 }, list()]);
    run(NEVER, list_last);
    // The second call for the list fails first. The account is then served at a higher slot, and raises the floor, so
    // a node is asked for the list again.
    let mut account_last = until_the_failure();
    account_last.extend([NodeFailure { choice: 1 }, list(), reply(0, 0)]);
    run(NEVER, account_last);
}
