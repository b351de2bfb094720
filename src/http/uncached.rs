//! Answers that the cache does not give: what they cost, and the responses made of them.

use tokio::time::timeout_at;

use super::access::CallOutcome;
use super::context::{CallResponse, RequestContext, node_error, spliced_result};
use crate::cache::{CacheStatus, Charge, Debt};
use crate::error::Error;
use crate::jsonrpc::Id;
use crate::methods::{AnyMethod, Commitment};
use crate::node::NodeReply;
use crate::pool::{LongestRead, PoolReply};
use crate::telemetry::NodeCode;

/// An answer that is not from the cache.
pub(super) struct UncachedAnswer {
    pub(super) reply: NodeReply,
    pub(super) status: CacheStatus,
    /// The id of the node that gave it. `None` if no single node did.
    pub(super) node: Option<usize>,
}

impl UncachedAnswer {
    pub(super) fn passed_on(PoolReply { body, node, .. }: PoolReply) -> Self {
        Self { reply: body, status: CacheStatus::Bypassed, node: Some(node) }
    }
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

/// Makes the response from a node's answer, and reserves the bytes of the response from the budget for unsent answers.
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
    request.take_bytes(method, &body, None)?;
    let outcome = CallOutcome { method: Some(method), commitment, outcome: answer.status.outcome() };
    let node = answer.node.and_then(|node| u32::try_from(node).ok());
    Ok(CallResponse { status: Some(answer.status), node, ..CallResponse::new(body, outcome) })
}
