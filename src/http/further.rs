//! A call of none of the eight methods: forwarded where `[passthrough]` says so, else refused.

use std::sync::Arc;

use tokio::time::Instant;

use super::access::CallOutcome;
use super::pieces::Pieces;
use super::rpc::{CallResponse, Context, splice};
use crate::cache::CacheStatus;
use crate::error::Error;
use crate::jsonrpc::{Id, Params, reply};
use crate::methods::{Commitment, Forwarded, Further, write_method};
use crate::node::NodeReply;
use crate::pool::PassthroughRequest;
use crate::telemetry::{NodeCode, Outcome};

impl Context<'_> {
    /// The answer to a call of the method `name`.
    pub(super) async fn other(&self, id: &Id, name: &str, params: Params) -> CallResponse {
        let limited = self.principal.take(Instant::now()).err();
        let forwarded = &self.front.config.passthrough;
        let Some(method) = Further::from_name(name).filter(|method| forwarded.contains(method)) else {
            let unknown = || write_method(name).map_or(Error::MethodNotFound, Error::Write);
            return self.refused(id, limited.unwrap_or_else(unknown));
        };
        let spoken = if let Some(error) = limited {
            self.refused(id, error)
        } else {
            let call = Forwarded::new(method, params);
            let commitment = call.commitment;
            match self.forward(call).await {
                Ok(answer) => self.forwarded(id, commitment, &answer),
                Err(error) => self.count_refused(id, None, commitment, error),
            }
        };
        let metrics = &self.front.metrics;
        metrics.passthrough_requests.at((method, spoken.ended.outcome)).inc();
        metrics.passthrough_duration.at(method).observe(self.started.elapsed().as_secs_f64());
        spoken
    }

    /// Admits the call, asks a node, and books what the answer cost.
    async fn forward(&self, call: Forwarded) -> Result<NodeReply, Error> {
        let call = self.principal.admit_forwarded(call)?;
        let timeout = self.front.config.server.request_timeout;
        let deadline = self.started + timeout;
        let request = PassthroughRequest {
            call: call.clone(),
            deadline,
            caller: self.principal.caller(),
            trace: self.trace.clone(),
        };
        let (pool, principal) = (Arc::clone(&self.front.pool), Arc::clone(&self.principal));
        let has_plan = principal.has_plan();
        let asking = async move {
            let answer = tokio::time::timeout_at(deadline, pool.pass_through(&request));
            let answer = answer.await.map_err(|_| Error::TimedOut(timeout))??;
            principal.charge_forwarded(&call);
            Ok(answer)
        };
        // Nobody's units: hanging up ends the call.
        if !has_plan {
            return asking.await;
        }
        // A task of its own: a caller who hangs up has still paid. It is in flight as long as the node is asked.
        let place = self.place.lasting();
        let asking = self.front.tasks.spawn(async move {
            let _place = place;
            asking.await
        });
        asking.await.unwrap_or_else(|_| Err(Error::NoUpstream(Vec::new())))
    }

    /// A node's word, spoken.
    fn forwarded(&self, id: &Id, commitment: Option<Commitment>, answer: &NodeReply) -> CallResponse {
        let mut body = Pieces::default();
        match answer {
            NodeReply::Result(result) => splice(&mut body, id, [result.clone()]),
            NodeReply::Error { code, body: error } => {
                self.front.metrics.node_errors.at((None, NodeCode::from(*code))).inc();
                let mut text = Vec::with_capacity(error.len() + 64);
                reply::node_error(&mut text, id, error);
                body.push(text.into());
            }
        }
        if let Err(error) = self.takes(&body) {
            return self.count_refused(id, None, commitment, error);
        }
        let ended = CallOutcome { method: None, commitment, outcome: Outcome::Bypass };
        self.count(ended, body.len());
        CallResponse { status: Some(CacheStatus::Bypassed), ..CallResponse::new(body, ended) }
    }
}
