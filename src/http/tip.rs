//! Answers calls of the six methods whose answers never go back behind a slot that somebody was shown.

use std::sync::Arc;

use super::context::{CallResponse, RequestContext};
use super::uncached::{UncachedAnswer, charged, finish};
use crate::cache::Debt;
use crate::error::Error;
use crate::jsonrpc::{Id, Params};
use crate::methods::{AnyMethod, Commitment, TipMethod, TipQuery};
use crate::tip::TipAnswer;

/// Answers a call of `method`, and counts it in the metrics.
pub(super) async fn answer(
    request: &RequestContext<'_>,
    id: &Id,
    method: TipMethod,
    params: &Params,
) -> CallResponse {
    let limited = request.principal.take();
    let query = limited.and_then(|()| TipQuery::parse(method, params).map_err(Error::Params));
    let (commitment, answer) = match query {
        Ok(query) => (query.commitment(), read(request, query).await),
        Err(error) => (None, Err(error)),
    };
    let answer = answer.map(|TipAnswer { reply, status, node, .. }| UncachedAnswer { reply, status, node });
    finish(request, id, AnyMethod::Tip(method), commitment, answer)
}

/// Checks that the key may make the call, and reads the tip.
///
/// # Errors
/// The refusal by the key's plan or quota, or as for [`Tip::answer`](crate::tip::Tip::answer).
async fn read(request: &RequestContext<'_>, query: TipQuery) -> Result<TipAnswer, Error> {
    let method = AnyMethod::Tip(query.method());
    let charge = request.principal.admit_other(method, query.commitment())?;
    let (tip, context) = (Arc::clone(&request.front.tip), request.call_context(method));
    let watcher = request.principal.watcher(request.client.address);
    let debt = |answer: &Result<TipAnswer, Error>| match answer {
        Ok(answer) if answer.status.is_hit() => Debt::Hit,
        other => Debt::of(other),
    };
    let read = context.read.clone();
    let reading = async move { tip.answer(&query, &context, watcher).await };
    let answer = charged(request, charge, method, read, reading, debt).await?;
    // Whoever knows that a transaction has landed would take an older account for a fault.
    let known = request.principal.known_slots();
    Commitment::ALL.into_iter().zip(answer.landed).for_each(|(at, slot)| known.tell(at, slot));
    Ok(answer)
}
