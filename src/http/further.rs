//! A call of none of the eight methods: forwarded where `[passthrough]` says so, else refused.

use tokio::time::Instant;

use super::access::Ended;
use super::reply::Pieces;
use super::rpc::{Context, Spoken, splice};
use crate::cache::CacheStatus;
use crate::error::Error;
use crate::jsonrpc::{Id, Params, reply};
use crate::methods::{Forwarded, Further, write_method};
use crate::node::NodeReply;
use crate::pool::Forward;
use crate::telemetry::{NodeCode, Outcome};

impl Context<'_> {
    /// The answer to a call of the method `name`.
    pub(super) async fn other(&self, id: &Id, name: &str, params: Params) -> Spoken {
        if let Some(write) = write_method(name) {
            return self.refused(id, Error::Write(write));
        }
        let forwarded = &self.front.config.passthrough;
        let Some(method) = Further::from_name(name).filter(|method| forwarded.contains(method)) else {
            return self.refused(id, Error::MethodNotFound);
        };
        let call = Forwarded::new(method, params);
        let spoken = match self.forward(&call).await {
            Ok(answer) => self.forwarded(id, &call, &answer),
            Err(error) => self.count_refused(id, None, call.commitment, error),
        };
        let metrics = &self.front.metrics;
        metrics.passthrough_requests.at((method, spoken.ended.outcome)).inc();
        metrics.passthrough_duration.at(method).observe(self.started.elapsed().as_secs_f64());
        spoken
    }

    /// Admits the call, asks a node, and books what the answer cost.
    async fn forward(&self, call: &Forwarded) -> Result<NodeReply, Error> {
        self.principal.admit_forwarded(call)?;
        self.principal.take(Instant::now())?;
        let timeout = self.front.config.server.request_timeout;
        let deadline = self.started + timeout;
        let ask = Forward { call: call.clone(), deadline, trace: self.trace.clone() };
        let answer = tokio::time::timeout_at(deadline, self.front.pool.forward(&ask));
        let answer = answer.await.map_err(|_| Error::TimedOut(timeout))??;
        self.principal.charge_forwarded(call);
        Ok(answer)
    }

    /// A node's word, spoken.
    fn forwarded(&self, id: &Id, call: &Forwarded, answer: &NodeReply) -> Spoken {
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
        if !self.fits(body.len()) {
            let error = Error::AnswersTooLarge { limit: self.front.config.pool.max_response };
            return self.count_refused(id, None, call.commitment, error);
        }
        let ended = Ended { method: None, commitment: call.commitment, outcome: Outcome::Bypass };
        self.count(ended, body.len());
        Spoken { body, coded: None, status: Some(CacheStatus::Bypassed), refusal: None, ended }
    }
}
