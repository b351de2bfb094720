//! Random calls, each compared with a node's answer at the slot that the reply shows.

use serde_json::{Value, json};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront_testkit::TestGateway;

use super::{SLICES, Truth, answer};

/// A generator of random numbers with a fixed seed, so that a failed test can be repeated.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % n
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Returns a random call of one of those methods whose cached answers can also serve other calls.
fn random_call(draw: &mut Draw, gateway: &TestGateway) -> (&'static str, Value, Commitment) {
    let there = gateway.cluster.examples();
    let commitment = draw.of(&Commitment::ALL);
    let mut accounts =
        vec![there.nonce_account, there.frozen_token_account, there.uninitialized_token_account];
    accounts.extend(there.wallets.iter().take(3).chain(&there.token_accounts[..3]).chain(&there.mints));
    accounts
        .extend(there.passing_accounts.iter().chain(&there.lookup_tables).chain(&there.stake_accounts[..2]));
    let account = |draw: &mut Draw| draw.of(&accounts).to_string();
    let mut config = json!({"commitment": commitment.as_str()});
    let method = draw.of(&[
        "getAccountInfo",
        "getAccountInfo",
        "getMultipleAccounts",
        "getMultipleAccounts",
        "getTokenAccountBalance",
        "getVoteAccounts",
        "getBlock",
        "getBlock",
        "getRecentPerformanceSamples",
    ]);
    let params = match method {
        "getTokenAccountBalance" => json!([account(draw), config]),
        "getRecentPerformanceSamples" => json!([draw.below(30)]),
        "getVoteAccounts" => {
            if draw.one_in(2) {
                config["keepUnstakedDelinquents"] = true.into();
            }
            if !draw.one_in(3) {
                let mut votes = there.vote_accounts.clone();
                votes.extend([there.delinquent_vote_account, there.unstaked_vote_account, there.wallets[0]]);
                config["votePubkey"] = draw.of(&votes).to_string().into();
            }
            json!([config])
        }
        "getBlock" => {
            config["commitment"] = draw.of(&["confirmed", "finalized"]).into();
            config["transactionDetails"] = draw.of(&["full", "accounts", "signatures", "none"]).into();
            config["encoding"] = draw.of(&["json", "jsonParsed", "base64", "base58"]).into();
            config["rewards"] = draw.one_in(2).into();
            if !draw.one_in(3) {
                config["maxSupportedTransactionVersion"] = 0.into();
            }
            let back = u64::try_from(draw.below(4)).unwrap();
            json!([gateway.cluster.slot(Commitment::Confirmed) - 20 * back, config])
        }
        _ => {
            config["encoding"] =
                draw.of(&["binary", "base58", "base64", "base64", "base64+zstd", "jsonParsed"]).into();
            if draw.one_in(2) {
                let (offset, length) = draw.of(&SLICES);
                config["dataSlice"] = json!({"offset": offset, "length": length});
            }
            if method == "getAccountInfo" {
                json!([account(draw), config])
            } else {
                let keys: Vec<String> = (0..draw.below(4)).map(|_| account(draw)).collect();
                json!([keys, config])
            }
        }
    };
    let commitment = if matches!(method, "getBlock" | "getRecentPerformanceSamples") {
        Commitment::Confirmed
    } else {
        commitment
    };
    (method, params, commitment)
}

async fn random_calls_get_the_truth_at_their_slot(seed: u64) {
    let mut draw = Draw(seed);
    let truth = Truth::new();
    let gateway = TestGateway::builder()
        .config(|config| {
            config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
        })
        .start()
        .await;
    let (mut asked, mut derived) = (0_u64, 0_u64);
    for round in 0..15 {
        if round % 5 == 0 {
            // Answers about vote accounts expire by time only. The purge removes such answers before their slots
            // are too old for the comparison below.
            gateway.front().cache.purger().clear();
        }
        for _ in 0..40 {
            let (method, params, commitment) = random_call(&mut draw, &gateway);
            let reply = gateway.call(method, params.clone()).send().await;
            asked += 1;
            derived += u64::from(reply.is_derived());
            let slot = reply.json()["result"]["context"]["slot"].as_u64();
            let holds = match (method, slot) {
                ("getBlock", _) | (_, Some(_)) => {
                    truth.answer(method, &params, commitment, slot) == answer(&reply)
                }
                // Votes, samples and errors show no slot. They must match one of the last slots.
                _ => truth.ever(method, &params, commitment, &answer(&reply)),
            };
            assert!(holds, "seed {seed:#x}, round {round}: {method} {params}: {}", reply.text);
        }
        let slots = u64::try_from(draw.below(3)).unwrap();
        truth.0.step_by(slots);
        gateway.step_by(slots).await;
    }
    let calls = gateway.upstream_calls();
    assert!(derived > asked / 20, "{derived} of {asked} were derived");
    assert!(calls < asked * 3 / 4, "{calls} upstream calls for {asked}");
}

#[tokio::test]
async fn random_calls_get_the_truth_at_their_slot_1() {
    random_calls_get_the_truth_at_their_slot(0x5107_f207).await;
}

#[tokio::test]
async fn random_calls_get_the_truth_at_their_slot_2() {
    random_calls_get_the_truth_at_their_slot(0x5107_f208).await;
}
