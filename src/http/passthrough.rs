//! Answers calls of methods that are not cached. A call is forwarded to a node if `passthrough.methods` lists its
//! method. Otherwise the call is refused.

use std::sync::Arc;

use tokio::time::Instant;

use super::access::CallOutcome;
use super::context::RequestContext;
use super::responses::{CallResponse, node_error, spliced_result};
use crate::cache::CacheStatus;
use crate::error::Error;
use crate::jsonrpc::{Id, Params};
use crate::methods::{Commitment, PassthroughCall, PassthroughMethod, write_method};
use crate::node::NodeReply;
use crate::pool::{CallContext, PassthroughRequest};
use crate::telemetry::{NodeCode, Outcome};

/// Answers a call of the method `name`, which is not one of the cached methods, and counts it in the metrics.
pub(super) async fn answer(
    request: &RequestContext<'_>,
    id: &Id,
    name: &[u8],
    params: Params,
) -> CallResponse {
    let limited = request.principal.take(Instant::now()).err();
    let name = str::from_utf8(name).unwrap_or_default();
    let allowed = &request.front.config.passthrough;
    let Some(method) = PassthroughMethod::from_name(name).filter(|method| allowed.contains(method)) else {
        let unknown = || write_method(name).map_or(Error::MethodNotFound, Error::Write);
        return request.refuse(id, None, None, limited.unwrap_or_else(unknown));
    };
    let response = if let Some(error) = limited {
        request.refuse(id, None, None, error)
    } else {
        let call = PassthroughCall::new(method, params);
        let commitment = call.commitment;
        let answer = forward(request, call).await;
        match answer.and_then(|answer| respond(request, id, commitment, &answer)) {
            Ok(response) => request.count(response),
            Err(error) => request.refuse(id, None, commitment, error),
        }
    };
    let metrics = &request.front.metrics;
    metrics.passthrough_requests.at((method, response.outcome.outcome)).inc();
    metrics.passthrough_duration.at(method).observe(request.started.elapsed().as_secs_f64());
    response
}

/// Checks that the key may make the call, forwards it to a node, and charges the key for the answer.
///
/// # Errors
/// The refusal by the key's plan, [`Error::TimedOut`], or [`Error::NoUpstream`] if no node answers.
async fn forward(request: &RequestContext<'_>, call: PassthroughCall) -> Result<NodeReply, Error> {
    let call = request.principal.admit_passthrough(call)?;
    let timeout = request.front.config.server.request_timeout;
    let deadline = request.started + timeout;
    let context = CallContext { deadline, caller: request.principal.caller(), trace: request.trace.clone() };
    let ask = PassthroughRequest { call: call.clone(), context };
    let (pool, principal) = (Arc::clone(&request.front.pool), Arc::clone(&request.principal));
    let has_plan = principal.has_plan();
    let asking = async move {
        let answer = tokio::time::timeout_at(deadline, pool.pass_through(&ask));
        let answer = answer.await.map_err(|_| Error::TimedOut(timeout))??;
        principal.charge_passthrough(&call);
        Ok(answer)
    };
    // Without a plan nothing is charged, so the call may be cancelled when the caller disconnects.
    if !has_plan {
        return Box::pin(asking).await;
    }
    // The call runs in a task of its own, so that the key is charged even if the caller disconnects. The task shares
    // the request's permit.
    let permit = request.permit.share();
    let asking = request.front.tasks.spawn(async move {
        let _permit = permit;
        asking.await
    });
    asking.await.unwrap_or_else(|_| Err(Error::NoUpstream(Vec::new())))
}

/// Makes the response from a node's answer, and reserves the bytes of the response from the budget for unsent
/// answers.
///
/// # Errors
/// [`Error::AnswersTooLarge`] or [`Error::Overloaded`], as [`RequestContext::take_bytes`] describes.
fn respond(
    request: &RequestContext<'_>,
    id: &Id,
    commitment: Option<Commitment>,
    answer: &NodeReply,
) -> Result<CallResponse, Error> {
    let body = match answer {
        NodeReply::Result(result) => spliced_result(id, [result.clone()]),
        NodeReply::Error { code, body } => {
            request.front.metrics.node_errors.at((None, NodeCode::from(*code))).inc();
            node_error(id, body)
        }
    };
    request.take_bytes(&body)?;
    let outcome = CallOutcome { method: None, commitment, outcome: Outcome::Bypass };
    Ok(CallResponse { status: Some(CacheStatus::Bypassed), ..CallResponse::new(body, outcome) })
}
