//! Answers sendTransaction, if the operator and the caller's plan allow it.

use std::sync::Arc;

use super::context::{CallResponse, RequestContext};
use super::uncached::{UncachedAnswer, charged, finish};
use crate::cache::Debt;
use crate::error::Error;
use crate::jsonrpc::{Id, Params};
use crate::methods::{AnyMethod, SendQuery};
use crate::pool::PoolReply;
use crate::send::send;

/// Answers a call of sendTransaction, and counts it in the metrics.
pub(super) async fn answer(request: &RequestContext<'_>, id: &Id, params: &Params) -> CallResponse {
    let answer = forward(request, params).await;
    finish(request, id, AnyMethod::Send, None, answer.map(UncachedAnswer::passed_on))
}

/// Sends the transaction to a node.
///
/// # Errors
/// A refusal by the key's plan, its rate or quota, invalid params, or no node answers.
async fn forward(request: &RequestContext<'_>, params: &Params) -> Result<PoolReply, Error> {
    request.principal.take()?;
    request.principal.may_send()?;
    let query = SendQuery::parse(params).map_err(Error::Params)?;
    let charge = request.principal.admit_send()?;
    let front = Arc::clone(request.front);
    let block = query.blockhash.and_then(|hash| front.tip.slot_of(&hash.to_string()));
    let context = request.call_context(AnyMethod::Send);
    let (read, settings) = (context.read.clone(), request.config.send.clone());
    let sending = async move { send(&front.pool, query, block, &settings, context, &front.tasks).await };
    charged(request, charge, AnyMethod::Send, read, sending, Debt::of).await
}
