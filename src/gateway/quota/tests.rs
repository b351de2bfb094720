use super::*;

pub(super) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[track_caller]
pub(super) fn check(used: &Used, wall: &str, day: f64, month: f64) {
    let [d, m] = used.units(Period::of(at(wall)));
    assert!((d - day).abs() < 1e-9 && (m - month).abs() < 1e-9, "{wall}: {d} a day, {m} a month");
}

#[test]
fn windows_end_at_utc_midnight_and_month() {
    let used = Used::default();
    used.book(Period::of(at("2026-11-29T23:59:59.999Z")), 2.5);
    check(&used, "2026-11-29T00:00:00Z", 2.5, 2.5);
    check(&used, "2026-11-30T00:00:00Z", 0.0, 2.5);
    used.book(Period::of(at("2026-11-30T12:00:00Z")), 1.0);
    check(&used, "2026-11-30T23:59:59Z", 1.0, 3.5);
    check(&used, "2026-12-01T00:00:00Z", 0.0, 0.0);
    used.book(Period::of(at("2026-12-01T00:00:00Z")), 1.0);
    check(&used, "2026-12-01T00:00:00Z", 1.0, 1.0);
}

#[test]
fn a_clock_that_goes_back_takes_what_was_used_along() {
    let (right, later) = ("2026-11-19T12:00:00Z", "2026-11-19T13:00:00Z");
    for (wrong, left) in
        [("2026-11-20T12:00:00Z", 0.0), ("2026-12-01T00:00:00Z", 7.0), ("2036-01-01T00:00:00Z", 0.0)]
    {
        let used = Used::default();
        used.book(Period::of(at(right)), 5.0);
        used.book(Period::of(at(wrong)), 7.0);
        used.book(Period::of(at(later)), 1.0);
        check(&used, later, 13.0, 13.0);
        check(&used, "2026-11-21T00:00:00Z", 0.0, 13.0);
        // What was used while the clock was wrong counts in that month, too.
        check(&used, "2026-12-02T00:00:00Z", 0.0, left);
    }
}

#[test]
fn a_clock_that_was_wrongly_set_back_finds_what_was_used() {
    let (right, wrong) = ("2026-11-19T12:00:00Z", "2026-10-29T12:00:00Z");
    let used = Used::default();
    used.book(Period::of(at(right)), 5.0);
    used.book(Period::of(at(wrong)), 2.0);
    check(&used, wrong, 7.0, 7.0);
    check(&used, right, 5.0, 5.0);
    check(&used, "2026-11-20T12:00:00Z", 0.0, 5.0);
}

#[test]
fn a_call_that_is_late_at_midnight_takes_nothing_from_the_new_day() {
    let used = Used::default();
    used.book(Period::of(at("2026-11-30T12:00:00Z")), 5.0);
    used.book(Period::of(at("2026-12-01T00:00:00Z")), 1.0);
    used.book(Period::of(at("2026-11-30T23:59:59Z")), 2.0);
    check(&used, "2026-12-01T00:00:01Z", 1.0, 1.0);
}

#[test]
fn units_of_before_the_clock_was_set_count() {
    let used = Used::default();
    used.book(Period::of(at("1970-01-01T00:00:05Z")), 2.0);
    check(&used, "2026-11-30T00:00:00Z", 2.0, 2.0);
}

#[test]
fn a_day_that_ends_under_many_threads_loses_no_unit() {
    let used = Used::default();
    let days = ["2026-11-29T12:00:00Z", "2026-11-30T12:00:00Z"].map(|day| Period::of(at(day)));
    std::thread::scope(|scope| {
        for day in days.into_iter().cycle().take(4) {
            let used = &used;
            scope.spawn(move || (0..1000).for_each(|_| used.book(day, 1.0)));
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
    used.book(today, 6.0);
    used.release(6.0);
    assert_eq!(used.reserve(today, 1.0, quotas), over(false, true));
    assert_eq!(used.reserve(today, 5.0, quotas), over(false, false));

    // While 4 units are reserved, the next month begins, and the clock goes back to the last one.
    for (wall, rest) in [("2026-12-01T12:00:00Z", 6.0), ("2026-11-29T12:00:00Z", 0.0)] {
        let period = Period::of(at(wall));
        assert_eq!(used.reserve(period, rest + 1.0, quotas), over(false, true), "{wall}");
        assert_eq!(used.reserve(period, rest, quotas), Ok(()), "{wall}");
        used.release(rest);
    }
    let tomorrow = Period::of(at("2026-11-30T00:00:01Z"));
    used.book(tomorrow, 4.0);
    used.release(4.0);
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
                    used.book(day, if i % 2 == 0 { 2.0 } else { 0.0 });
                    used.release(2.0);
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
    let used = ledger.of(&Arc::from("key"));
    ledger.share();
    let period = Period::of(at(day));
    let gateway = Booker::new();
    let booking = || {
        let booking = used.booking(period, &gateway);
        (booking.units, booking.number, booking.known)
    };
    used.book(period, 2.0);
    assert_eq!(ledger.pending().len(), 1);
    assert_eq!(booking(), ([2000; 2], 1, [0, 0]));
    used.book(period, 1.0);
    assert_eq!(booking(), ([2000; 2], 1, [0, 0]), "the store has not answered");

    let first = used.booking(period, &gateway);
    used.booked(&first, [5000, 9000], period);
    check(&used, day, 6.0, 10.0);
    assert_eq!(booking(), ([1000; 2], 2, [5000, 9000]));
    let second = used.booking(period, &gateway);
    used.booked(&second, [6000, 10_000], period);
    check(&used, day, 6.0, 10.0);
    assert!(ledger.pending().is_empty(), "nothing waits");
    used.request_totals();
    assert_eq!((ledger.pending().len(), ledger.pending().len()), (1, 0), "one request, one reading");
}

#[test]
fn unfinished_bookings_are_not_in_known_totals() {
    let (ledger, period) = (Ledger::open(None).unwrap(), Period::of(at("2026-11-30T12:00:00Z")));
    let used = ledger.of(&Arc::from("key"));
    ledger.share();
    // Another thread books 2 units, and has not added them to the waiting units yet.
    let pending = used.pending.get().unwrap();
    pending.begun.add(period, [2000; 2]);
    used.usage.add(period, [2000; 2]);
    let gateway = Booker::new();
    let first = used.booking(period, &gateway);
    assert_eq!((first.units, first.known), ([0; 2], [0, 0]));
    used.booked(&first, [0, 0], period);
    pending.waiting.add(period, [2000; 2]);
    let second = used.booking(period, &gateway);
    assert_eq!((second.units, second.known), ([2000; 2], [0, 0]));
    used.booked(&second, [2000, 2000], period);
    assert_eq!(used.booking(period, &gateway).known, [2000, 2000]);
}

#[test]
fn late_totals_stay_in_their_window() {
    let ledger = Ledger::open(None).unwrap();
    ledger.share();
    let (november, december) = ("2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z");
    let used = ledger.of(&Arc::from("key"));
    used.book(Period::of(at(november)), 2.0);
    let booking = used.booking(Period::of(at(november)), &Booker::new());
    // The first call after midnight comes before the store's answer.
    used.book(Period::of(at(december)), 1.0);
    used.booked(&booking, [5000, 9000], Period::of(at(december)));
    check(&used, december, 1.0, 1.0);
}

#[test]
fn units_of_yesterday_are_not_booked_today() {
    let ledger = Ledger::open(None).unwrap();
    ledger.share();
    let yesterday = Period::of(at("2026-11-20T12:00:00Z"));
    let (night, today) = ("2026-11-21T00:05:00Z", Period::of(at("2026-11-21T00:05:00Z")));
    let used = ledger.of(&Arc::from("key"));
    let gateway = Booker::new();
    // The store is unreachable from noon until after midnight.
    used.book(yesterday, 3.0);
    assert_eq!(used.booking(yesterday, &gateway).units, [3000; 2]);
    used.book(yesterday, 800.0);
    used.book(today, 5.0);
    let first = used.booking(today, &gateway);
    assert_eq!((first.windows, first.units), (yesterday.windows(), [3000; 2]), "repeated as it was");
    used.booked(&first, [3000; 2], today);
    check(&used, night, 5.0, 808.0);
    let second = used.booking(today, &gateway);
    assert_eq!((second.windows, second.units), (today.windows(), [5000, 805_000]));
    assert_eq!(second.known, [0, 3000]);
    used.booked(&second, [5000, 808_000], today);
    check(&used, night, 5.0, 808.0);
    assert_eq!(used.booking(today, &gateway).known, [5000, 808_000]);
}

#[test]
fn totals_count_after_a_wrong_clock() {
    let ledger = Ledger::open(None).unwrap();
    ledger.share();
    let (ahead, right) = (Period::of(at("2026-12-05T00:00:00Z")), Period::of(at("2026-11-15T00:00:00Z")));
    let used = ledger.of(&Arc::from("key"));
    used.book(ahead, 1.0);
    used.book(right, 1.0);
    let booking = used.booking(right, &Booker::new());
    used.booked(&booking, [5000, 9000], right);
    check(&used, "2026-11-15T00:00:00Z", 5.0, 9.0);
}

#[test]
fn usage_is_over_once_all_is_booked() {
    let ledger = Ledger::open(None).unwrap();
    ledger.share();
    let (november, december) = ("2026-11-30T12:00:00Z", "2026-12-01T00:00:00Z");
    let (november, december) = (Period::of(at(november)), Period::of(at(december)));
    let used = ledger.of(&Arc::from("key"));
    assert!(used.is_over(november), "nothing was used");
    used.book(november, 2.0);
    assert_eq!((used.is_over(november), used.is_over(december)), (false, false), "units wait");
    let booking = used.booking(december, &Booker::new());
    assert!(!used.is_over(december), "the store has not answered");
    used.booked(&booking, [0, 0], december);
    assert!(used.is_over(december));
}
