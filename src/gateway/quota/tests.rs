use std::sync::Arc;

use jiff::Timestamp;

use super::*;

pub(super) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[track_caller]
pub(super) fn check(used: &Used, wall: &str, day: f64, month: f64) {
    let [d, m] = used.units(Period::of(at(wall)));
    assert!((d - day).abs() < 1e-9 && (m - month).abs() < 1e-9, "{wall}: {d} a day, {m} a month");
}

fn book(used: &Used, period: Period, units: f64) {
    used.book(period, Use { method: "getBlock", calls: 1, units, reserved: 0.0 });
}

fn release(used: &Used, period: Period, reserved: f64) {
    used.book(period, Use { method: "getBlock", calls: 1, units: 0.0, reserved });
}

/// A ledger that shares its units, and the usage of its only key.
fn shared() -> (Ledger, Arc<Used>) {
    let ledger = Ledger::open(None).unwrap();
    ledger.share();
    let used = ledger.of(&Arc::from("key"), &Arc::default());
    (ledger, used)
}

fn totals(units: [u64; 2]) -> Totals {
    Totals { units, marks: [0; 2] }
}

#[test]
fn windows_end_at_utc_midnight_and_month() {
    let used = Used::default();
    book(&used, Period::of(at("2026-11-29T23:59:59.999Z")), 2.5);
    check(&used, "2026-11-29T00:00:00Z", 2.5, 2.5);
    check(&used, "2026-11-30T00:00:00Z", 0.0, 2.5);
    book(&used, Period::of(at("2026-11-30T12:00:00Z")), 1.0);
    check(&used, "2026-11-30T23:59:59Z", 1.0, 3.5);
    check(&used, "2026-12-01T00:00:00Z", 0.0, 0.0);
    book(&used, Period::of(at("2026-12-01T00:00:00Z")), 1.0);
    check(&used, "2026-12-01T00:00:00Z", 1.0, 1.0);
}

#[test]
fn a_clock_that_is_wrong_for_a_while_erases_nothing() {
    let right = "2026-11-30T23:30:00Z";
    for wrong in [
        "2026-11-30T23:30:01Z",
        "2026-12-01T00:00:01Z",
        "2026-11-29T12:00:00Z",
        "2026-12-31T12:00:00Z",
        "2027-11-30T12:00:00Z",
        "2026-01-01T00:00:00Z",
        "2149-01-01T00:00:00Z",
        "1970-01-01T00:00:01Z",
    ] {
        let used = Used::default();
        book(&used, Period::of(at(right)), 5.0);
        book(&used, Period::of(at(wrong)), 7.0);
        book(&used, Period::of(at(right)), 1.0);
        let [day, month] = used.units(Period::of(at(right)));
        assert!(day >= 6.0 && month >= 6.0, "{wrong}: {day} a day, {month} a month");
        let [day, month] = used.units(Period::of(at(wrong)));
        assert!(day >= 7.0 && month >= 7.0, "{wrong} comes: {day} a day, {month} a month");
    }
}

#[test]
fn a_call_that_is_late_at_midnight_takes_nothing_from_the_new_day() {
    let used = Used::default();
    book(&used, Period::of(at("2026-11-30T12:00:00Z")), 5.0);
    book(&used, Period::of(at("2026-12-01T00:00:00Z")), 1.0);
    book(&used, Period::of(at("2026-11-30T23:59:59Z")), 2.0);
    check(&used, "2026-12-01T00:00:01Z", 1.0, 1.0);
}

#[test]
fn units_of_before_the_clock_was_set_count() {
    let used = Used::default();
    book(&used, Period::of(at("1970-01-01T00:00:05Z")), 2.0);
    check(&used, "2026-11-30T00:00:00Z", 2.0, 2.0);
}

#[test]
fn a_day_that_ends_under_many_threads_loses_no_unit() {
    let used = Used::default();
    let days = ["2026-11-29T12:00:00Z", "2026-11-30T12:00:00Z"].map(|day| Period::of(at(day)));
    std::thread::scope(|scope| {
        for day in days.into_iter().cycle().take(4) {
            let used = &used;
            scope.spawn(move || (0..1000).for_each(|_| book(used, day, 1.0)));
        }
    });
    let [_, month] = used.units(days[1]);
    assert!((month - 4000.0).abs() < 1e-9, "{month}");
}

#[test]
fn reserved_units_are_neither_lost_nor_sold_twice() {
    let (used, quotas) = (Used::default(), [Some(10), Some(25)]);
    let today = Period::of(at("2026-11-29T12:00:00Z"));
    let over = |is_monthly, may_pass_soon| Err(OverQuota { is_monthly, may_pass_soon });
    assert_eq!(used.reserve(today, 6.0, quotas), Ok(()));
    assert_eq!(used.reserve(today, 6.0, quotas), over(false, true));
    assert_eq!(used.reserve(today, 4.0, quotas), Ok(()), "a refused call reserves nothing");
    book(&used, today, 6.0);
    release(&used, today, 6.0);
    assert_eq!(used.reserve(today, 1.0, quotas), over(false, true));
    assert_eq!(used.reserve(today, 5.0, quotas), over(false, false));

    // While 4 units are reserved, the next month begins, and the clock goes back to the last one.
    for (wall, rest) in [("2026-12-01T12:00:00Z", 6.0), ("2026-11-29T12:00:00Z", 0.0)] {
        let period = Period::of(at(wall));
        assert_eq!(used.reserve(period, rest + 1.0, quotas), over(false, true), "{wall}");
        assert_eq!(used.reserve(period, rest, quotas), Ok(()), "{wall}");
        release(&used, period, rest);
    }
    let tomorrow = Period::of(at("2026-11-30T00:00:01Z"));
    book(&used, tomorrow, 4.0);
    release(&used, tomorrow, 4.0);
    assert!(used.reserved().abs() < f64::EPSILON);
    check(&used, "2026-11-30T00:00:01Z", 4.0, 10.0);
    assert_eq!(used.reserve(tomorrow, 6.0, [Some(10), Some(15)]), over(true, false));
    assert_eq!(used.reserve(tomorrow, 6.0, quotas), Ok(()));
}

#[test]
fn reservations_at_once_exceed_no_quota() {
    let (used, day) = (Used::default(), Period::of(at("2026-11-29T12:00:00Z")));
    let passed: usize = std::thread::scope(|scope| {
        let calls = || {
            let tries = (0..1000).filter(|i| {
                let passes = used.reserve(day, 2.0, [Some(1000), None]).is_ok();
                if passes {
                    // Every other call fails, and costs nothing.
                    book(&used, day, if i % 2 == 0 { 2.0 } else { 0.0 });
                    release(&used, day, 2.0);
                }
                passes
            });
            tries.count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(calls)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    check(&used, "2026-11-29T12:00:00Z", 1000.0, 1000.0);
    assert!(passed >= 500 && used.reserved().abs() < f64::EPSILON, "{passed}");
}

#[test]
fn periods_know_their_end() {
    let [day, month] = Period::ends_in(at("2028-02-28T23:00:00Z"));
    assert_eq!((day.as_secs(), month.as_secs()), (3600, 3600 + 86_400));
}

#[test]
fn repeated_booking_counts_once() {
    let (ledger, day) = (Ledger::open(None).unwrap(), "2026-11-30T12:00:00Z");
    // The ledger has this key before the store is connected.
    let used = ledger.of(&Arc::from("key"), &Arc::default());
    ledger.share();
    let period = Period::of(at(day));
    let booking = || ledger.bookings(period).pop().map(|(.., booking)| booking);
    let told = |booking: Booking| (booking.units, booking.number, booking.known);
    book(&used, period, 2.0);
    let first = booking().unwrap();
    assert_eq!(told(first), ([2000; 2], 1, [0, 0]));
    book(&used, period, 1.0);
    assert_eq!(booking(), Some(first), "the store has not answered");
    used.booked(&first, totals([5000, 9000]));
    check(&used, day, 6.0, 10.0);
    let second = booking().unwrap();
    assert_eq!(told(second), ([1000; 2], 2, [5000, 9000]));
    used.booked(&first, totals([1 << 40; 2]));
    assert_eq!(booking(), Some(second), "an answer that comes twice");
    used.booked(&second, totals([6000, 10_000]));
    check(&used, day, 6.0, 10.0);
    assert_eq!(booking(), None, "nothing waits");
    used.request_totals();
    let third = booking().unwrap();
    used.booked(&third, totals([6000, 10_000]));
    assert_eq!(booking(), None, "one request, one reading");
}

#[test]
fn what_an_operator_sets_replaces_what_any_gateway_knows() {
    let (ledger, used) = shared();
    let (other, elsewhere) = shared();
    let day = "2026-11-30T12:00:00Z";
    let period = Period::of(at(day));
    let booking = |ledger: &Ledger| ledger.bookings(period).pop().unwrap().2;
    // Somebody else has written what nobody can have used.
    for (ledger, used) in [(&ledger, &used), (&other, &elsewhere)] {
        book(used, period, 2.0);
        used.booked(&booking(ledger), totals([1 << 48; 2]));
    }
    book(&used, period, 1.0);
    let before = booking(&ledger);
    used.set(period, [None, Some(30.0)], ledger.booker());
    used.set(period, [Some(4.0), None], ledger.booker());
    used.booked(&before, totals([1 << 48; 2]));
    check(&used, day, 4.0, 30.0);
    let set = booking(&ledger);
    assert_eq!((set.sets, set.known, set.units), (true, [4000, 30_000], [0; 2]));
    book(&used, period, 1.0);
    let answer = Totals { units: set.known, marks: set.marks };
    used.booked(&set, answer);
    check(&used, day, 5.0, 31.0);
    assert_eq!(booking(&ledger).marks, set.marks);
    elsewhere.request_totals();
    let asked = booking(&other);
    assert_ne!(asked.marks, set.marks);
    elsewhere.booked(&asked, answer);
    check(&elsewhere, day, 4.0, 30.0);
}

#[test]
fn late_totals_stay_in_their_window() {
    let (ledger, used) = shared();
    let (november, december) = ("2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z");
    book(&used, Period::of(at(november)), 2.0);
    let booking = ledger.bookings(Period::of(at(november))).pop().unwrap().2;
    // The first call after midnight comes before the store's answer.
    book(&used, Period::of(at(december)), 1.0);
    used.booked(&booking, totals([5000, 9000]));
    check(&used, december, 1.0, 1.0);
    check(&used, november, 5.0, 9.0);
}

#[test]
fn units_of_yesterday_are_not_booked_today() {
    let (ledger, used) = shared();
    let yesterday = Period::of(at("2026-11-20T12:00:00Z"));
    let (night, today) = ("2026-11-21T00:05:00Z", Period::of(at("2026-11-21T00:05:00Z")));
    let booking = |period| ledger.bookings(period).pop().unwrap().2;
    // The store is unreachable from noon until after midnight.
    book(&used, yesterday, 3.0);
    assert_eq!(booking(yesterday).units, [3000; 2]);
    book(&used, yesterday, 800.0);
    book(&used, today, 5.0);
    let first = booking(today);
    assert_eq!((first.windows, first.units), (yesterday.windows(), [3000; 2]), "repeated as it was");
    used.booked(&first, totals([3000; 2]));
    check(&used, night, 5.0, 808.0);
    let second = booking(today);
    assert_eq!((second.windows, second.units), (today.windows(), [5000, 805_000]));
    assert_eq!(second.known, [0, 3000]);
    used.booked(&second, totals([5000, 808_000]));
    check(&used, night, 5.0, 808.0);
}

#[test]
fn usage_is_over_once_all_is_booked() {
    let (ledger, used) = shared();
    let (november, december) = ("2026-11-30T12:00:00Z", "2026-12-01T00:00:00Z");
    let (november, december) = (Period::of(at(november)), Period::of(at(december)));
    assert!(used.is_over(november), "nothing was used");
    book(&used, november, 2.0);
    assert!(!used.is_over(november), "units wait");
    let booking = ledger.bookings(november).pop().unwrap().2;
    assert!(!used.is_over(december), "the store has not answered");
    used.booked(&booking, totals([2000; 2]));
    assert_eq!((used.is_over(november), used.is_over(december)), (false, true));
}

#[test]
fn unused_keys_are_forgotten_after_their_end() {
    let (ledger, now) = (Ledger::open(None).unwrap(), Period::of(at("2026-11-21T12:00:00Z")));
    let names = ["in force", "used", "held", "revoked"];
    let [in_force, used, held, revoked] = names.map(|name| ledger.of(&Arc::from(name), &Arc::default()));
    book(&used, now, 1.0);
    drop((in_force, used, revoked));
    let forget = || ledger.forget(now, |id| id == "in force");
    forget();
    assert_eq!(ledger.len(), 3);
    drop(held);
    forget();
    assert_eq!(ledger.len(), 2);
}

#[test]
fn bookings_of_returned_keys_count() {
    let (ledger, id) = (Ledger::open(None).unwrap(), Arc::from("key"));
    ledger.share();
    let number = |wall| {
        let (used, period) = (ledger.of(&id, &Arc::default()), Period::of(at(wall)));
        book(&used, period, 1.0);
        let booking = ledger.bookings(period).pop().unwrap().2;
        used.booked(&booking, totals(booking.units));
        booking.number
    };
    let first = number("2026-11-30T12:00:00Z");
    ledger.forget(Period::of(at("2026-12-01T12:00:00Z")), |_| false);
    assert_eq!(ledger.len(), 0);
    // The store counts a number only once, and still knows the first booking.
    assert!(number("2026-12-02T12:00:00Z") > first);
}

/// A ledger with its file in a folder, as a process has it.
struct Process {
    ledger: Ledger,
    used: Arc<Used>,
}

impl Process {
    fn start(path: &std::path::Path) -> Self {
        let ledger = Ledger::open(Some(path)).unwrap();
        let used = ledger.of(&Arc::from("key-1"), &Arc::from("alice"));
        Self { ledger, used }
    }
}

#[test]
fn usage_outlasts_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usage.json");
    let process = Process::start(&path);
    book(&process.used, Period::of(at("2026-11-20T12:00:00Z")), 4.0);
    book(&process.used, Period::of(at("2026-11-21T12:00:00Z")), 1.5);
    process.ledger.of(&Arc::from("unused"), &Arc::default());
    process.ledger.save(at("2026-11-21T12:00:00Z")).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    insta::assert_snapshot!(text, @r#"
    {"day":"2026-11-20","key":"key-1","name":"alice","used":[4.0,5.5],"calls":{"getBlock":[1,4.0]}}
    {"day":"2026-11-21","key":"key-1","name":"alice","used":[1.5,5.5],"calls":{"getBlock":[1,1.5]}}
    "#);
    let again = Process::start(&path);
    check(&again.used, "2026-11-20T13:00:00Z", 4.0, 5.5);
    check(&again.used, "2026-11-21T13:00:00Z", 1.5, 5.5);
    check(&again.used, "2026-11-22T13:00:00Z", 0.0, 5.5);
    check(&again.used, "2027-11-21T13:00:00Z", 0.0, 0.0);
    again.ledger.save(at("2026-11-22T13:00:00Z")).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing new, nothing written");

    // A file that cannot be read whole stops the start, and would otherwise be overwritten without a part of it.
    for (wrong, named) in
        [("{}\n".to_owned(), "line 1: "), (text.replace("\"name\"", "\"owner\""), "`owner`")]
    {
        std::fs::write(&path, wrong).unwrap();
        let error = Ledger::open(Some(&path)).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        assert!(error.ends_with("repair it, or remove the file to count from zero"), "{error}");
    }
}

#[test]
fn clock_that_was_never_set_loses_no_usage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usage.json");
    let process = Process::start(&path);
    book(&process.used, Period::of(at("2026-11-21T12:00:00Z")), 1.0);
    process.ledger.save(at("2026-11-21T12:00:00Z")).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let (process, never_set) = (Process::start(&path), at("1970-01-01T00:00:05Z"));
    book(&process.used, Period::of(never_set), 2.0);
    process.ledger.forget(Period::of(never_set), |_| false);
    process.ledger.save(never_set).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    // The clock is set while the process runs.
    check(&process.used, "2026-11-21T13:00:00Z", 3.0, 3.0);
    process.ledger.save(at("2026-11-21T13:00:00Z")).unwrap();
    check(&Process::start(&path).used, "2026-11-21T13:00:00Z", 3.0, 3.0);
}

#[test]
fn totals_of_other_gateways_and_of_operators_are_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (path, wall) = (dir.path().join("usage.json"), at("2026-11-21T12:00:00Z"));
    let (process, period) = (Process::start(&path), Period::of(wall));
    process.ledger.share();
    book(&process.used, period, 1.0);
    process.ledger.save(wall).unwrap();
    let booking = process.ledger.bookings(period).pop().unwrap().2;
    process.used.booked(&booking, totals([4000, 8000]));
    process.ledger.save(wall).unwrap();
    check(&Process::start(&path).used, "2026-11-21T13:00:00Z", 4.0, 8.0);
    process.used.set(period, [Some(0.5), Some(2.0)], process.ledger.booker());
    process.ledger.save(wall).unwrap();
    check(&Process::start(&path).used, "2026-11-21T13:00:00Z", 0.5, 2.0);
}
