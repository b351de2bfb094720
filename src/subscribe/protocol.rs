//! The calls of a client: subscribing and unsubscribing, in the words of a node.
//!
//! A message is prepared first, which may wait for a node. Then all its calls take effect at once, under the lock of the
//! feeds, and the answer is queued under the same lock.

use std::convert::identity;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::client::{ClientState, SocketClient};
use super::feeds::{FeedTable, SeenAccount};
use super::relay::{self, Ticket};
use super::{Hub, account_view};
use crate::cache::{Charge, Debt};
use crate::error::Error;
use crate::jsonrpc::envelope::{self, Element, EnvelopeError, Request, TooMany};
use crate::jsonrpc::{Call, Id, reply};
use crate::methods::{
    AnyMethod, Commitment, Subscription, SubscriptionMethod, invalid_subscription_id,
    subscription_limit_reached, unsubscribed_id,
};
use crate::telemetry::{CloseReason, LimitReason, Outcome};

/// A call that is ready to take effect.
enum Step {
    Refuse(Answer),
    Subscribe {
        id: Id,
        subscription: Arc<Subscription>,
        charge: Charge,
        /// What a new subscriber to an account may have seen already.
        seen: Option<SeenAccount>,
        ticket: Option<Ticket>,
    },
    Unsubscribe {
        id: Id,
        subscription: u64,
    },
}

/// The answer to a call, and how it counts in the metrics. Unsubscribing does not count.
struct Answer {
    text: Vec<u8>,
    counts: Option<(Option<AnyMethod>, Option<Commitment>, Outcome)>,
}

/// A call as the metrics count it, by its method and commitment. `None` for one that does not count.
type Counted = Option<(Option<AnyMethod>, Option<Commitment>)>;

/// A call of no subscription.
const OTHER: Counted = Some((None, None));

impl Answer {
    fn refusal(id: &Id, error: &Error, of: Counted) -> Self {
        let mut text = Vec::with_capacity(128);
        error.write_response(&mut text, id);
        Self { text, counts: of.map(|(method, commitment)| (method, commitment, error.outcome())) }
    }

    fn to(subscription: &Subscription, text: Vec<u8>, outcome: Outcome) -> Self {
        let (method, commitment) = counted(subscription);
        Self { text, counts: Some((method, commitment, outcome)) }
    }
}

fn counted(subscription: &Subscription) -> (Option<AnyMethod>, Option<Commitment>) {
    (Some(AnyMethod::Subscription(subscription.method())), subscription.commitment())
}

/// Answers a message of the client. One that was refused just now has to wait before it is answered again. If it
/// `has_waited`, it takes nothing from the key's rate.
///
/// # Errors
/// The client sends more than it may.
pub(super) async fn answer(
    hub: &Arc<Hub>,
    client: &Arc<SocketClient>,
    body: &Bytes,
    has_waited: bool,
) -> Result<(), CloseReason> {
    let (principal, started) = (client.principal(), Instant::now());
    let limit = hub.parts.config.now().server.max_batch;
    let limit = principal.max_batch().map_or(limit, |own| own.min(limit));
    let request = match envelope::parse_within(body, limit) {
        Ok(Request::One(element)) => Ok((vec![element], false)),
        Ok(Request::Batch(elements)) => Ok((elements, true)),
        Ok(Request::ParseError) => Err(EnvelopeError::Parse.into()),
        Err(TooMany(calls)) => Err(Error::BatchTooLarge { calls, limit }),
    };
    let (elements, is_batch) = match request {
        Ok(request) => request,
        Err(error) => {
            take(client, false)?;
            let step = Step::Refuse(Answer::refusal(&Id::Null, &error, OTHER));
            commit(hub, client, vec![step], false, started);
            return Ok(());
        }
    };
    let is_call = elements.iter().any(|element| !matches!(element, Element::Notification));
    let asked = hash(&elements);
    if !has_waited {
        if !client.heard(is_call, Instant::now()) {
            return Err(CloseReason::Rate);
        }
        if !is_call || client.has_to_wait(asked, body, Instant::now())? {
            return Ok(());
        }
    }
    let steps = join_all(elements.into_iter().map(|element| prepare(hub, client, element, has_waited))).await;
    let steps = steps.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
    let is_refused = commit(hub, client, steps, is_batch, started);
    client.state().pauses.note(asked, is_refused, Instant::now());
    Ok(())
}

/// Returns a hash by which a message is known again: that of its calls, whatever their ids.
fn hash(elements: &[Element]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for element in elements {
        if let Element::Call(Call { method, params, .. }) = element {
            (method, params).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Prepares a call. `None` for a message without id.
async fn prepare(
    hub: &Arc<Hub>,
    client: &SocketClient,
    element: Element,
    has_waited: bool,
) -> Result<Option<Step>, CloseReason> {
    let refused = |id: &Id, error: Error, of| Ok(Some(Step::Refuse(Answer::refusal(id, &error, of))));
    let Call { id, method, params } = match element {
        Element::Notification => return Ok(None),
        Element::Refused { id, error } => {
            take(client, has_waited)?;
            return refused(&id, error.into(), OTHER);
        }
        Element::Call(call) => call,
    };
    let name = str::from_utf8(&method).unwrap_or_default();
    if SubscriptionMethod::from_unsubscribe(name).is_some() {
        let subscription = unsubscribed_id(&params);
        // Whoever has paid for a subscription ends it for nothing.
        if let Ok(subscription) = subscription
            && client.has(subscription)
        {
            return Ok(Some(Step::Unsubscribe { id, subscription }));
        }
        take(client, has_waited)?;
        return refused(&id, Error::Params(subscription.err().unwrap_or_else(invalid_subscription_id)), None);
    }
    take(client, has_waited)?;
    let Some(method) = SubscriptionMethod::from_name(name) else {
        return refused(&id, Error::MethodNotFound, OTHER);
    };
    let subscription = match Subscription::parse(method, &params) {
        Ok(subscription) => Arc::new(subscription),
        Err(error) => {
            return refused(&id, Error::Params(error), Some((Some(AnyMethod::Subscription(method)), None)));
        }
    };
    let principal = client.principal();
    let charge = match principal.admit_subscription(&subscription) {
        Ok(charge) => charge,
        // A quota that is used up ends the connection, also while nothing is asked.
        Err(Error::Limited { reason, .. }) if reason != LimitReason::Method.as_str() => {
            return Err(CloseReason::Rate);
        }
        Err(error) => return refused(&id, error, Some(counted(&subscription))),
    };
    let (mut seen, mut ticket) = (None, None);
    match *subscription {
        // No node works for a call that will be refused. The place is taken when the call takes effect.
        Subscription::Account { .. }
            if principal.hold_subscription().is_some() && !hub.feeds.has(&subscription) =>
        {
            seen = account_view::first_look(hub, &subscription, principal.caller()).await;
            if seen.is_some() {
                charge.owe(Debt::Miss, 0);
            }
        }
        Subscription::Relayed { .. } => match relay::ready(hub, &subscription).await {
            Ok(ready) => ticket = ready,
            Err(refusal) => {
                let answer = Answer::to(&subscription, refusal.write(&id), refusal.outcome());
                return Ok(Some(Step::Refuse(answer)));
            }
        },
        _ => {}
    }
    Ok(Some(Step::Subscribe { id, subscription, charge, seen, ticket }))
}

/// Takes a call of the key's rate, unless the call has waited instead.
fn take(client: &SocketClient, has_waited: bool) -> Result<(), CloseReason> {
    let taken = if has_waited { Ok(()) } else { client.principal().take() };
    taken.map_err(|_| CloseReason::Rate)
}

fn result(id: &Id, result: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(64);
    reply::result(&mut text, id, result.as_bytes());
    text
}

/// Lets the calls of a message take effect, and queues the answer. Returns true if one of them was refused.
fn commit(
    hub: &Arc<Hub>,
    client: &Arc<SocketClient>,
    steps: Vec<Step>,
    is_batch: bool,
    started: Instant,
) -> bool {
    if steps.is_empty() {
        return false;
    }
    let (mut table, mut tickets) = (hub.feeds.lock(), Vec::new());
    let effects = steps.into_iter().map(|step| take_effect(hub, client, &mut table, step, &mut tickets));
    let effects: Vec<_> = effects.collect();
    let is_refused = effects.iter().any(Result::is_err);
    let answers: Vec<_> = effects.into_iter().map(|effect| effect.unwrap_or_else(identity)).collect();
    let principal = client.principal();
    for Answer { text, counts } in &answers {
        if let Some((method, commitment, outcome)) = *counts {
            hub.parts.metrics.call(method, commitment, outcome, started.elapsed(), text.len());
            principal.count(outcome);
        }
    }
    let texts: Vec<_> = answers.into_iter().map(|answer| answer.text).collect();
    let text = texts.join(&b","[..]);
    let text = if is_batch { [b"[", &text[..], b"]"].concat() } else { text };
    client.answer(text.into());
    for (id, Ticket { subscription, .. }) in &tickets {
        if let Some(id) = id {
            hub.feeds.catch_up(&mut table, client, subscription, *id);
        }
    }
    // Tickets are given back without the lock.
    drop(table);
    is_refused
}

/// Lets a call take effect, and returns its answer.
///
/// # Errors
/// The call is refused. The error is the answer that says so.
fn take_effect(
    hub: &Arc<Hub>,
    client: &Arc<SocketClient>,
    table: &mut FeedTable,
    step: Step,
    tickets: &mut Vec<(Option<u64>, Ticket)>,
) -> Result<Answer, Answer> {
    match step {
        Step::Refuse(answer) => Err(answer),
        Step::Unsubscribe { id, subscription } => {
            let removed = ClientState::remove(&mut client.state(), subscription);
            let error = || Error::Params(invalid_subscription_id());
            let removed = removed.ok_or_else(|| Answer::refusal(&id, &error(), None))?;
            hub.feeds.leave(table, &removed.to, subscription);
            Ok(Answer { text: result(&id, "true"), counts: None })
        }
        Step::Subscribe { id, subscription, charge, seen, ticket } => {
            let refused = |error: Error| Answer::refusal(&id, &error, Some(counted(&subscription)));
            let (had, waited) = (client.state().id_of(&subscription), tickets.len());
            tickets.extend(ticket.map(|ticket| (None, ticket)));
            let is_relayed = matches!(*subscription, Subscription::Relayed { .. });
            if is_relayed && table.feed(&subscription).is_none() {
                return Err(refused(Error::NoUpstream(Vec::new())));
            }
            let watcher = client.watcher();
            let watch = || {
                let Subscription::Signature { signature, commitment, .. } = *subscription else {
                    return None;
                };
                Some(hub.parts.tip.watch(signature, commitment, Some(watcher)))
            };
            let joined = hub.feeds.join(table, client, &subscription, watch);
            let (number, new) = joined.ok_or_else(|| refused(Error::Params(subscription_limit_reached())))?;
            let outcome = if new.is_some() { Outcome::Miss } else { Outcome::Collapsed };
            for (joined, _) in &mut tickets[waited..] {
                *joined = Some(number).filter(|_| had.is_none());
            }
            charge.owe(Debt::Miss, 0);
            if let Some(feed) = new {
                feed.seen = seen.unwrap_or_default();
                hub.begin(&subscription, feed);
            }
            let text = result(&id, itoa::Buffer::new().format(number));
            Ok(Answer::to(&subscription, text, outcome))
        }
    }
}
