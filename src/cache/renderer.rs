//! The renderer writes an entry in a caller's form and content coding, and then checks again if the entry may
//! be served.
//!
//! [`Renderer`] owns the permits that limit how many long texts are written at once, and the compressor.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use super::basis::{Basis, NotServed, Tolerance};
use super::compressor::Compressor;
use super::derive::account::DeriveError;
use super::entry::{CompressedForms, Entry, EntryBody, EntryMeta, Payload, TextParts};
use super::freshness::FreshnessPolicy;
use super::key::LookupPlan;
use super::lookup::Lookup;
use super::options::CacheAnswer;
use super::planned_call::PlannedCall;
use super::render::{is_long_work, is_stored_form, max_written_bytes, write_for};
use super::status::CacheStatus;
use super::verify::Verifier;
use crate::coding::{self, Coding, CompressedText};
use crate::config;
use crate::error::Error;
use crate::methods::Query;
use crate::node::OFF_WORKER_BYTES;
use crate::telemetry::{Metrics, Outcome};

/// The longest time that a fetched answer may take to be written, including the wait for a permit. If the
/// time to live of the answer is longer, it is the limit instead.
const LONGEST_RENDER_WAIT: Duration = Duration::from_millis(400);

/// The longest wait of a caller for a compressed text. After that the text goes out uncompressed.
const COMPRESSION_WAIT: Duration = Duration::from_secs(1);

/// Writes cached entries as answers, in the form that a caller asked for.
pub(super) struct Renderer {
    lookup: Arc<Lookup>,
    freshness: Arc<FreshnessPolicy>,
    /// The permits for writing long texts on blocking threads. They limit how many texts are written at once.
    render_permits: Arc<Semaphore>,
    compressor: Arc<Compressor>,
    verifier: Arc<Verifier>,
    metrics: Arc<Metrics>,
    request_timeout: Duration,
    tasks: TaskTracker,
}

impl Renderer {
    /// Creates a renderer for the entries of `lookup`. `cores` bounds the number of long texts that are
    /// written at once.
    pub(super) fn new(
        config: &config::Config,
        cores: usize,
        lookup: Arc<Lookup>,
        verifier: Arc<Verifier>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            freshness: Arc::clone(&lookup.freshness),
            lookup,
            render_permits: Arc::new(Semaphore::new(cores * 2)),
            compressor: Arc::new(Compressor::new(cores, Arc::clone(&metrics))),
            verifier,
            metrics,
            request_timeout: config.server.request_timeout,
            tasks,
        }
    }

    /// Returns the compressor.
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

    /// Returns an entry as this caller's answer. Memory for a long text is reserved first. The text then waits
    /// for a permit until the caller's deadline.
    ///
    /// # Errors
    /// [`NotServed::Unusable`] if the entry may no longer be served once it is written. [`NotServed::Failed`]
    /// if it cannot be written, or if memory or time is short.
    pub(super) async fn render(
        &self,
        call: &PlannedCall<'_>,
        entry: &Arc<Entry>,
        basis: Basis,
    ) -> Result<CacheAnswer, NotServed> {
        let (query, began_at) = (call.query, Instant::now());
        let is_long = is_long_work(query, entry);
        let mut memory = None;
        let written = if is_long {
            // Memory is reserved before the wait, so that a text without memory does not queue.
            memory = Some(
                call.conditions.reserve_memory(max_written_bytes(query, entry)).ok_or(Error::Overloaded)?,
            );
            let permit =
                timeout_at(call.options.deadline, Arc::clone(&self.render_permits).acquire_owned()).await;
            let Ok(Ok(permit)) = permit else { return Err(Error::TimedOut(self.request_timeout).into()) };
            // An entry that has become too old during the wait is not worth the work.
            if !self.is_in_bounds(call, &entry.meta, basis, began_at)
                || self.would_go_back(call, entry, basis)
            {
                return Err(NotServed::Unusable);
            }
            let (query, entry) = (query.clone(), Arc::clone(entry));
            let taken = memory.take();
            let work = tokio::task::spawn_blocking(move || {
                // The permit and the memory are held until the work ends, even if the caller has left.
                let _permit = permit;
                (write_for(&query, &entry), taken)
            });
            let (written, taken) = work.await.unwrap_or((Err(DeriveError::Broken), None));
            memory = taken;
            written
        } else {
            write_for(query, entry)
        };
        // A malformed answer of a node counts as no answer.
        let (payload, derived) = written.map_err(|_| Error::NoUpstream(Vec::new()))?;
        let (compressed, waited_for_compression) = self.compress(call, entry, &payload).await;
        let waited = is_long || waited_for_compression;
        let basis = match basis {
            // An answer that was asked for after the caller arrived may be served however long the work
            // takes.
            Basis::FetchedSinceArrival(..) => basis,
            _ if !waited || self.is_in_bounds(call, &entry.meta, basis, began_at) => basis,
            _ if entry.meta.sent_at >= call.arrived_at => {
                Basis::FetchedSinceArrival(CacheStatus::Collapsed, Outcome::Collapsed)
            }
            _ => return Err(NotServed::Unusable),
        };
        // An entry that was looked up and has not waited needs no second check.
        if (waited || !matches!(basis, Basis::LookedUp)) && self.would_go_back(call, entry, basis) {
            return Err(NotServed::Unusable);
        }
        let Some((status, outcome)) = self.freshness.status(&entry.meta, basis) else {
            return Err(NotServed::Unusable);
        };
        let (status, outcome) = match (status, outcome) {
            (CacheStatus::Hit { ttl_s, stale, .. }, outcome) => {
                self.verifier.sample(query, entry, &payload);
                let outcome = if derived && outcome == Outcome::Hit { Outcome::Derived } else { outcome };
                (CacheStatus::Hit { ttl_s, derived, stale }, outcome)
            }
            (CacheStatus::Carried, outcome) => {
                self.verifier.sample(query, entry, &payload);
                self.lookup.carrier.count_carried(query);
                (CacheStatus::Carried, outcome)
            }
            as_it_is => as_it_is,
        };
        if outcome.is_hit() {
            self.observe_lag(&entry.meta);
        }
        // From here on the code that receives the answer accounts for its memory.
        drop(memory);
        Ok(CacheAnswer { payload, meta: entry.meta, status, outcome, compressed })
    }

    /// Records in the metrics by how many slots a hit is behind the newest known slot.
    fn observe_lag(&self, meta: &EntryMeta) {
        if let Some((commitment, lag)) = self.freshness.slots_behind(meta) {
            #[expect(clippy::cast_precision_loss, reason = "a histogram of slots")]
            self.metrics.cache_served_lag.at(Some(commitment)).observe(lag as f64);
        }
    }

    /// Returns true if an entry is still young enough after a wait. An entry that the look-up found must also
    /// reach the slot that the caller wants at present, which may have risen during the wait.
    fn is_in_bounds(
        &self,
        call: &PlannedCall<'_>,
        meta: &EntryMeta,
        basis: Basis,
        began_at: Instant,
    ) -> bool {
        let min_slot = if matches!(basis, Basis::LookedUp) {
            call.min_slot().max(call.conditions.monotonic_slot())
        } else {
            None
        };
        let in_time = match basis {
            Basis::FetchedSinceArrival(..) => {
                began_at.elapsed() <= self.freshness.ttl(meta.class).max(LONGEST_RENDER_WAIT)
            }
            _ => self.freshness.status(meta, basis).is_some(),
        };
        in_time && meta.reaches(min_slot)
    }

    /// Returns true if an entry must not be sent because a newer answer is stored or was sent to a caller. On
    /// the last try, this applies only to an entry that the look-up found. A newer answer to another caller
    /// thus never causes an error.
    fn would_go_back(&self, call: &PlannedCall<'_>, entry: &Entry, basis: Basis) -> bool {
        (!call.is_retry || matches!(basis, Basis::LookedUp))
            && self.lookup.entries.is_overtaken(&call.plan, entry, basis)
    }

    /// Makes an answer to `plan` from a stored answer to another call, and stores it. `None` if no stored
    /// answer is suitable, or if no permit to write a long text is free by the deadline. Also `None` if
    /// `tolerance` allows only fresh answers, and the new answer cannot be stored.
    pub(super) async fn derive(
        &self,
        plan: &LookupPlan,
        tolerance: Tolerance,
        deadline: Instant,
    ) -> Option<Arc<Entry>> {
        let generation = self.lookup.entries.generation();
        let (source, derivation) = self.lookup.find_source(plan, tolerance)?;
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
            text.filter(|_| self.freshness.allows(&source.meta, tolerance, Instant::now()))
        } else {
            derivation.make(&text)
        };
        let body = EntryBody::Verbatim(Payload::Result(TextParts::One(written?)));
        let meta = EntryMeta { derived: true, ..source.meta };
        let entry = Arc::new(Entry { body, meta, stamp: None, compressed: CompressedForms::default() });
        let is_stored = self.lookup.insert_derived(plan, &entry, generation);
        (is_stored || tolerance != Tolerance::Fresh).then_some(entry)
    }

    /// Returns `payload`, which was written from `entry`, in the coding that the caller accepts. `None` if
    /// the text is not compressed. The second value is true if the call had to wait.
    async fn compress(
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
