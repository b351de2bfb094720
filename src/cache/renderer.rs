//! The renderer writes an entry in a caller's form and content coding.
//!
//! [`Renderer`] owns the permits that limit how many long texts are written at once, and the compressor.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use super::compressor::Compressor;
use super::derive::account::DeriveError;
use super::entry::{CompressedForms, Entry, EntryBody, EntryMeta, Payload, TextParts};
use super::freshness::{Limit, ServeRule};
use super::key::LookupPlan;
use super::lookup::Lookup;
use super::planned_call::{MemoryPermit, PlannedCall};
use super::render::{is_stored_form, max_written_bytes, write_for};
use crate::coding::{self, Coding, CompressedText};
use crate::config;
use crate::error::Error;
use crate::methods::Query;
use crate::node::OFF_WORKER_BYTES;

/// The longest wait of a caller for a compressed text. After that the text goes out uncompressed.
const COMPRESSION_WAIT: Duration = Duration::from_secs(1);

/// Writes cached entries as answers, in the form that a caller asked for.
pub(super) struct Renderer {
    lookup: Arc<Lookup>,
    /// The permits for writing long texts on blocking threads. They limit how many texts are written at once.
    render_permits: Arc<Semaphore>,
    compressor: Arc<Compressor>,
    request_timeout: Duration,
    tasks: TaskTracker,
}

/// The permit to write one long text.
pub(super) struct WritePermit {
    permit: OwnedSemaphorePermit,
    memory: MemoryPermit,
}

impl Renderer {
    /// Creates a renderer for the entries of `lookup`. `cores` bounds the number of long texts that are
    /// written at once.
    pub(super) fn new(
        config: &config::Config,
        cores: usize,
        lookup: Arc<Lookup>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            render_permits: Arc::new(Semaphore::new(cores * 2)),
            compressor: Arc::new(Compressor::new(cores, Arc::clone(&lookup.metrics))),
            lookup,
            request_timeout: config.server.request_timeout,
            tasks,
        }
    }

    pub(super) fn compressor(&self) -> &Arc<Compressor> {
        &self.compressor
    }

    /// Takes all permits for writing long texts. Each later caller who needs one waits until the returned
    /// permits are dropped.
    #[cfg(test)]
    pub(super) async fn take_all_permits(&self) -> tokio::sync::OwnedSemaphorePermit {
        let all = u32::try_from(self.render_permits.available_permits()).unwrap();
        Arc::clone(&self.render_permits).acquire_many_owned(all).await.unwrap()
    }

    /// Reserves memory for the text that `entry` becomes for this caller, and waits until the caller's deadline for
    /// a permit to write it.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if memory is short, and [`Error::TimedOut`] if no permit is free in time.
    pub(super) async fn permit(&self, call: &PlannedCall<'_>, entry: &Entry) -> Result<WritePermit, Error> {
        // Memory is reserved before the wait, so that a text without memory does not queue.
        let memory = call.conditions.reserve_memory(max_written_bytes(call.query, entry));
        let memory = memory.ok_or(Error::Overloaded)?;
        let permit = Arc::clone(&self.render_permits).acquire_owned();
        match timeout_at(call.options.deadline, permit).await {
            Ok(Ok(permit)) => Ok(WritePermit { permit, memory }),
            _ => Err(Error::TimedOut(self.request_timeout)),
        }
    }

    /// Returns `entry` in the form that `query` asks for, and true if it is made from answers to other calls. The
    /// memory for a long text is handed back with it. Without a permit, the text must be short.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] if the entry is malformed, because such an answer of a node counts as none.
    pub(super) async fn write(
        &self,
        query: &Query,
        entry: &Arc<Entry>,
        permit: Option<WritePermit>,
    ) -> Result<(Payload, bool, Option<MemoryPermit>), Error> {
        let (written, memory) = if let Some(WritePermit { permit, memory }) = permit {
            let (query, entry) = (query.clone(), Arc::clone(entry));
            let work = tokio::task::spawn_blocking(move || {
                // The permit and the memory are held until the work ends, even if the caller has left.
                let _permit = permit;
                (write_for(&query, &entry), Some(memory))
            });
            work.await.unwrap_or((Err(DeriveError::Broken), None))
        } else {
            (write_for(query, entry), None)
        };
        let (payload, derived) = written.map_err(|_| Error::NoUpstream(Vec::new()))?;
        Ok((payload, derived, memory))
    }

    /// Makes an answer to `plan` from a stored answer to another call, and stores it. `None` if no stored
    /// answer is suitable, or if no permit to write a long text is free by the deadline. Also `None` if
    /// `rule` allows only fresh answers, and the new answer cannot be stored.
    pub(super) async fn derive(
        &self,
        plan: &LookupPlan,
        rule: ServeRule,
        deadline: Instant,
    ) -> Option<Arc<Entry>> {
        let generation = self.lookup.generation.number();
        let (source, derivation) = self.lookup.find_source(plan, rule)?;
        let EntryBody::Verbatim(Payload::Result(TextParts::One(text))) = &source.body else { return None };
        let text = text.clone();
        let written = if text.len() > OFF_WORKER_BYTES {
            let permit = Arc::clone(&self.render_permits).acquire_owned();
            let permit = timeout_at(deadline, permit).await.ok()?.ok()?;
            let work = tokio::task::spawn_blocking(move || {
                // The permit is held until the work ends, even if the caller has left.
                let _permit = permit;
                derivation.make(&text)
            });
            let text = work.await.ok().flatten();
            // The stored answer may have expired meanwhile.
            text.filter(|_| self.lookup.freshness.serves(&rule, &source.meta, Instant::now()).is_yes())
        } else {
            derivation.make(&text)
        };
        let body = EntryBody::Verbatim(Payload::Result(TextParts::One(written?)));
        let meta = EntryMeta { derived: true, ..source.meta };
        let entry = Arc::new(Entry { body, meta, stamp: None, compressed: CompressedForms::default() });
        let is_stored = self.lookup.insert_derived(plan, &entry, generation);
        (is_stored || rule.limit > Limit::Fresh).then_some(entry)
    }

    /// Returns `payload`, which was written from `entry`, in the coding that the caller accepts. `None` if
    /// the text is not compressed. The second value is true if the call had to wait.
    pub(super) async fn compress(
        &self,
        call: &PlannedCall<'_>,
        entry: &Arc<Entry>,
        payload: &Payload,
    ) -> (Option<Arc<CompressedText>>, bool) {
        let (Some(coding), Payload::Result(body)) = (call.options.coding, payload) else {
            return (None, false);
        };
        if !coding::is_worth(body.len()) {
            return (None, false);
        }
        let is_stored_form = is_stored_form(call.query, entry);
        if is_stored_form && let Some(compressed) = entry.compressed.made(coding) {
            return (Some(Arc::clone(compressed)), false);
        }
        let until = call.options.deadline.min(Instant::now() + COMPRESSION_WAIT);
        let body = body.clone();
        let compressed = if is_stored_form {
            // The task goes on even if the caller leaves, so that the work is not repeated.
            let (lookup, compressor) = (Arc::clone(&self.lookup), Arc::clone(&self.compressor));
            let (query, entry) = (call.query.clone(), Arc::clone(entry));
            let keeping =
                async move { compress_once(&lookup, &compressor, &query, &entry, coding, body).await };
            let stored = self.tasks.spawn(keeping);
            timeout_at(until, stored).await.ok().and_then(Result::ok).flatten()
        } else {
            let bytes = body.len();
            let work = move || CompressedText::new(coding, &body.whole()).map(Arc::new);
            timeout_at(until, self.compressor.compress(bytes, work)).await.ok().flatten()
        };
        (compressed, true)
    }
}

/// Returns the text `body` of `entry` in `coding`. The compressed text is made once for all callers, and
/// stored.
async fn compress_once(
    lookup: &Lookup,
    compressor: &Compressor,
    query: &Query,
    entry: &Arc<Entry>,
    coding: Coding,
    body: TextParts,
) -> Option<Arc<CompressedText>> {
    let mut is_first = false;
    let made = entry.compressed.of(coding).get_or_try_init(|| async {
        is_first = true;
        let bytes = body.len();
        let work = move || CompressedText::new(coding, &body.whole()).map(Arc::new);
        compressor.compress(bytes, work).await.ok_or(())
    });
    let compressed = Arc::clone(made.await.ok()?);
    if is_first {
        lookup.update_weight(query, entry);
    }
    Some(compressed)
}
