//! The calls that reach the nodes of one gateway.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slotfront_lab::reads::WriteRate;
use slotfront_rpc::jsonrpc::Call;
use slotfront_rpc::methods::{Commitment, Method, Profile, Pubkey, Query};
use slotfront_sim::Node;

/// The kind of a call for accounts: its method, its commitment, and the write rate of its most often written account.
pub(crate) type Fetch = (Method, Commitment, WriteRate);

/// The numbers of calls that the nodes of one gateway got.
#[derive(Debug, Clone, Default)]
pub(crate) struct UpstreamCalls {
    pub(crate) fetches: HashMap<Fetch, u64>,
    /// The numbers of all other calls, by method. Calls for accounts with unknown write rates are among them.
    pub(crate) others: HashMap<String, u64>,
}

/// A counter of the calls that the nodes of one gateway get.
pub(crate) struct UpstreamCounter {
    rates: Arc<HashMap<Pubkey, WriteRate>>,
    calls: Mutex<UpstreamCalls>,
}

impl UpstreamCounter {
    /// Returns a counter of the calls that `nodes` get from now on.
    pub(crate) fn over(nodes: &[Arc<Node>], rates: &Arc<HashMap<Pubkey, WriteRate>>) -> Arc<Self> {
        let counter = Arc::new(Self { rates: Arc::clone(rates), calls: Mutex::default() });
        for node in nodes {
            let counter = Arc::clone(&counter);
            node.observe(move |call| counter.count(call));
        }
        counter
    }

    fn count(&self, call: &Call) {
        let fetch = self.fetch(call);
        let mut calls = self.calls();
        match fetch {
            Some(fetch) => *calls.fetches.entry(fetch).or_default() += 1,
            None => *calls.others.entry(String::from_utf8_lossy(&call.method).into_owned()).or_default() += 1,
        }
    }

    /// Returns the kind of a call for accounts. `None` for any other call, and for a call whose accounts all have
    /// unknown write rates.
    fn fetch(&self, call: &Call) -> Option<Fetch> {
        let method = Method::from_name(std::str::from_utf8(&call.method).ok()?)?;
        let query = Query::parse(method, &call.params, Profile::Node).ok()?;
        let rate = match &query {
            Query::Account(query) => self.rates.get(&query.pubkey).copied(),
            Query::Accounts(query) => {
                query.pubkeys.iter().filter_map(|key| self.rates.get(key).copied()).max()
            }
            _ => None,
        };
        Some((method, query.commitment()?, rate?))
    }

    /// Returns the numbers of calls so far, and sets the counter to 0.
    pub(crate) fn take(&self) -> UpstreamCalls {
        std::mem::take(&mut *self.calls())
    }

    fn calls(&self) -> MutexGuard<'_, UpstreamCalls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UpstreamCalls {
    /// Returns the number of calls for accounts. Only calls whose kind `choose` accepts are counted.
    pub(crate) fn sum(&self, choose: impl Fn(&Fetch) -> bool) -> u64 {
        self.fetches.iter().filter(|(fetch, _)| choose(fetch)).map(|(_, number)| number).sum()
    }

    /// Returns the number of calls of `method` in `others`.
    pub(crate) fn other(&self, method: &str) -> u64 {
        self.others.get(method).copied().unwrap_or(0)
    }
}
