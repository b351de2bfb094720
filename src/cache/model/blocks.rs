//! Blocks and their absence in every level of detail, with many callers and calls at once.
//!
//! Nodes contradict themselves here from call to call, as real chains do not. The tests do not check which
//! answer counts. They check where an answer may come from, how old it may be, and that a settled entry is
//! served without a node.

use super::scene::{SentCall, SteppedCache, TestCaller, on_a_stepped_clock, options};
use super::*;
use crate::cache::CacheStatus;
use crate::error::Error;
use crate::methods::{BlockDetails, BlockEncoding, BlockQuery};

/// The finalized frontier at the beginning.
const FINAL: Slot = FIRST - 32;
/// The confirmed frontier at the beginning.
const CONFIRMED: Slot = FIRST - 2;
/// The greatest distance, in slots, of a requested slot from one of the two frontiers.
const AROUND: i64 = 4;

const SKIPPED: i32 = -32007;
const NOT_IN_STORAGE: i32 = -32009;
const NOT_YET: i32 = -32004;
const VERSION: i32 = -32015;

#[derive(Debug, Clone)]
enum ModelStep {
    Wait(u64),
    Frontier(Commitment, Slot),
    Ask(BlockQuery, bool),
    /// A call under way gets a block or another answer, with or without the confirmation of a second node.
    Lands(usize, TestAnswer, bool),
    Clear,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum TestAnswer {
    Block,
    Null,
    Error(i32),
    Fault,
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    use BlockDetails::{Accounts, Full, None as Nothing, Signatures};
    use BlockEncoding::{Base64, Json, JsonParsed};
    let shapes = vec![
        (Full, Json, Some(0)),
        (Full, Json, None),
        (Full, JsonParsed, Some(0)),
        (Full, Base64, Some(0)),
        (Accounts, Json, Some(0)),
        (Signatures, Json, None),
        (Nothing, Json, None),
    ];
    let commitment = || prop_oneof![Just(Commitment::Confirmed), Just(Commitment::Finalized)];
    let around = prop_oneof![3 => Just(FINAL), 1 => Just(CONFIRMED)];
    let query = (around, -AROUND..AROUND, proptest::sample::select(shapes), any::<bool>(), commitment());
    let query = query.prop_map(|(around, offset, (details, encoding, max_version), rewards, commitment)| {
        BlockQuery {
            slot: around.saturating_add_signed(offset),
            details,
            encoding,
            rewards,
            max_version,
            commitment,
        }
    });
    let errors = vec![-32001, NOT_YET, SKIPPED, NOT_IN_STORAGE, -32014, VERSION];
    let word = prop_oneof![
        6 => Just(TestAnswer::Block),
        4 => proptest::sample::select(errors).prop_map(TestAnswer::Error),
        1 => Just(TestAnswer::Null),
        2 => Just(TestAnswer::Fault),
    ];
    let wait = prop_oneof![3 => 0..400_u64, 3 => 0..12_000_u64, 1 => 0..70_000_u64, 1 => 0..90_000_000_u64];
    let step = prop_oneof![
        2 => wait.prop_map(ModelStep::Wait),
        2 => (commitment(), 0..4_u64).prop_map(|(c, slots)| ModelStep::Frontier(c, slots)),
        8 => (query, proptest::bool::weighted(0.03)).prop_map(|(query, bypass)| ModelStep::Ask(query, bypass)),
        7 => (any::<usize>(), word, any::<bool>()).prop_map(|(n, word, two)| ModelStep::Lands(n, word, two)),
        1 => Just(ModelStep::Clear),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Returns a block of one legacy transaction, as the node wrote it in answer to the call of this number.
fn block(query: &BlockQuery, mark: usize) -> String {
    let (slot, hash) = (query.slot, Pubkey([7; 32]));
    let head = format!(r#""blockHeight":{mark},"blockTime":{slot},"blockhash":"{hash}""#);
    let rewards =
        if query.rewards { format!(r#","rewards":[{{"lamports":{mark}}}]"#) } else { String::new() };
    // The wire form has one signature, whose bytes depend on the call.
    let signature = [u8::try_from(mark % 251).unwrap() + 1; 64];
    let wire = BASE64.encode([&[1][..], &signature, &[1, 0, 0]].concat());
    let signature = bs58::encode(signature).into_string();
    let of_meta = if query.rewards { "[]" } else { "null" };
    let short = r#""err":null,"fee":5,"postBalances":[1],"postTokenBalances":[],"preBalances":[6],"preTokenBalances":[]"#;
    let meta = match query.details {
        BlockDetails::Accounts if query.rewards => {
            format!(r#"{{{short},"rewards":[],"status":{{"Ok":null}}}}"#)
        }
        BlockDetails::Accounts => format!(r#"{{{short},"status":{{"Ok":null}}}}"#),
        _ => format!(r#"{{{short},"logMessages":[],"rewards":{of_meta},"status":{{"Ok":null}}}}"#),
    };
    let transaction = match (query.details, query.encoding) {
        (BlockDetails::Accounts, _) => format!(r#"{{"accountKeys":[{mark}],"signatures":["{signature}"]}}"#),
        (_, BlockEncoding::Base64) => format!(r#"["{wire}","base64"]"#),
        (_, encoding) => format!(
            r#"{{"message":{{"accountKeys":[{mark}],"recentBlockhash":"{}"}},"signatures":["{signature}"]}}"#,
            encoding.as_str()
        ),
    };
    let version = if query.max_version.is_some() { r#","version":"legacy""# } else { "" };
    let body = match query.details {
        BlockDetails::None => String::new(),
        BlockDetails::Signatures => format!(r#","signatures":["{signature}"]"#),
        _ => format!(r#","transactions":[{{"meta":{meta},"transaction":{transaction}{version}}}]"#),
    };
    format!("{{{head}{rewards}{body}}}")
}

/// Returns true if a kept block serves a query, by the table of docs/caching.md.
fn serves(kept: &BlockQuery, asked: &BlockQuery) -> bool {
    use BlockDetails::{Accounts, Full, None as Nothing, Signatures};
    let form = |query: &BlockQuery| (query.details, query.encoding, query.max_version);
    let details = match (kept.details, asked.details) {
        _ if form(kept) == form(asked) => true,
        (Full, Nothing | Signatures) => true,
        (Full, Accounts) => {
            kept.encoding == BlockEncoding::JsonParsed && kept.max_version == asked.max_version
        }
        // The blocks here hold legacy transactions only.
        (Full, Full) => kept.encoding == asked.encoding && asked.max_version.is_none(),
        _ => false,
    };
    details && (kept.rewards || !asked.rewards)
}

fn asked(call: &SentCall) -> BlockQuery {
    let Query::Block(query) = call.ask.query else { panic!("{:?}", call.ask) };
    query
}

/// The description of a call, and true if the slot was final when it was made.
#[derive(Debug)]
struct TestCall {
    query: BlockQuery,
    was_final: bool,
}

/// An answer that has landed.
struct Landed {
    number: usize,
    word: TestAnswer,
    /// True if a second node confirmed the answer.
    two: bool,
    /// True if the slot was above the frontier of the commitment.
    not_yet: bool,
    step: usize,
}

const MS: fn(u64) -> Duration = Duration::from_millis;
const DAY: Duration = Duration::from_hours(24);
const FOR_EVER: Duration = Duration::MAX;

struct Simulation {
    scene: SteppedCache<TestCall>,
    /// In the order in which they landed.
    landed: Vec<Landed>,
}

impl Simulation {
    async fn plays(mut self, steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
        for step in steps {
            let (mut at_hand, down) = (None, matches!(step, ModelStep::Lands(_, TestAnswer::Fault, _)));
            match step {
                ModelStep::Wait(ms) => advance(Duration::from_millis(ms)).await,
                ModelStep::Frontier(c, slots) => self.scene.moves_on(c, slots),
                ModelStep::Ask(query, bypass) => {
                    // A flight under way is joined, even if an answer for it has come meanwhile.
                    let joins = self
                        .scene
                        .under_way()
                        .iter()
                        .any(|at| asked(&self.scene.calls[*at]).slot == query.slot);
                    at_hand = (!bypass && !joins && self.is_at_hand(&query)).then_some(query);
                    let was_final = query.slot <= self.scene.frontier.slot(Commitment::Finalized);
                    self.scene.ask(TestCall { query, was_final }, Query::Block(query), options(bypass, None));
                }
                ModelStep::Lands(n, word, two) => {
                    let under_way = self.scene.under_way();
                    if let Some(number) = under_way.get(n % under_way.len().max(1)) {
                        self.lands(*number, word, two);
                    }
                }
                ModelStep::Clear => self.scene.clears(),
            }
            self.goes_on(at_hand, down).await?;
        }
        for _ in 0..8 {
            for number in self.scene.under_way() {
                self.lands(number, TestAnswer::Block, true);
            }
            self.goes_on(None, false).await?;
        }
        prop_assert!(!self.scene.anybody_waits(), "somebody waits for ever");
        Ok(())
    }

    fn lands(&mut self, number: usize, word: TestAnswer, two: bool) {
        let query = asked(&self.scene.calls[number]);
        let body = match word {
            TestAnswer::Block => Some(NodeReply::Result(block(&query, number).into())),
            TestAnswer::Null => Some(NodeReply::Result(Bytes::from_static(b"null"))),
            TestAnswer::Error(code) => {
                let body = format!(r#"{{"code":{code},"message":"{number}"}}"#).into();
                Some(NodeReply::Error { code, body })
            }
            TestAnswer::Fault => None,
        };
        let not_yet = query.slot > self.scene.frontier.slot(query.commitment);
        self.landed.push(Landed { number, word, two, not_yet, step: self.scene.step });
        self.scene.lands(number, body.map(|body| (body, FIRST)), two);
    }

    /// Runs all tasks and checks the answers. A node that is `down` fails second tries, too.
    async fn goes_on(&mut self, at_hand: Option<BlockQuery>, down: bool) -> Result<(), TestCaseError> {
        let step = self.scene.step;
        let mut answered = self.scene.settles().await;
        if down {
            for number in self.scene.just_sent() {
                self.lands(number, TestAnswer::Fault, false);
            }
            answered.extend(self.scene.settles().await);
        }
        if let Some(query) = at_hand {
            let hit = |(caller, answer): &(TestCaller<TestCall>, Result<CacheAnswer, Error>)| {
                caller.asked_in == step && matches!(answer, Ok(answer) if answer.status.is_hit())
            };
            prop_assert!(answered.iter().any(hit), "a node was asked for {:?}, which is kept", query);
        }
        for (caller, answer) in &answered {
            match answer {
                Ok(answer) => self.holds(caller, answer)?,
                Err(error) => self.may_fail(caller, error)?,
            }
        }
        Ok(())
    }

    /// Returns how long an answer may be served, and how long if no node answers. `None` if it is never kept.
    fn life(&self, landed: &Landed) -> Option<(Duration, Duration)> {
        let query = asked(&self.scene.calls[landed.number]);
        match landed.word {
            TestAnswer::Block | TestAnswer::Error(VERSION) if query.commitment == Commitment::Finalized => {
                Some((DAY, FOR_EVER))
            }
            TestAnswer::Block | TestAnswer::Error(VERSION) => Some((MS(2_000), MS(10_000))),
            // All slots here are near the frontier, where long-term storage may not be filled yet.
            TestAnswer::Error(SKIPPED) if landed.two && !landed.not_yet => Some((DAY, FOR_EVER)),
            TestAnswer::Error(SKIPPED | NOT_IN_STORAGE) if !landed.not_yet => {
                Some((MS(60_000), Duration::ZERO))
            }
            TestAnswer::Error(NOT_YET) if landed.not_yet => {
                let reached = self.scene.frontier.slot(query.commitment) >= query.slot;
                (!reached).then_some((MS(200), Duration::ZERO))
            }
            _ => None,
        }
    }

    /// Checks what every answer promises.
    fn holds(&self, caller: &TestCaller<TestCall>, answer: &CacheAnswer) -> Result<(), TestCaseError> {
        let told = || format!("{:?} {answer:?}", caller.call);
        let Some(landed) = self.source(answer) else {
            // Null proves nothing, so only callers who waited for it get it.
            let waited = matches!(
                answer.status,
                CacheStatus::Forwarded { stored: false, .. } | CacheStatus::Collapsed
            );
            prop_assert!(waited, "{}", told());
            return Ok(());
        };
        let TestCall { query: test_call, was_final } = &caller.call;
        let call = &self.scene.calls[landed.number];
        let said_of = asked(call);
        prop_assert!(said_of.slot == test_call.slot, "of another slot: {}", told());
        prop_assert!(call.era >= caller.era, "from before a clearing: {}", told());
        match &answer.payload {
            Payload::Result(body) => {
                let expected = block(test_call, landed.number);
                prop_assert_eq!(&body.whole()[..], expected.as_bytes(), "not what a node writes");
            }
            Payload::Error { code: VERSION, .. } => {
                let same = BlockQuery { commitment: test_call.commitment, ..said_of };
                prop_assert!(same == *test_call, "of another shape: {}", told());
            }
            Payload::Error { .. } => {}
        }
        // Final answers were asked for at finalized. Others serve callers at confirmed only, while the slot
        // was not final.
        let settled = said_of.commitment == Commitment::Finalized;
        let unsettled = test_call.commitment == Commitment::Confirmed && !was_final;
        let right = if landed.word == TestAnswer::Error(NOT_YET) {
            settled != unsettled
        } else {
            settled || unsettled
        };
        prop_assert!(right, "of another commitment: {}", told());
        let (age, life) = (call.sent_at.elapsed(), self.life(landed));
        let own = call.sent_at >= caller.asked_at;
        let may = match answer.status {
            CacheStatus::Hit { stale, .. } => !stale && life.is_some_and(|(fresh, _)| age <= fresh),
            CacheStatus::StaleIfError { .. } => life.is_some_and(|(_, in_fault)| age <= in_fault),
            // An absence from before the slot was final lives for a moment only, and so is never kept.
            CacheStatus::Collapsed => {
                let early = landed.word != TestAnswer::Block && test_call.slot > FINAL;
                own || early || life.is_none_or(|(fresh, _)| age <= fresh)
            }
            CacheStatus::Forwarded { stored, .. } => own && (!stored || life.is_some()),
            CacheStatus::Bypassed | CacheStatus::Batch { .. } => false,
        };
        prop_assert!(may, "after {:?} of {:?}: {}", age, life, told());
        let exactly =
            |block: &BlockQuery| BlockQuery { commitment: test_call.commitment, ..*block } == *test_call;
        let hidden = answer.status.is_hit()
            && landed.word != TestAnswer::Block
            && self.block_held(test_call.slot, DAY, caller.asked_in, exactly);
        prop_assert!(!hidden, "a block comes before its absence: {}", told());
        Ok(())
    }

    /// Returns the landed answer of which `answer` is made. `None` for null, which carries no number.
    fn source(&self, answer: &CacheAnswer) -> Option<&Landed> {
        let text = match &answer.payload {
            Payload::Result(body) => body.whole(),
            Payload::Error { body, .. } => body.clone(),
        };
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let number = text["blockHeight"].as_u64().or_else(|| text["message"].as_str()?.parse().ok())?;
        self.landed.iter().find(|landed| landed.number as u64 == number)
    }

    /// Checks that a caller gets no error if a block is held. A final block stands in for ever.
    fn may_fail(&self, caller: &TestCaller<TestCall>, error: &Error) -> Result<(), TestCaseError> {
        let failed = self.landed.iter().any(|landed| landed.word == TestAnswer::Fault);
        prop_assert!(failed || matches!(error, Error::TimedOut(_)), "{:?}: {:?}", caller.call, error);
        let test_call = &caller.call.query;
        let held =
            self.block_held(test_call.slot, FOR_EVER, caller.asked_in, |block| serves(block, test_call));
        prop_assert!(!held, "{:?}: {:?} where it is held", caller.call, error);
        Ok(())
    }

    /// Returns the landed answers that the cache may hold about a slot that was final from the start.
    fn kept(&self, slot: Slot) -> impl DoubleEndedIterator<Item = (&Landed, BlockQuery)> {
        self.landed.iter().filter_map(move |landed| {
            let call = &self.scene.calls[landed.number];
            let keepable = call.era == self.scene.era && call.said.as_ref().is_some_and(|said| said.keepable);
            (keepable && slot <= FINAL && asked(call).slot == slot).then(|| (landed, asked(call)))
        })
    }

    fn age(&self, landed: &Landed) -> Duration {
        self.scene.calls[landed.number].sent_at.elapsed()
    }

    /// Returns true if a final block of such a shape has been held since before this step and is at most this
    /// old.
    fn block_held(
        &self,
        slot: Slot,
        age: Duration,
        step: usize,
        shape: impl Fn(&BlockQuery) -> bool,
    ) -> bool {
        // An error about versions replaces a block.
        let versions = self.kept(slot).any(|(landed, _)| landed.word == TestAnswer::Error(VERSION));
        let mut blocks =
            self.kept(slot).filter(|(landed, _)| landed.word == TestAnswer::Block && landed.step < step);
        !versions && blocks.any(|(landed, block)| self.age(landed) <= age && shape(&block))
    }

    /// Returns true if a held entry must answer the query without a node.
    fn is_at_hand(&self, test_call: &BlockQuery) -> bool {
        let absence = |word| matches!(word, TestAnswer::Error(SKIPPED | NOT_IN_STORAGE));
        let absence = self.kept(test_call.slot).rfind(|(landed, _)| absence(landed.word));
        let absent =
            absence.is_some_and(|(landed, _)| self.age(landed) <= self.life(landed).unwrap_or_default().0);
        absent || self.block_held(test_call.slot, DAY, self.scene.step, |block| serves(block, test_call))
    }
}

fn plays(steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
    on_a_stepped_clock(async {
        let scene = SteppedCache::new(|_| ());
        Simulation { scene, landed: Vec::new() }.plays(steps).await
    })
}

proptest! {
    #[test]
    fn block_answers_keep_their_promises(steps in steps()) {
        plays(steps)?;
    }
}

#[test]
fn missing_block_is_fetched_once_the_frontier_arrives() {
    let (slot, commitment) = (CONFIRMED + 1, Commitment::Confirmed);
    let (details, encoding) = (BlockDetails::Full, BlockEncoding::Json);
    let asks = || {
        ModelStep::Ask(
            BlockQuery { slot, details, encoding, rewards: true, max_version: None, commitment },
            false,
        )
    };
    let not_yet = ModelStep::Lands(0, TestAnswer::Error(NOT_YET), false);
    plays(vec![asks(), not_yet, asks(), ModelStep::Frontier(commitment, 1), asks()]).unwrap();
}
