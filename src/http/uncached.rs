//! Answers the calls that the cache does not: reads of the tip, transactions, simulations, and the methods that the operator
//! lists. Any other method is refused.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::access::CallOutcome;
use super::call::{CallResponse, RequestContext, node_error, spliced_result};
use super::{send, tip};
use crate::cache::{CacheStatus, Charge, Debt};
use crate::error::Error;
use crate::jsonrpc::{Id, Params};
use crate::methods::{AnyMethod, Commitment, ForwardedCall, write_method};
use crate::node::NodeReply;
use crate::pool::{ForwardedRequest, LongestRead, PoolReply};
use crate::telemetry::NodeCode;

/// Answers a call of the method `name`, which is not one of the cached methods, and counts it in the metrics.
pub(super) async fn answer(
    request: &RequestContext<'_>,
    id: &Id,
    name: &[u8],
    params: Params,
) -> CallResponse {
    let (method, config) = (AnyMethod::from_name(name), &request.config);
    match method {
        Some(AnyMethod::Tip(method)) => return tip::answer(request, id, method, &params).await,
        Some(AnyMethod::Send) if config.send.enabled => return send::answer(request, id, &params).await,
        _ => {}
    }
    if let Err(limited) = request.principal.take(Instant::now()) {
        return request.refuse(id, method, None, limited);
    }
    let is_forwarded =
        |method: &AnyMethod| *method == AnyMethod::Simulate || config.methods.contains_key(method);
    let Some(method) = method.filter(is_forwarded) else {
        let unknown =
            str::from_utf8(name).ok().and_then(write_method).map_or(Error::MethodNotFound, Error::Write);
        return request.refuse(id, method, None, unknown);
    };
    let call = ForwardedCall::new(method, params);
    let commitment = Some(call.commitment);
    let answer = forward(request, call).await;
    finish(request, id, method, commitment, answer.map(UncachedAnswer::passed_on))
}

/// An answer that is not from the cache.
pub(super) struct UncachedAnswer {
    pub(super) reply: NodeReply,
    pub(super) status: CacheStatus,
    /// The id of the node that gave it. `None` if no single node did.
    pub(super) node: Option<usize>,
}

impl UncachedAnswer {
    /// Creates the answer to a call that was passed on to a node.
    pub(super) fn passed_on(PoolReply { body, node, .. }: PoolReply) -> Self {
        Self { reply: body, status: CacheStatus::Bypassed, node: Some(node) }
    }
}

/// Checks that the key may make the call, and forwards it to a node. The key owes what the node's work costs.
///
/// # Errors
/// The refusal by the key's plan or quota, [`Error::TimedOut`], or [`Error::NoUpstream`] if no node answers.
async fn forward(request: &RequestContext<'_>, call: ForwardedCall) -> Result<PoolReply, Error> {
    let (call, charge) = request.principal.admit_forwarded(call)?;
    let pool = Arc::clone(&request.front.pool);
    let (method, context) = (call.method, request.call_context(call.method));
    // What somebody was shown is in the state of the simulation, too.
    let is_simulation = call.method == AnyMethod::Simulate;
    let prefer = is_simulation.then(|| request.front.tip.slot(call.commitment));
    let listed = request.config.methods.get(&call.method);
    let upstreams = listed.map(|listed| listed.upstreams.clone()).unwrap_or_default();
    let ask = ForwardedRequest { call, prefer, upstreams, context };
    let read = ask.context.read.clone();
    charged(request, charge, method, read, async move { pool.forward(&ask).await }, Debt::of).await
}

/// Waits for the work of a node for a call of `method`, until the deadline of that. The key owes what `debt` says of its result,
/// and `read` of its length, even if the caller disconnects.
///
/// # Errors
/// The work fails, or [`Error::TimedOut`].
pub(super) async fn charged<T: Send + 'static>(
    request: &RequestContext<'_>,
    charge: Charge,
    method: AnyMethod,
    read: LongestRead,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
    debt: impl Fn(&Result<T, Error>) -> Debt + Send + 'static,
) -> Result<T, Error> {
    let timeout = request.front.pool.time_of(method);
    let deadline = request.started + timeout;
    let working = async move {
        let result = work.await;
        charge.owe(debt(&result), read.bytes());
        result
    };
    // The pool ends the call at its deadline, too, and then says whether a node had been asked.
    let late = |_| Error::TimedOut(timeout);
    // Without a plan nothing is charged, so the call may be cancelled when the caller disconnects; but a node that walks over
    // accounts walks on.
    if !request.principal.has_plan() && !method.rules().walks {
        return timeout_at(deadline, Box::pin(working)).await.map_err(late)?;
    }
    // The call runs in a task of its own. The task shares the request's permit.
    let permit = request.permit.share();
    let working = request.front.tasks.spawn(async move {
        let _permit = permit;
        working.await
    });
    let result = timeout_at(deadline, working).await.map_err(late)?;
    result.unwrap_or_else(|_| Err(Error::NoUpstream(Vec::new())))
}

/// Returns the response to a call that the cache does not answer, and counts the call.
pub(super) fn finish(
    request: &RequestContext<'_>,
    id: &Id,
    method: AnyMethod,
    commitment: Option<Commitment>,
    answer: Result<UncachedAnswer, Error>,
) -> CallResponse {
    match answer.and_then(|answer| respond(request, id, method, commitment, &answer)) {
        Ok(response) => request.count(response),
        Err(error) => request.refuse(id, Some(method), commitment, error),
    }
}

/// Makes the response from a node's answer, and reserves the bytes of the response from the budget for unsent
/// answers.
///
/// # Errors
/// [`Error::AnswersTooLarge`] or [`Error::Overloaded`], as [`RequestContext::take_bytes`] describes.
fn respond(
    request: &RequestContext<'_>,
    id: &Id,
    method: AnyMethod,
    commitment: Option<Commitment>,
    answer: &UncachedAnswer,
) -> Result<CallResponse, Error> {
    let body = match &answer.reply {
        NodeReply::Result(result) => spliced_result(id, [result.clone()]),
        NodeReply::Error { code, body } => {
            request.front.metrics.node_errors.at((method, NodeCode::from(*code))).inc();
            node_error(id, body)
        }
    };
    request.take_bytes(method, &body)?;
    let outcome = CallOutcome { method: Some(method), commitment, outcome: answer.status.outcome() };
    let node = answer.node.and_then(|node| u32::try_from(node).ok());
    Ok(CallResponse { status: Some(answer.status), node, ..CallResponse::new(body, outcome) })
}
