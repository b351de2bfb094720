//! Tests of feeds and clients without sockets.

use std::sync::Arc;

use futures_util::FutureExt;
use serde_json::Value;
use tokio::time::{Duration, Instant};

use super::client::{NextMessage, SocketClient};
use super::feeds::Feeds;
use super::queue::{MAX_QUEUED, Queued};
use crate::config::{Config, Plan};
use crate::gateway::Gateway;
use crate::methods::{Commitment, Signature, Subscription, SubscriptionMethod};
use crate::telemetry::{CloseReason, Metrics};
use crate::tip::watch_alone;

const ROOM: usize = 4 * MAX_QUEUED;

struct Bench {
    gateway: Gateway,
    metrics: Arc<Metrics>,
    feeds: Feeds,
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Plan)) -> Self {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::dev(any, any, vec![]);
        change(config.plans.get_mut("dev").unwrap());
        let metrics = Metrics::new();
        let feeds = Feeds::new(ROOM, Arc::clone(&metrics));
        Self { gateway: Gateway::new(&config, Arc::clone(&metrics)).unwrap(), metrics, feeds }
    }

    fn client(&self, id: u64) -> Arc<SocketClient> {
        let metrics = Arc::clone(&self.metrics);
        Arc::new(SocketClient::new(id, ("dev", None, None), &self.gateway, metrics, Instant::now()).unwrap())
    }

    fn join(&self, client: &Arc<SocketClient>, subscription: &Arc<Subscription>) -> u64 {
        self.feeds.join(&mut self.feeds.lock(), client, subscription, || None).unwrap().0
    }
}

/// Returns what waits for a client: the texts of its notifications, or the reason of its end.
fn waiting(client: &SocketClient) -> Result<Vec<String>, CloseReason> {
    let mut texts = Vec::new();
    while let Some(next) = client.next().now_or_never() {
        match next {
            NextMessage::Close(reason) => return Err(reason),
            NextMessage::Send(Queued::Notification { shared, id, .. }) => {
                texts.push(format!("{}{id}}}}}", str::from_utf8(&shared.text).unwrap()));
            }
            NextMessage::Send(Queued::Answer(text)) => texts.push(String::from_utf8(text.to_vec()).unwrap()),
            NextMessage::Send(Queued::Ping) => texts.push("ping".to_owned()),
        }
    }
    Ok(texts)
}

fn logs(params: &str) -> Arc<Subscription> {
    let (method, params) = (SubscriptionMethod::Logs, params.to_owned());
    Arc::new(Subscription::Relayed { method, params, commitment: None })
}

#[tokio::test]
async fn one_text_reaches_all_subscribers_with_their_ids() {
    let bench = Bench::new();
    let (one, other, asked) = (bench.client(1), bench.client(2), logs("[1]"));
    let ids = [bench.join(&one, &asked), bench.join(&other, &asked)];
    assert_eq!(bench.join(&one, &asked), ids[0], "equal params are one subscription");
    bench.feeds.publish(&asked, br#"{"a":1}"#, false);
    let counted = bench.feeds.queued_bytes();
    for (client, id) in [(&one, ids[0]), (&other, ids[1])] {
        let texts = waiting(client).unwrap();
        let message: Value = serde_json::from_str(&texts[0]).unwrap();
        let params = serde_json::json!({"result": {"a": 1}, "subscription": id});
        assert_eq!(
            message,
            serde_json::json!({"jsonrpc": "2.0", "method": "logsNotification", "params": params})
        );
        assert!(texts.len() == 1 && counted < 2 * texts[0].len(), "counted once");
    }
    assert_eq!(bench.feeds.queued_bytes(), 0);
    let removed = one.state().remove(ids[0]).unwrap();
    bench.feeds.leave(&mut bench.feeds.lock(), &removed.to, ids[0]);
    bench.feeds.publish(&asked, b"2", true);
    assert!(waiting(&one).unwrap().is_empty(), "nothing after the end of a subscription");
    assert_eq!(waiting(&other).unwrap().len(), 1);
    assert!(!other.has(ids[1]) && !bench.feeds.has(&asked), "the last notification ends it");
}

/// Whoever has subscribed just now is notified a moment after the answer, and nobody else waits for that.
#[tokio::test(start_paused = true)]
async fn an_end_waits_for_the_answer_of_its_own_subscriber() {
    let bench = Bench::new();
    let (old, new) = (bench.client(1), bench.client(2));
    let asked = Arc::new(Subscription::Signature {
        signature: Signature([7; 64]),
        commitment: Commitment::Confirmed,
        received: false,
    });
    bench.join(&old, &asked);
    tokio::time::advance(Duration::from_millis(50)).await;
    bench.join(&new, &asked);
    bench.feeds.publish(&asked, b"1", true);
    assert_eq!([&old, &new].map(|client| waiting(client).map(|texts| texts.len())), [Ok(1), Ok(0)]);
    assert!(!new.has_more(), "what has to wait does not keep from flushing");
    tokio::time::advance(Duration::from_millis(11)).await;
    assert_eq!(waiting(&new).map(|texts| texts.len()), Ok(1));
}

/// Heights wait for the end of a signature until it is written, so a client that does not take it is closed.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_take_an_end_is_closed() {
    let bench = Bench::new();
    let (client, (watch, is_dropped)) = (bench.client(1), watch_alone(Signature([7; 64])));
    let asked = Arc::new(Subscription::Signature {
        signature: Signature([7; 64]),
        commitment: Commitment::Confirmed,
        received: false,
    });
    bench.feeds.join(&mut bench.feeds.lock(), &client, &asked, || Some(watch)).unwrap();
    assert!(client.closed(None).now_or_never().is_none() && !is_dropped());
    bench.feeds.publish(&asked, b"1", true);
    // The writer waits for the socket with another message.
    let begun = Instant::now();
    assert_eq!(client.closed(None).await, CloseReason::Lagged);
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(100) && waited < Duration::from_millis(150), "{waited:?}");
    assert!(is_dropped(), "no height waits for it any more");
}

#[tokio::test]
async fn a_client_that_lags_is_closed_and_holds_nothing() {
    let bench = Bench::new();
    let (client, asked) = (bench.client(1), Arc::new(Subscription::Slot));
    bench.join(&client, &asked);
    let text = vec![b'1'; MAX_QUEUED / 2];
    bench.feeds.publish(&asked, &text, false);
    assert!(bench.feeds.queued_bytes() > text.len());
    bench.feeds.publish(&asked, &text, false);
    assert_eq!(bench.feeds.queued_bytes(), 0);
    assert_eq!(waiting(&client), Err(CloseReason::Lagged));
    // A single longer notification passes.
    let long = bench.client(2);
    bench.join(&long, &asked);
    bench.feeds.publish(&asked, &vec![b'1'; 2 * MAX_QUEUED], false);
    assert_eq!(waiting(&long).map(|texts| texts.len()), Ok(1));
}

#[tokio::test]
async fn all_clients_together_have_a_bound() {
    let bench = Bench::new();
    let clients: Vec<_> = (0..16).map(|id| bench.client(id)).collect();
    // Each client has a question of its own, so no text is shared.
    for (at, client) in clients.iter().enumerate() {
        let asked = logs(&at.to_string());
        bench.join(client, &asked);
        bench.feeds.publish(&asked, &vec![b'1'; MAX_QUEUED], false);
        assert!(bench.feeds.queued_bytes() <= ROOM + MAX_QUEUED);
    }
    let (kept, closed): (Vec<_>, Vec<_>) =
        clients.iter().map(|client| waiting(client)).partition(Result::is_ok);
    assert!(!kept.is_empty() && !closed.is_empty(), "{} of {}", kept.len(), closed.len());
    assert!(closed.iter().all(|end| *end == Err(CloseReason::Lagged)));
}

#[tokio::test]
async fn a_key_has_as_many_subscriptions_as_its_plan_says() {
    let bench = Bench::with(|plan| plan.subscriptions = 40_000);
    let clients = [bench.client(1), bench.client(2)];
    let join = |client: &Arc<SocketClient>, asked: &Arc<Subscription>| {
        bench.feeds.join(&mut bench.feeds.lock(), client, asked, || None).is_some()
    };
    let accepted = (0..100_000).filter(|at| join(&clients[at % 2], &logs(&at.to_string()))).count();
    let gauge = || bench.metrics.ws_subscriptions.at(SubscriptionMethod::Logs).get();
    assert_eq!((accepted, gauge()), (40_000, 40_000));
    // A connection that is to be closed counts no more, although its task has not ended yet.
    clients[0].close(CloseReason::Policy);
    assert!(join(&clients[1], &logs("more")) && !join(&clients[0], &logs("more")));
    for client in &clients {
        bench.feeds.leave_all(client);
    }
    assert_eq!(gauge(), 0);
}

#[tokio::test]
async fn a_client_that_answers_no_pings_is_gone() {
    let bench = Bench::new();
    let (silent, lively, start) = (bench.client(1), bench.client(2), Instant::now());
    let mut ends = Vec::new();
    for second in 1..=70 {
        let now = start + Duration::from_secs(second);
        for client in [&silent, &lively] {
            client.check(&bench.gateway, now);
        }
        assert!(waiting(&lively).is_ok_and(|texts| texts.is_empty() || lively.heard(false, now)));
        if waiting(&silent).is_err_and(|reason| reason == CloseReason::Dead) {
            ends.push(second);
        }
    }
    assert_eq!(ends.first(), Some(&60), "after two pings without an answer");
}

/// A signature that never lands is asked for each slot, so whoever waits for ten thousand of them pays for that.
#[tokio::test]
async fn signatures_that_never_land_have_a_price() {
    let bench = Bench::with(|plan| plan.daily_units = Some(20_000));
    let (clients, start) = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|id| bench.client(id)), Instant::now());
    for (number, client) in clients.iter().enumerate() {
        for at in 0..1_000_u32 {
            let mut signature = [u8::try_from(number).unwrap(); 64];
            signature[..4].copy_from_slice(&at.to_le_bytes());
            let (signature, commitment) = (Signature(signature), Commitment::Confirmed);
            let asked = Arc::new(Subscription::Signature { signature, commitment, received: false });
            let watch = || Some(watch_alone(signature).0);
            assert!(bench.feeds.join(&mut bench.feeds.lock(), client, &asked, watch).is_some());
        }
    }
    let ends: Vec<_> = (1..=40)
        .map(|round| {
            let now = start + Duration::from_secs(10) * round;
            for client in &clients {
                client.heard(true, now);
                client.check(&bench.gateway, now);
            }
            clients.iter().any(|client| waiting(client) == Err(CloseReason::Rate))
        })
        .collect();
    // Most transactions land or expire within three minutes. Then each slot costs a unit for each hundred signatures.
    let end = ends.iter().position(|is_closed| *is_closed);
    assert!(end.is_some_and(|end| (18..30).contains(&end)), "{end:?}");
}

#[tokio::test]
async fn what_may_be_missed_closes_the_clients() {
    let bench = Bench::new();
    let (fed, other) = (bench.client(1), bench.client(2));
    bench.join(&fed, &logs("[]"));
    bench.join(&other, &Arc::new(Subscription::Root));
    let interrupted = bench.feeds.interrupt(|asked| matches!(asked, Subscription::Relayed { .. }));
    assert_eq!((interrupted, waiting(&fed), waiting(&other)), (1, Err(CloseReason::Restart), Ok(Vec::new())));
    bench.feeds.leave_all(&fed);
    bench.feeds.leave_all(&other);
    for method in [SubscriptionMethod::Logs, SubscriptionMethod::Root] {
        assert_eq!(bench.metrics.ws_subscriptions.at(method).get(), 0);
    }
}
