//! Callers that request accounts from the gateway at planned times, and check each answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use slotfront_lab::dice::Dice;
use slotfront_lab::mainnet::{self, Clock, Writes};
use slotfront_lab::wire::{BoxError, Connection, HttpResponse, Target};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

/// The number N such that, on average, one call in N is at finalized. The other calls are at confirmed.
const FINALIZED_OF: u64 = 5;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The URL of the gateway: `http://host:port/v3/KEY`
    target: Target,
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The number of calls a second that all callers send together
    #[arg(long, default_value_t = 20)]
    rate: u64,
    #[arg(long, default_value_t = 10)]
    callers: u64,
}

/// The results of all callers.
#[derive(Default)]
struct Tally {
    micros: Vec<u64>,
    /// The number of answers from the cache.
    hits: u64,
    /// The number of answers that were carried: served at a newer slot than they were fetched at.
    carried: u64,
    wrong: u64,
    /// The lag of each answer at confirmed behind the chain, in slots and in milliseconds.
    behind: Lags,
    /// The lag of each carried answer at confirmed behind the chain, in slots and in milliseconds.
    tip_behind: Lags,
}

#[derive(Default)]
struct Lags {
    slots: Vec<u64>,
    ms: Vec<u64>,
}

#[derive(Deserialize)]
struct Answer {
    result: AnswerResult,
}

#[derive(Deserialize)]
struct AnswerResult {
    context: Context,
    value: Account,
}

#[derive(Deserialize)]
struct Context {
    slot: u64,
}

#[derive(Deserialize)]
struct Account {
    lamports: u64,
}

/// Runs the callers for the requested number of seconds, and prints the results.
pub(crate) async fn run(clock: Clock, options: Options) -> Result<(), BoxError> {
    let (tally, options) = (Arc::<Mutex<Tally>>::default(), Arc::new(options));
    let tasks = TaskTracker::new();
    let callers: Vec<_> = (0..options.callers)
        .map(|caller| tasks.spawn(call(clock, Arc::clone(&options), caller, Arc::clone(&tally))))
        .collect();
    for caller in callers {
        caller.await??;
    }
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    let Tally { micros, hits, carried, wrong, behind, tip_behind } = &mut *tally;
    println!("calls {}\nhits {hits}\ncarried {carried}\nwrong {wrong}", micros.len());
    for (name, values) in [
        ("micros", micros),
        ("behind_slots", &mut behind.slots),
        ("behind_ms", &mut behind.ms),
        ("tip_behind_slots", &mut tip_behind.slots),
        ("tip_behind_ms", &mut tip_behind.ms),
    ] {
        values.sort_unstable();
        let part = |percent: usize| values.get((values.len() * percent / 100).min(values.len().max(1) - 1));
        for percent in [50, 99, 100] {
            println!("{name}_p{percent} {}", part(percent).copied().unwrap_or(0));
        }
    }
    Ok(())
}

/// Sends the calls of one caller.
async fn call(
    clock: Clock,
    options: Arc<Options>,
    caller: u64,
    tally: Arc<Mutex<Tally>>,
) -> Result<(), BoxError> {
    let (began, accounts) = (Instant::now(), mainnet::asked());
    let mut connection = Connection::open(&options.target).await?;
    let mut dice = Dice::new(17, caller);
    for number in (caller..options.rate * options.seconds).step_by(usize::try_from(options.callers)?) {
        sleep_until(began + Duration::from_secs(number) / u32::try_from(options.rate)?).await;
        let (address, writes) = &accounts[usize::try_from(dice.below(accounts.len() as u64))?];
        let commitment = if dice.below(FINALIZED_OF) == 0 { "finalized" } else { "confirmed" };
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":["{address}",{{"encoding":"base64","commitment":"{commitment}"}}]}}"#
        );
        let (sent_ms, sent) = (mainnet::now_ms(), Instant::now());
        let response = connection.post(&body).await?;
        let micros = u64::try_from(sent.elapsed().as_micros())?;
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.micros.push(micros);
        tally.note(clock, &response, *writes, (commitment == "confirmed").then_some(sent_ms));
    }
    Ok(())
}

impl Tally {
    /// Counts an answer. `sent_ms` is the time at which a call at confirmed was sent, and `None` for a call at
    /// finalized.
    fn note(&mut self, clock: Clock, response: &HttpResponse, writes: Writes, sent_ms: Option<u64>) {
        let is_carried = response.cache_status.contains("carried");
        self.hits += u64::from(response.cache_status.contains("hit"));
        self.carried += u64::from(is_carried);
        let Ok(Answer { result: AnswerResult { context, value } }) = serde_json::from_slice(&response.body)
        else {
            self.wrong += 1;
            return;
        };
        if value.lamports != writes.last(context.slot) {
            self.wrong += 1;
        }
        let Some(sent_ms) = sent_ms else { return };
        let slots = clock.newest("confirmed", sent_ms).saturating_sub(context.slot);
        // The age of the oldest block that the answer lacks.
        let ms = clock.ms_since_confirmed(context.slot + 1, sent_ms);
        self.behind.push(slots, ms);
        if is_carried {
            self.tip_behind.push(slots, ms);
        }
    }
}

impl Lags {
    fn push(&mut self, slots: u64, ms: u64) {
        self.slots.push(slots);
        self.ms.push(ms);
    }
}
