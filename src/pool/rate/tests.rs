use std::ops::Range;

use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use super::*;
use crate::fair::queue::CALLERS;

/// A reproducible stream of random numbers (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 33) as u32
    }

    /// Returns a number from 0 to 1.
    fn unit(&mut self) -> f64 {
        f64::from(self.next()) / f64::from(1u32 << 31)
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.next() as usize % these.len()]
    }

    /// Returns the times of calls that come `per_second` times a second on average, for `seconds`: evenly, at random, or
    /// at random and often close together.
    fn calls(&mut self, per_second: f64, seconds: f64) -> Vec<f64> {
        let kind = self.one_of(&[0, 1, 2]);
        let mut at = self.unit() / per_second;
        std::iter::from_fn(|| {
            let now = at;
            at += match kind {
                0 => 1.0,
                1 => self.between(0.0, 2.0),
                _ => -(1.0 - self.unit()).ln(),
            } / per_second;
            (now < seconds).then_some(now)
        })
        .collect()
    }
}

fn of(caller: usize) -> CallContext {
    let deadline = Instant::now() + Duration::from_hours(1);
    CallContext { caller: CallerId::numbered(caller), is_background: false, ..CallContext::own(deadline) }
}

/// Returns the limit of a node whose bucket is empty, because the caller 9 has taken all tokens.
fn used_up(rps: u32) -> Arc<NodeRate> {
    let rate = NodeRate::new(rps);
    while rate.take(&of(9)) {}
    Arc::new(rate)
}

/// Makes calls of two callers at these times, in seconds. Returns how many of each caller got a token.
async fn served(rate: &Arc<NodeRate>, calls: [&[f64]; 2]) -> [usize; 2] {
    let start = Instant::now();
    let caller = async |caller: usize, calls: &[f64]| {
        let (context, mut waiting, mut served) = (of(caller), JoinSet::new(), 0);
        for at in calls {
            tokio::time::sleep_until(start + Duration::from_secs_f64(*at)).await;
            let now = Instant::now();
            if rate.take(&context) {
                served += 1;
            } else if rate.time_to_wait(&context, now).is_some() {
                let (rate, context) = (Arc::clone(rate), context.clone());
                waiting.spawn(async move { rate.wait(&context).await });
                // The call takes its place before the next one is made.
                tokio::task::yield_now().await;
            }
        }
        served + waiting.join_all().await.into_iter().filter(|served| *served).count()
    };
    let (one, other) = tokio::join!(caller(1, calls[0]), caller(2, calls[1]));
    [one, other]
}

/// Returns the fair share of each of two callers in `all` calls: half, or what the caller asks for if that is less. The
/// other gets the rest.
fn fair_shares(all: usize, asked: [usize; 2]) -> [usize; 2] {
    let half = all / 2;
    let share = |own: usize, other: usize| own.min(half.max(all - other.min(all)));
    [share(asked[0], asked[1]), share(asked[1], asked[0])]
}

fn callers_get_their_shares_under_a_thousand_schedules(seeds: Range<u64>) {
    for seed in seeds {
        let mut dice = Dice(seed);
        let rps = dice.one_of(&[2, 5, 20, 100, 300]);
        let mut asks = || {
            let (low, high) = dice.one_of(&[(0.05, 0.6), (0.3, 1.5), (1.0, 5.0)]);
            f64::from(rps) * dice.between(low, high)
        };
        let asks = [asks(), asks()];
        let seconds = dice.between(1.1, 1.5) * 200.0 / (asks[0] + asks[1]).min(f64::from(rps));
        let calls = asks.map(|asks| dice.calls(asks, seconds));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let served = runtime.block_on(async { served(&used_up(rps), [&calls[0], &calls[1]]).await });
        let (all, asked) = (served[0] + served[1], [calls[0].len(), calls[1].len()]);
        let shares = fair_shares(all, asked);
        assert!(all >= 200, "seed {seed}: {all} calls");
        for (served, share) in served.into_iter().zip(shares) {
            assert!(
                served * 10 >= share * 9 && served * 9 <= share * 10,
                "seed {seed}, {rps} a second: {asked:?} asked, {served} of {all} served, shares {shares:?}"
            );
        }
    }
}

#[test]
fn callers_get_their_shares_under_a_thousand_schedules_1() {
    callers_get_their_shares_under_a_thousand_schedules(0..500);
}

#[test]
fn callers_get_their_shares_under_a_thousand_schedules_2() {
    callers_get_their_shares_under_a_thousand_schedules(500..1000);
}

#[tokio::test(start_paused = true)]
async fn greedy_caller_waits_in_its_own_places() {
    let rate = used_up(20);
    let mut waiting = JoinSet::new();
    let wait = |waiting: &mut JoinSet<_>, caller| {
        let rate = Arc::clone(&rate);
        waiting.spawn(async move { (caller, rate.wait(&of(caller)).await) });
    };
    for _ in 0..FEW + 4 {
        wait(&mut waiting, 1);
    }
    for _ in 0..4 {
        assert_eq!(waiting.join_next().await.unwrap().unwrap(), (1, false), "at once, without a place");
    }
    for _ in 0..3 {
        wait(&mut waiting, 2);
    }
    let mut order = Vec::new();
    while let Some(Ok((caller, true))) = waiting.join_next().await {
        order.push(caller);
    }
    assert_eq!(order.len(), FEW + 3);
    assert_eq!(order[..6], [1, 2, 1, 2, 1, 2], "by turns, as both begin with the same credit");
}

#[tokio::test(start_paused = true)]
async fn nobody_passes_a_waiting_call() {
    let rate = used_up(2);
    let first = TaskTracker::new().spawn({
        let rate = Arc::clone(&rate);
        async move { rate.wait(&of(1)).await }
    });
    tokio::task::yield_now().await;
    // A call is free, but the waiting one has not been told yet.
    rate.limiter.give_back(1.0);
    let own = CallContext::own(Instant::now());
    assert!(!rate.take(&of(2)) && !rate.take(&own) && !rate.take_spare(0));
    assert!(first.await.unwrap());
    tokio::time::advance(Duration::from_secs(5)).await;
    assert!(rate.take_spare(1) && !rate.take_spare(1), "one is kept");
    assert!(rate.take(&own) && !rate.take(&of(2)));
}

#[tokio::test(start_paused = true)]
async fn only_a_caller_with_time_left_waits() {
    let rate = used_up(2);
    let now = Instant::now();
    assert_eq!(rate.time_to_wait(&of(1), now), Some(Duration::from_millis(500)));
    for deadline in [now, now + Duration::from_millis(400)] {
        assert!(!rate.wait(&CallContext { deadline, ..of(1) }).await);
        assert_eq!(rate.time_to_wait(&CallContext { deadline, ..of(1) }, now), None);
    }
    assert!(!rate.wait(&CallContext { is_background: true, ..of(1) }).await);
    assert_eq!(Instant::now(), now, "no time has passed");
    // Two others come before a call that had time enough.
    let deadline = now + Duration::from_millis(900);
    let late = async { rate.wait(&CallContext { deadline, ..of(9) }).await };
    let others = async { (rate.wait(&of(1)).await, rate.wait(&of(2)).await) };
    assert_eq!(tokio::join!(late, others), (false, (true, true)));
}

#[tokio::test(start_paused = true)]
async fn hanging_up_frees_the_place() {
    let rate = used_up(2);
    for _ in 0..100 {
        let gone = tokio::time::timeout(Duration::from_millis(1), rate.wait(&of(1))).await;
        assert!(gone.is_err());
    }
    assert!(lock(&rate.queue).waiting.is_empty());
    let first = async { (1, rate.wait(&of(1)).await) };
    let second = async { (2, rate.wait(&of(2)).await) };
    tokio::pin!(first, second);
    let served = tokio::select! {
        biased;
        served = &mut first => served,
        served = &mut second => served,
    };
    assert_eq!(served, (1, true), "the calls given up do not count");
    assert_eq!(second.await, (2, true));
    rate.give_back();
    assert!(rate.take(&of(1)));
}

#[tokio::test(start_paused = true)]
async fn memory_for_callers_is_bounded() {
    let rate = NodeRate::new(100_000);
    for caller in 0..10 * CALLERS {
        assert!(rate.take(&of(caller)));
        assert!(lock(&rate.queue).next.len() <= CALLERS);
    }
    let rate = used_up(1);
    let mut waiting = JoinSet::new();
    for caller in 0..1000 {
        let rate = Arc::clone(&rate);
        waiting.spawn(async move { rate.wait(&of(caller % 100)).await });
    }
    tokio::task::yield_now().await;
    let places = (1..=FEW).map(|nth| FEW.div_ceil(nth)).sum::<usize>();
    assert!(lock(&rate.queue).waiting.len() <= places, "{}", lock(&rate.queue).waiting.len());
}
