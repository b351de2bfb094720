//! Calls of methods that are not cached. A call is forwarded to a node if `[passthrough]` names its method, otherwise refused.

use std::sync::Arc;

use tokio::time::Instant;

use super::access::CallOutcome;
use super::context::RequestContext;
use super::responses::{CallResponse, node_error, spliced_result};
use crate::cache::CacheStatus;
use crate::error::Error;
use crate::jsonrpc::{Id, Params};
use crate::methods::{Commitment, Forwarded, Further, write_method};
use crate::node::NodeReply;
use crate::pool::{CallContext, PassthroughRequest};
use crate::telemetry::{NodeCode, Outcome};

/// Answers a call of the method `name`, which is none of the cached methods.
pub(super) async fn answer(
    request: &RequestContext<'_>,
    id: &Id,
    name: &[u8],
    params: Params,
) -> CallResponse {
    let limited = request.principal.take(Instant::now()).err();
    let name = str::from_utf8(name).unwrap_or_default();
    let forwarded = &request.front.config.passthrough;
    let Some(method) = Further::from_name(name).filter(|method| forwarded.contains(method)) else {
        let unknown = || write_method(name).map_or(Error::MethodNotFound, Error::Write);
        return request.refuse(id, None, None, limited.unwrap_or_else(unknown));
    };
    let response = if let Some(error) = limited {
        request.refuse(id, None, None, error)
    } else {
        let call = Forwarded::new(method, params);
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

/// Authorizes the call, asks a node, and charges the key for the answer.
///
/// # Errors
/// The refusal of the key's plan, [`Error::TimedOut`], or [`Error::NoUpstream`] if no node answers.
async fn forward(request: &RequestContext<'_>, call: Forwarded) -> Result<NodeReply, Error> {
    let call = request.principal.admit_forwarded(call)?;
    let timeout = request.front.config.server.request_timeout;
    let deadline = request.started + timeout;
    let context = CallContext { deadline, caller: request.principal.caller(), trace: request.trace.clone() };
    let ask = PassthroughRequest { call: call.clone(), context };
    let (pool, principal) = (Arc::clone(&request.front.pool), Arc::clone(&request.principal));
    let has_plan = principal.has_plan();
    let asking = async move {
        let answer = tokio::time::timeout_at(deadline, pool.pass_through(&ask));
        let answer = answer.await.map_err(|_| Error::TimedOut(timeout))??;
        principal.charge_forwarded(&call);
        Ok(answer)
    };
    // Without a plan there is no charge, so the call may end when the caller disconnects.
    if !has_plan {
        return Box::pin(asking).await;
    }
    // A separate task, so that the key is charged even if the caller disconnects. The task keeps the request's permit.
    let permit = request.permit.share();
    let asking = request.front.tasks.spawn(async move {
        let _permit = permit;
        asking.await
    });
    asking.await.unwrap_or_else(|_| Err(Error::NoUpstream(Vec::new())))
}

/// Makes the response from a node's answer and reserves its bytes.
///
/// # Errors
/// [`RequestContext::take_bytes`] refuses the bytes.
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
