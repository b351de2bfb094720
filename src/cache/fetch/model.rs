//! The cache against a model of it that fits on a page, under random frontiers, answers, clocks and conditions.
//!
//! What no node is asked for is the model's whole: which answer may serve, which one takes another's place, what is taken
//! of what another gateway shares, and what a caller reads. Each answer's text is made of its question, its commitment and
//! its slot, so that a mix-up is seen.
//!
//! One thing happens at a time here. Many callers at once, and what is derived, are in `model/accounts.rs` and
//! `model/blocks.rs`, where no model says who gets which answer, and every answer is held to what it promises.

mod accounts;
mod blocks;
mod scene;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use proptest::prelude::*;
use tokio::time::{Duration, Instant, advance};
use tokio_util::task::TaskTracker;

use self::scene::on_a_stepped_clock;
use super::*;
use crate::cache::{Terms, Why};
use crate::config::Config;
use crate::frontier::Frontier;
use crate::jsonrpc::Params;
use crate::methods::{Method, Profile};
use crate::pool::Pool;
use crate::telemetry::{Metrics, Outcome};

const FIRST: Slot = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Account(u8),
    List,
    Balance,
    Fee,
    Votes,
}

use Question::{Account, Balance, Fee, List, Votes};

/// Something that happens.
#[derive(Debug, Clone)]
enum Step {
    /// Time passes, in milliseconds.
    Wait(u64),
    /// The node has come so much further at a commitment.
    Frontier(Commitment, Slot),
    /// Somebody asks, who may want a slot so far from the frontier; if a node must be asked, its answer is so far behind.
    Ask(Question, Commitment, Option<i64>, i64),
    /// An answer lands that was asked for so many milliseconds ago, at a slot so far behind the frontier.
    Lands(Question, Commitment, i64, u64),
    /// The same, and the cache was emptied meanwhile.
    LandsEmptied(Question, Commitment, i64, u64),
    /// Another gateway has shared such an answer.
    Shared(Question, Commitment, i64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let question =
        || prop_oneof![Just(Account(0)), Just(Account(1)), Just(List), Just(Balance), Just(Fee), Just(Votes)];
    let commitment = || proptest::sample::select(Commitment::ALL.to_vec());
    // Mostly near, at times as far as no believed answer is ahead.
    let behind = || prop_oneof![8 => -2..16_i64, 1 => -80..-60_i64];
    let step = prop_oneof![
        2 => prop_oneof![0..500_u64, 0..9_000_u64, 0..70_000_u64].prop_map(Step::Wait),
        3 => (commitment(), 0..8_u64).prop_map(|(c, slots)| Step::Frontier(c, slots)),
        6 => (question(), commitment(), proptest::option::weighted(0.3, -6..16_i64), behind())
            .prop_map(|(q, c, wanted, behind)| Step::Ask(q, c, wanted, behind)),
        3 => (question(), commitment(), behind(), 0..3_000_u64)
            .prop_map(|(q, c, behind, ms)| Step::Lands(q, c, behind, ms)),
        1 => (question(), commitment(), behind(), 0..3_000_u64)
            .prop_map(|(q, c, behind, ms)| Step::LandsEmptied(q, c, behind, ms)),
        2 => (question(), commitment(), behind(), prop_oneof![0..900_u64, 0..9_000_u64])
            .prop_map(|(q, c, behind, ms)| Step::Shared(q, c, behind, ms)),
    ];
    proptest::collection::vec(step, 1..60)
}

/// The one true answer to a question at a slot.
fn truth(question: Question, commitment: Commitment, slot: Slot) -> String {
    let mark = slot * 10 + commitment.index() as u64;
    let account = |n: u8| {
        let data = BASE64.encode([n; 5]);
        format!(
            r#"{{"data":["{data}","base64"],"executable":false,"lamports":{mark}{n},"owner":"{owner}","rentEpoch":0,"space":5}}"#,
            owner = Pubkey([0; 32])
        )
    };
    let value = match question {
        Account(n) => account(n),
        List => format!("[{},{}]", account(0), account(1)),
        Balance => format!(r#"{{"amount":"{mark}7"}}"#),
        Fee if slot.is_multiple_of(3) => "null".to_owned(),
        Fee => format!("{mark}8"),
        Votes => return format!(r#"{{"current":[{mark}],"delinquent":[]}}"#),
    };
    format!(r#"{{"context":{{"slot":{slot}}},"value":{value}}}"#)
}

fn query(question: Question, commitment: Commitment) -> Query {
    let c = commitment.as_str();
    let key = |n: u8| Pubkey([n; 32]).to_string();
    let config = format!(r#"{{"commitment":"{c}","encoding":"base64"}}"#);
    let (method, params) = match question {
        Account(n) => (Method::GetAccountInfo, format!(r#"["{}",{config}]"#, key(n))),
        List => (Method::GetMultipleAccounts, format!(r#"[["{}","{}"],{config}]"#, key(0), key(1))),
        Balance => (Method::GetTokenAccountBalance, format!(r#"["{}",{{"commitment":"{c}"}}]"#, key(2))),
        Fee => {
            // A legacy message of one signer, no further account and no instruction.
            let message = BASE64.encode([&[1, 0, 0, 1][..], &[9; 32], &[8; 32], &[0]].concat());
            (Method::GetFeeForMessage, format!(r#"["{message}",{{"commitment":"{c}"}}]"#))
        }
        Votes => (Method::GetVoteAccounts, format!(r#"[{{"commitment":"{c}"}}]"#)),
    };
    Query::parse(method, &Params::Array(Bytes::from(params)), Profile::Node).unwrap()
}

/// Where an answer to the question is kept: a list's also as each of its accounts'.
fn places(question: Question) -> Vec<Question> {
    if question == List { vec![List, Account(0), Account(1)] } else { vec![question] }
}

/// The model: what is held, and the README's table.
struct Model {
    held: BTreeMap<(Question, Commitment), (Slot, Instant)>,
}

impl Model {
    /// Whether what is held may serve as it is, while a fresh one is fetched, and in a fault.
    fn may(&self, q: Question, c: Commitment, frontier: Slot, now: Instant) -> Option<(Slot, bool, bool)> {
        let (slot, sent) = *self.held.get(&(q, c))?;
        let (age, behind) = (now - sent, if q == Votes { 0 } else { frontier.saturating_sub(slot) });
        let ms = |[a, b]: [[u64; 3]; 2]| Duration::from_millis(if q == Votes { b } else { a }[c.index()]);
        // Both bounds stretch by half at confirmed and finalized, and not at processed.
        let stretched =
            age <= ms([[400, 1_200, 7_500], [1_000, 3_000, 15_000]]) && behind <= [1, 3, 18][c.index()];
        let in_fault = c != Commitment::Processed && age <= ms([[0, 10_000, 60_000]; 2]);
        Some((slot, stretched, stretched || in_fault))
    }

    /// Whether what another gateway has kept is as good as a hit here: fresh, not below what is held, and believed.
    fn takes(&self, q: Question, c: Commitment, slot: Slot, age: Duration, frontier: Slot) -> bool {
        let ms = if q == Votes { [1_000, 2_000, 10_000] } else { [400, 800, 5_000] };
        let near = q == Votes || frontier.saturating_sub(slot) <= [1, 2, 12][c.index()];
        let fresh = near && age <= Duration::from_millis(ms[c.index()]);
        let null = q == Fee && slot.is_multiple_of(3);
        let below = self.held.get(&(q, c)).is_some_and(|held| held.0 > slot);
        fresh && !below && !null && slot <= frontier + 64
    }

    /// An answer lands; the slot that whoever waits for it is shown.
    fn lands(
        &mut self,
        q: Question,
        c: Commitment,
        slot: Slot,
        sent: Instant,
        frontier: Slot,
        now: Instant,
    ) -> Slot {
        let kept = (q == Votes || slot <= frontier + 64) && !(q == Fee && slot.is_multiple_of(3));
        for place in places(q) {
            let ahead = self.may(place, c, frontier, now).filter(|(held, _, serves)| *held > slot && *serves);
            // At processed, what would not be kept is not held to what is.
            if let Some((held, ..)) = ahead.filter(|_| place == q && (kept || c != Commitment::Processed)) {
                return held;
            }
            if ahead.is_none() && kept {
                self.held.insert((place, c), (slot, sent));
            }
        }
        slot
    }
}

/// The cache, and what it needs to be asked.
struct Real {
    cache: Arc<Cache>,
    frontier: Arc<Frontier>,
}

impl Real {
    fn new() -> Self {
        let config = scene::CONFIG.clone();
        let (metrics, frontier) = (Metrics::new(), Arc::new(Frontier::new(1)));
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).unwrap());
        let cache = Cache::new(&config, Arc::clone(&frontier), pool, metrics, TaskTracker::new(), None);
        Self { cache, frontier }
    }

    fn at(&self, commitment: Commitment, behind: i64) -> Slot {
        self.frontier.slot(commitment).saturating_add_signed(-behind)
    }

    async fn lands(&self, q: Question, c: Commitment, slot: Slot, sent_at: Instant) -> (Slot, String) {
        self.takes_in(q, c, &reply(q, c, slot, sent_at), self.generation(), Origin::Node).await
    }

    /// An answer that was asked for in this generation.
    async fn takes_in(
        &self,
        q: Question,
        c: Commitment,
        reply: &Reply,
        of: u64,
        origin: Origin,
    ) -> (Slot, String) {
        let query = query(q, c);
        let call = asked(&self.cache, &query);
        let landed = self.cache.take_in(&call.plan, reply, of, origin).await.unwrap();
        told(&self.cache.land(&call, &landed, true).await.unwrap())
    }

    /// What is found in the shared store, if it is taken.
    async fn shared(
        &self,
        q: Question,
        c: Commitment,
        slot: Slot,
        sent_at: Instant,
    ) -> Option<(Slot, String)> {
        let (query, reply) = (query(q, c), reply(q, c, slot, sent_at));
        let takes = self.cache.takes(&asked(&self.cache, &query).plan, &reply, None);
        if takes { Some(self.takes_in(q, c, &reply, self.generation(), Origin::Shared).await) } else { None }
    }

    fn generation(&self) -> u64 {
        self.cache.generation.number()
    }

    /// What is kept, if it may serve.
    async fn kept(&self, q: Question, c: Commitment, wanted: Option<Slot>) -> Option<(Slot, String)> {
        let query = query(q, c);
        let plan = asked(&self.cache, &query).plan;
        let (entry, outcome) = match self.cache.look_up(&plan, wanted) {
            Found::Fresh(entry) => (entry, Outcome::Hit),
            Found::Stale(entry) => (entry, Outcome::Stale),
            Found::Expired | Found::Nothing => return None,
        };
        Some(told(&self.cache.hit(&query, &entry.entry(), outcome).await.unwrap()))
    }
}

fn reply(q: Question, c: Commitment, slot: Slot, sent_at: Instant) -> Reply {
    let body = NodeReply::Result(truth(q, c, slot).into());
    Reply { node: 0, body, sent_at, slot, confirmed: true }
}

fn asked<'a>(cache: &Cache, query: &'a Query) -> Asked<'a> {
    let plan = Plan::new(query, &cache.frontier, &cache.sizes);
    let terms = Terms { bypass: false, floor: None, deadline: Instant::now(), trace: Trace::default() };
    Asked { query, plan, why: Why::Miss, terms }
}

fn told(answer: &Answer) -> (Slot, String) {
    let Payload::Result(body) = &answer.payload else { panic!("{answer:?}") };
    (answer.slot, String::from_utf8(body.whole().to_vec()).unwrap())
}

async fn play(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (real, mut model) = (Real::new(), Model { held: BTreeMap::new() });
    for (c, slot) in Commitment::ALL.into_iter().zip([FIRST, FIRST - 2, FIRST - 32]) {
        real.frontier.probed(0, c, slot, Instant::now());
    }
    let mut shown: BTreeMap<(Question, Commitment), (Slot, Instant)> = BTreeMap::new();
    for step in steps {
        let now = Instant::now();
        let (q, c, told, expected) = match step {
            Step::Wait(ms) => {
                advance(Duration::from_millis(ms)).await;
                continue;
            }
            Step::Frontier(c, slots) => {
                real.frontier.probed(0, c, real.frontier.slot(c) + slots, now);
                continue;
            }
            Step::Ask(q, c, wanted, behind) => {
                let (frontier, slot) = (real.frontier.slot(c), real.at(c, behind));
                let wanted = wanted.map(|behind| real.at(c, behind));
                let held = model.may(q, c, frontier, now);
                let serves =
                    held.filter(|(slot, stretched, _)| *stretched && wanted.is_none_or(|w| *slot >= w));
                let kept = real.kept(q, c, wanted).await;
                prop_assert_eq!(
                    kept.as_ref().map(|kept| kept.0),
                    serves.map(|held| held.0),
                    "{:?} {:?}",
                    q,
                    c
                );
                match (kept, serves) {
                    (Some(kept), Some(held)) => (q, c, kept, held.0),
                    _ => {
                        (q, c, real.lands(q, c, slot, now).await, model.lands(q, c, slot, now, frontier, now))
                    }
                }
            }
            Step::Lands(q, c, behind, ms) => {
                let (frontier, slot) = (real.frontier.slot(c), real.at(c, behind));
                let sent = now.checked_sub(Duration::from_millis(ms)).unwrap_or(now);
                (q, c, real.lands(q, c, slot, sent).await, model.lands(q, c, slot, sent, frontier, now))
            }
            Step::LandsEmptied(q, c, behind, ms) => {
                let (of, slot) = (real.generation(), real.at(c, behind));
                let sent = now.checked_sub(Duration::from_millis(ms)).unwrap_or(now);
                real.cache.clear();
                model.held.clear();
                shown.clear();
                let told = real.takes_in(q, c, &reply(q, c, slot, sent), of, Origin::Node).await;
                // It is an answer to whoever waited for it, and to nobody after.
                prop_assert_eq!(told, (slot, truth(q, c, slot)));
                continue;
            }
            Step::Shared(q, c, behind, ms) => {
                let (frontier, slot, age) =
                    (real.frontier.slot(c), real.at(c, behind), Duration::from_millis(ms));
                let sent = now.checked_sub(age).unwrap_or(now);
                let takes = model.takes(q, c, slot, age, frontier);
                let told = real.shared(q, c, slot, sent).await;
                prop_assert_eq!(told.is_some(), takes, "shared: {:?} {:?}", q, c);
                let Some(told) = told else { continue };
                (q, c, told, model.lands(q, c, slot, sent, frontier, now))
            }
        };
        let (slot, text) = told;
        prop_assert_eq!(slot, expected, "{:?} {:?}", q, c);
        prop_assert_eq!(text, truth(q, c, slot), "another question's answer, or another commitment's");
        // Whatever the model says: not behind what was shown while that may still be served.
        if let Some((before, at)) = shown.get(&(q, c)).filter(|_| c != Commitment::Processed && q != Fee) {
            let held = [0, 10, 60][c.index()];
            prop_assert!(slot >= *before || now - *at > Duration::from_secs(held), "back from {}", before);
        }
        let sent = model
            .held
            .get(&(q, c))
            .filter(|held| held.0 == slot)
            .map_or(now - Duration::from_mins(2), |held| held.1);
        shown.insert((q, c), (slot, sent));
        // A higher slot of an earlier call takes the place of what was shown, and may be served less long.
        for place in places(q) {
            if let (Some((_, at)), Some(held)) = (shown.get_mut(&(place, c)), model.held.get(&(place, c))) {
                *at = held.1.min(*at);
            }
        }
    }
    Ok(())
}

/// 512 cases, and so many more as `PROPTEST_CASES` is above 256.
fn twice_as_many_as_usual() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases * 2, ..usual }
}

proptest! {
    #![proptest_config(twice_as_many_as_usual())]

    #[test]
    fn the_cache_does_what_its_model_does(steps in steps()) {
        on_a_stepped_clock(play(steps))?;
    }
}
