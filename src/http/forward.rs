//! Answers calls of simulations, and of the methods that the operator lists, by a node.

use std::sync::Arc;

use super::context::{CallResponse, RequestContext};
use super::uncached::{UncachedAnswer, charged, finish};
use crate::cache::Debt;
use crate::error::Error;
use crate::jsonrpc::Id;
use crate::methods::{AnyMethod, ForwardedCall};
use crate::pool::{ForwardedRequest, PoolReply};

/// Answers `call`, whose rate has been taken, and counts it in the metrics.
pub(super) async fn answer(request: &RequestContext<'_>, id: &Id, call: ForwardedCall) -> CallResponse {
    let (method, commitment) = (call.method, Some(call.commitment));
    let answer = forward(request, call).await;
    finish(request, id, method, commitment, answer.map(UncachedAnswer::passed_on))
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
