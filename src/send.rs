//! Sends transactions to nodes.
//!
//! Two nodes cannot spend twice: both send the same signature. What could go wrong is the answer, so the first node that
//! accepts the transaction decides it. Copies for further nodes are sent after that, and their answers do not matter.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio_util::task::TaskTracker;

use crate::config::SendSettings;
use crate::error::Error;
use crate::methods::{SendQuery, Slot};
use crate::node::NodeReply;
use crate::pool::{CallContext, Pool, PoolReply, SendRequest};

/// Sends a transaction to a node, and copies of it to `send.fanout` further nodes. `block` is the slot of the block whose
/// hash it has, if that is known.
///
/// # Errors
/// No node has accepted or refused it. It may have been sent nevertheless.
pub async fn send(
    pool: &Arc<Pool>,
    query: SendQuery,
    block: Option<Slot>,
    settings: &SendSettings,
    context: CallContext,
    tasks: &TaskTracker,
) -> Result<PoolReply, Error> {
    let upstreams = settings.upstreams.clone();
    let (sent_to, attempts) = (Vec::new(), AtomicUsize::new(0));
    let nodes = pool.sending_nodes(&upstreams);
    let mut request = SendRequest { query, block, upstreams, sent_to, nodes, attempts, context };
    let reply = pool.send(&request).await?;
    if settings.fanout > 0 && matches!(reply.body, NodeReply::Result(_)) {
        request.sent_to.push(reply.node);
        request.query.skip_preflight = true;
        let (pool, copies) = (Arc::clone(pool), settings.fanout);
        tasks.spawn(async move {
            for _ in 0..copies {
                let Ok(copy) = pool.send(&request).await else { return };
                request.sent_to.push(copy.node);
            }
        });
    }
    Ok(reply)
}
