//! The cache against a small model of it, under random frontiers, answers, clocks and conditions.
//!
//! The model covers what needs no node: which answer may serve, which one replaces another, which shared
//! answers are accepted, and what a caller gets. The text of each answer is made of its question, commitment
//! and slot, so that a mix-up shows.
//!
//! Events happen one at a time here. Many simultaneous callers, and derived answers, are tested in
//! `model/accounts.rs` and `model/blocks.rs`. Those tests do not predict which answer a caller gets, but
//! check what every answer promises.

mod accounts;
mod blocks;
mod overtaken;
mod page;
mod scene;
mod waits;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::advance;

use self::page::{Arrival, Model, accounts, life, places};
use self::scene::on_a_stepped_clock;
use super::answer::{Role, answer_from_fetch};
use super::basis::Tolerance;
use super::derive::list::joined;
use super::entry::Payload;
use super::fetcher::AnswerSource;
use super::lookup::CacheLookup;
use super::*;
use crate::config::Config;
use crate::jsonrpc::Params;
use crate::methods::{Commitment, Method, Profile, Pubkey, Slot};
use crate::node::NodeReply;
use crate::pool::{PoolReply, UpstreamRequest};

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

/// An event.
#[derive(Debug, Clone)]
enum ModelStep {
    /// Time passes, in milliseconds.
    Wait(u64),
    /// The node's slot at a commitment grows by this number.
    Frontier(Commitment, Slot),
    /// A caller asks. It may want a slot, as a distance behind the frontier. A node's answer is the second
    /// distance behind.
    Ask(Question, Commitment, Option<i64>, i64),
    /// An answer arrives, from this many slots behind the frontier, that was asked for this many milliseconds
    /// ago.
    Lands(Question, Commitment, i64, u64),
    /// An answer arrives as by `Lands`, after the cache was purged.
    LandsEmptied(Question, Commitment, i64, u64),
    /// Another gateway has shared an answer as by `Lands`.
    Shared(Question, Commitment, i64, u64),
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let question =
        || prop_oneof![Just(Account(0)), Just(Account(1)), Just(List), Just(Balance), Just(Fee), Just(Votes)];
    let commitment = || proptest::sample::select(Commitment::ALL.to_vec());
    // Most slots are near the frontier. A few are further ahead than any believed answer.
    let behind = || prop_oneof![8 => -2..16_i64, 1 => -80..-60_i64];
    let step = prop_oneof![
        2 => prop_oneof![0..500_u64, 0..9_000_u64, 0..70_000_u64].prop_map(ModelStep::Wait),
        3 => (commitment(), 0..8_u64).prop_map(|(c, slots)| ModelStep::Frontier(c, slots)),
        6 => (question(), commitment(), proptest::option::weighted(0.3, -6..16_i64), behind())
            .prop_map(|(q, c, wanted, behind)| ModelStep::Ask(q, c, wanted, behind)),
        3 => (question(), commitment(), behind(), 0..3_000_u64)
            .prop_map(|(q, c, behind, ms)| ModelStep::Lands(q, c, behind, ms)),
        1 => (question(), commitment(), behind(), 0..3_000_u64)
            .prop_map(|(q, c, behind, ms)| ModelStep::LandsEmptied(q, c, behind, ms)),
        2 => (question(), commitment(), behind(), prop_oneof![0..900_u64, 0..9_000_u64])
            .prop_map(|(q, c, behind, ms)| ModelStep::Shared(q, c, behind, ms)),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Returns the one true answer to a question at a slot.
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
        Balance => (Method::GetTokenAccountBalance, format!(r#"["{}",{{"commitment":"{c}"}}]"#, key(0))),
        Fee => {
            // A legacy message of one signer, no further account and no instruction.
            let message = BASE64.encode([&[1, 0, 0, 1][..], &[9; 32], &[8; 32], &[0]].concat());
            (Method::GetFeeForMessage, format!(r#"["{message}",{{"commitment":"{c}"}}]"#))
        }
        Votes => (Method::GetVoteAccounts, format!(r#"[{{"commitment":"{c}"}}]"#)),
    };
    Query::parse(method, &Params::Array(Bytes::from(params)), Profile::Node).unwrap()
}

/// The real cache and its frontier.
struct RealCache {
    cache: Arc<Cache>,
    frontier: Arc<Frontier>,
}

impl RealCache {
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
        let floor = self.floor(q, c);
        self.takes_in(q, c, &reply(q, c, slot, sent_at), floor, self.generation(), AnswerSource::Node).await
    }

    fn floor(&self, q: Question, c: Commitment) -> Slot {
        let plan = asked(&self.cache, &query(q, c), &Charge::free()).plan;
        if c == Commitment::Processed { 0 } else { self.cache.lookup.held.floor(&plan.key, Instant::now()) }
    }

    /// Processes an answer that was asked for in generation `of`.
    async fn takes_in(
        &self,
        q: Question,
        c: Commitment,
        reply: &PoolReply,
        floor: Slot,
        of: u64,
        origin: AnswerSource,
    ) -> (Slot, String) {
        let query = query(q, c);
        let charge = Charge::free();
        let call = asked(&self.cache, &query, &charge);
        let landed = self.cache.fetcher.accept(&call.plan, reply, floor, of, origin).await.unwrap();
        told(&answer_from_fetch(&self.cache, &call, &landed, Role::Leader).await.ok().unwrap())
    }

    /// Processes an answer from the shared store, if it is accepted.
    async fn shared(
        &self,
        q: Question,
        c: Commitment,
        slot: Slot,
        sent_at: Instant,
    ) -> Option<(Slot, String)> {
        let (query, reply) = (query(q, c), reply(q, c, slot, sent_at));
        let takes =
            self.cache.lookup.accepts_shared(&asked(&self.cache, &query, &Charge::free()).plan, &reply, None);
        if takes {
            Some(self.takes_in(q, c, &reply, 0, self.generation(), AnswerSource::Shared).await)
        } else {
            None
        }
    }

    fn generation(&self) -> u64 {
        self.cache.lookup.held.generation()
    }

    /// Returns the held answer, if it may be served.
    async fn kept(&self, q: Question, c: Commitment, wanted: Option<Slot>) -> Option<(Slot, String)> {
        let query = query(q, c);
        let charge = Charge::free();
        let call = asked(&self.cache, &query, &charge);
        let (CacheLookup::Hit(entry) | CacheLookup::Stale(entry)) =
            self.cache.lookup.look_up(&call.plan, wanted)
        else {
            return None;
        };
        Some(told(&self.cache.renderer.render(&call, &entry, Basis::Found).await.unwrap().unwrap()))
    }
}

fn reply(q: Question, c: Commitment, slot: Slot, sent_at: Instant) -> PoolReply {
    let body = NodeReply::Result(truth(q, c, slot).into());
    PoolReply { node: 0, body, sent_at, slot, confirmed: true }
}

fn asked<'a>(cache: &Cache, query: &'a Query, charge: &'a Charge) -> PlannedCall<'a> {
    let plan = cache.lookup.plan(query);
    let options = scene::options(false, None);
    let (reason, arrived_at, is_retry) = (ForwardReason::Miss, Instant::now(), false);
    PlannedCall { query, plan, reason, options, charge, conditions: &NoConditions, arrived_at, is_retry }
}

fn told(answer: &CacheAnswer) -> (Slot, String) {
    let Payload::Result(body) = &answer.payload else { panic!("{answer:?}") };
    (answer.meta.slot, String::from_utf8(body.whole().to_vec()).unwrap())
}

async fn play(steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
    let (real, mut model) = (RealCache::new(), Model::default());
    for (c, slot) in Commitment::ALL.into_iter().zip([FIRST, FIRST - 2, FIRST - 32]) {
        real.frontier.probed(0, c, slot, Instant::now());
    }
    let mut shown: BTreeMap<(Question, Commitment), (Slot, Instant)> = BTreeMap::new();
    let mut accounts_shown = AccountsShown::new();
    for step in steps {
        let now = Instant::now();
        let mut is_hit = false;
        let (q, c, told, expected) = match step {
            ModelStep::Wait(ms) => {
                advance(Duration::from_millis(ms)).await;
                continue;
            }
            ModelStep::Frontier(c, slots) => {
                real.frontier.probed(0, c, real.frontier.slot(c) + slots, now);
                continue;
            }
            ModelStep::Ask(q, c, wanted, behind) => {
                let (frontier, slot) = (real.frontier.slot(c), real.at(c, behind));
                let wanted = wanted.map(|behind| real.at(c, behind));
                let held = model.may(q, c, frontier, now);
                let floor = wanted.max(Some(model.floor(q, c, now)));
                let serves = held.filter(|(slot, stretched, _)| *stretched && Some(*slot) >= floor);
                let kept = real.kept(q, c, wanted).await;
                prop_assert_eq!(
                    kept.as_ref().map(|kept| kept.0),
                    serves.map(|held| held.0),
                    "{:?} {:?}",
                    q,
                    c
                );
                if let (Some(kept), Some(held)) = (kept, serves) {
                    is_hit = true;
                    model.shows(q, c, held.0, now);
                    (q, c, kept, held.0)
                } else {
                    let at = Arrival { slot, sent: now, frontier, floor: model.asked_floor(q, c, now), now };
                    (q, c, real.lands(q, c, slot, now).await, model.lands(q, c, at))
                }
            }
            ModelStep::Lands(q, c, behind, ms) => {
                let (frontier, slot) = (real.frontier.slot(c), real.at(c, behind));
                let sent = now.checked_sub(Duration::from_millis(ms)).unwrap_or(now);
                let at = Arrival { slot, sent, frontier, floor: model.asked_floor(q, c, now), now };
                (q, c, real.lands(q, c, slot, sent).await, model.lands(q, c, at))
            }
            ModelStep::LandsEmptied(q, c, behind, ms) => {
                let (of, slot, floor) = (real.generation(), real.at(c, behind), real.floor(q, c));
                let sent = now.checked_sub(Duration::from_millis(ms)).unwrap_or(now);
                real.cache.purger().clear();
                model = Model::default();
                shown.clear();
                accounts_shown.clear();
                let told = real.takes_in(q, c, &reply(q, c, slot, sent), floor, of, AnswerSource::Node).await;
                // It is the answer of the callers who waited for it, and of no later one.
                prop_assert_eq!(told, (slot, truth(q, c, slot)));
                continue;
            }
            ModelStep::Shared(q, c, behind, ms) => {
                let (frontier, slot, age) =
                    (real.frontier.slot(c), real.at(c, behind), Duration::from_millis(ms));
                let sent = now.checked_sub(age).unwrap_or(now);
                let takes = model.takes(q, c, slot, age, frontier);
                let told = real.shared(q, c, slot, sent).await;
                prop_assert_eq!(told.is_some(), takes, "shared: {:?} {:?}", q, c);
                let Some(told) = told else { continue };
                (q, c, told, model.lands(q, c, Arrival { slot, sent, frontier, floor: 0, now }))
            }
        };
        let (slot, text) = told;
        prop_assert_eq!(slot, expected, "{:?} {:?}", q, c);
        prop_assert_eq!(text, truth(q, c, slot), "another question's answer, or another commitment's");
        // An answer is not behind a shown one that may still be served, whatever the model says.
        if let Some((before, at)) = shown.get(&(q, c)).filter(|_| c != Commitment::Processed && q != Fee) {
            let held = [0, 10, 60][c.index()];
            prop_assert!(slot >= *before || now - *at > Duration::from_secs(held), "back from {}", before);
        }
        // An answer that is not believed raises no floor.
        if slot <= real.frontier.slot(c) + 64 {
            is_not_behind(&mut accounts_shown, (q, c), slot, is_hit)?;
        }
        let sent = model
            .held
            .get(&(q, c))
            .filter(|held| held.0 == slot)
            .map_or(now - Duration::from_mins(2), |held| held.1);
        shown.insert((q, c), (slot, sent));
        // A higher slot from an earlier call may replace the shown answer, and then may be served for a
        // shorter time.
        for place in places(q) {
            if let (Some((_, at)), Some(held)) = (shown.get_mut(&(place, c)), model.held.get(&(place, c))) {
                *at = held.1.min(*at);
            }
        }
    }
    Ok(())
}

/// The accounts that answers showed, each with the last slot and moment.
type AccountsShown = BTreeMap<(u8, Commitment), (Slot, Instant)>;

/// Asserts that a hit is not behind the slot at which any of its accounts was shown last.
fn is_not_behind(
    shown: &mut AccountsShown,
    (q, c): (Question, Commitment),
    slot: Slot,
    is_hit: bool,
) -> Result<(), TestCaseError> {
    for n in accounts(q) {
        let before = shown.insert((*n, c), (slot, Instant::now())).filter(|_| is_hit);
        let before = before.filter(|(_, at)| at.elapsed() <= life(c));
        let holds = before.is_none_or(|(before, _)| slot >= before);
        prop_assert!(holds, "{:?} {:?}: account {} back from {:?}", q, c, n, before);
    }
    Ok(())
}

/// Twice the usual number of cases, which `PROPTEST_CASES` sets.
fn twice_as_many_as_usual() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases * 2, ..usual }
}

proptest! {
    #![proptest_config(twice_as_many_as_usual())]

    #[test]
    fn cache_matches_its_model(steps in steps()) {
        on_a_stepped_clock(play(steps))?;
    }
}

#[test]
fn assembled_list_never_replaces_a_newer_one() {
    on_a_stepped_clock(async {
        let (real, c, now) = (RealCache::new(), Commitment::Finalized, Instant::now());
        real.frontier.probed(0, c, FIRST, now);
        for n in [0, 1] {
            real.lands(Account(n), c, FIRST, now).await;
        }
        let query = query(List, c);
        let Query::Accounts(query) = &query else { panic!("{query:?}") };
        let list = || {
            let singles = real
                .cache
                .lookup
                .find_singles(query, Tolerance::Fresh, None)
                .into_iter()
                .collect::<Option<Vec<_>>>();
            joined(&singles.unwrap()).unwrap()
        };
        let made = list();
        assert!(!real.cache.lookup.holds_newer(query, &made));
        // Another call brings a newer list between the check and the insert.
        real.lands(List, c, FIRST + 1, now).await;
        assert!(real.cache.lookup.insert_list(query, made).is_none());
        assert_eq!(real.cache.lookup.insert_list(query, list()).unwrap().meta.slot, FIRST + 1);
    });
}
