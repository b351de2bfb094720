//! Writing an entry as an answer, in the form and content coding that a caller asked for.
//!
//! [`Renderer`] owns the permits that limit how many long texts are written at once, and the [`Compressor`]. The
//! compressed form of a stored text belongs to the entry and is counted in the entry's weight. A text that is written for
//! one caller is compressed for that caller only.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use super::derive::account::DeriveError;
use super::derive::block::{BlockShape, OwnHeight};
use super::derive::{self, Derivation, Picked, list};
use super::entry::{Entry, EntryBody, EntryMeta, Payload, TextParts};
use super::freshness::{Limit, ServeRule};
use super::key::{ALL_SAMPLES, LookupPlan};
use super::lookup::Lookup;
use super::store::Insert;
use super::{MemoryPermit, PlannedCall};
use crate::coding::{self, CompressedText};
use crate::error::Error;
use crate::low_priority;
use crate::methods::{AnyMethod, BASE58_TOO_LONG, BASE58_TOO_LONG_CODE, BlockEncoding, Method, Query};
use crate::node::OFF_WORKER_BYTES;
use crate::pool::Pool;
use crate::telemetry::{Compression, Metrics};

/// The length in bytes above which a text is compressed off the async workers, because it would block a worker for
/// too long.
const COMPRESS_OFF_WORKER_BYTES: usize = 64 * 1024;
/// The longest wait of a caller for a compressed text. After that the text goes out uncompressed.
const COMPRESSION_WAIT: Duration = Duration::from_secs(1);

/// Writes cached entries as answers, in the form that a caller asked for.
pub(super) struct Renderer {
    lookup: Arc<Lookup>,
    /// The permits for writing long texts on blocking threads. They limit how many texts are written at once.
    render_permits: Arc<Semaphore>,
    compressor: Arc<Compressor>,
    pool: Arc<Pool>,
    tasks: TaskTracker,
}

pub(super) struct WritePermit {
    permit: OwnedSemaphorePermit,
    memory: MemoryPermit,
}

impl Renderer {
    /// Creates a renderer for the entries of `lookup`. `cores` bounds the number of long texts that are
    /// written at once.
    pub(super) fn new(cores: usize, lookup: Arc<Lookup>, pool: Arc<Pool>, tasks: TaskTracker) -> Self {
        Self {
            render_permits: Arc::new(Semaphore::new(cores * 2)),
            compressor: Arc::new(Compressor::new(cores, Arc::clone(&lookup.metrics))),
            lookup,
            pool,
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
        match timeout_at(call.options.deadline(), permit).await {
            Ok(Ok(permit)) => Ok(WritePermit { permit, memory }),
            _ => Err(Error::TimedOut(call.options.timeout)),
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
    /// `rule` allows only fresh answers, and a purge or a newer answer has come in between.
    pub(super) async fn derive(
        &self,
        plan: &LookupPlan,
        rule: ServeRule,
        deadline: Instant,
    ) -> Option<Arc<Entry>> {
        let generation = self.lookup.generation.number();
        let (source, derivation) = self.lookup.find_source(plan, rule)?;
        let (entry, waited) = self.make(&source, derivation, deadline).await?;
        // The stored answer may have expired meanwhile.
        if waited && !self.lookup.freshness.serves(&rule, &source.meta, Instant::now()).is_yes() {
            return None;
        }
        let entry = Arc::new(Entry { meta: EntryMeta { derived: true, ..entry.meta }, ..entry });
        let inserted = self.lookup.insert_derived(plan, &entry, generation);
        let is_newest = inserted.is_some_and(|inserted| !matches!(inserted, Insert::KeptNewer(_)));
        (is_newest || rule.limit > Limit::Fresh).then_some(entry)
    }

    /// Makes an entry from `source`, of the same slot and age. The second value is true if the work took place off the
    /// worker. `None` if `source` does not allow it, or if no permit to write a long text is free by the deadline.
    pub(super) async fn make(
        &self,
        source: &Entry,
        derivation: Derivation,
        deadline: Instant,
    ) -> Option<(Entry, bool)> {
        let EntryBody::Verbatim(Payload::Result(TextParts::One(text))) = &source.body else { return None };
        let text = text.clone();
        let of_nodes = self.own_height_of_nodes();
        let is_long = text.len() > OFF_WORKER_BYTES;
        let payload = if is_long {
            let permit = Arc::clone(&self.render_permits).acquire_owned();
            let permit = timeout_at(deadline, permit).await.ok()?.ok()?;
            let work = tokio::task::spawn_blocking(move || {
                // The permit is held until the work ends, even if the caller has left.
                let _permit = permit;
                derivation.make(&text, of_nodes)
            });
            work.await.ok().flatten()
        } else {
            derivation.make(&text, of_nodes)
        };
        Some((Entry::new(EntryBody::Verbatim(payload?), source.meta, None), is_long))
    }

    /// Returns false if it is unknown how nodes write what `derivation` would make, so that it would often be in vain.
    pub(super) fn knows_to_make(&self, derivation: &Derivation) -> bool {
        !matches!(derivation, Derivation::Rewritten(BlockShape { encoding: BlockEncoding::Json, .. }))
            || self.own_height_of_nodes().is_some()
    }

    /// Returns the `stackHeight` that all nodes with blocks write beside a transaction's own instructions.
    fn own_height_of_nodes(&self) -> Option<OwnHeight> {
        let members = self.pool.members();
        let with_blocks = members.iter().filter(|member| !member.lacks(AnyMethod::Own(Method::GetBlock)));
        OwnHeight::of_versions(with_blocks.map(|member| member.version()))
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
        let is_kept = is_stored_form(call.query, entry);
        if is_kept && let Some(compressed) = entry.compressed.made(coding) {
            return (Some(Arc::clone(compressed)), false);
        }
        let until = call.options.deadline().min(Instant::now() + COMPRESSION_WAIT);
        let (lookup, compressor) = (Arc::clone(&self.lookup), Arc::clone(&self.compressor));
        let (query, entry, body) = (call.query.clone(), Arc::clone(entry), body.clone());
        let compressing = async move {
            let bytes = body.len();
            let work = move || CompressedText::new(coding, &body.whole()).map(Arc::new);
            if !is_kept {
                return compressor.compress(bytes, work).await;
            }
            // The form is made once for all callers.
            let mut is_first = false;
            let made = entry.compressed.of(coding).get_or_try_init(|| async {
                is_first = true;
                compressor.compress(bytes, work).await.ok_or(())
            });
            let compressed = made.await.ok().cloned();
            if is_first {
                lookup.update_weight(&query, &entry);
            }
            compressed
        };
        // The task goes on even if the caller leaves, so that the work is not repeated.
        let compressed = timeout_at(until, self.tasks.spawn(compressing)).await;
        let compressed = compressed.ok().and_then(Result::ok).flatten();
        (compressed, true)
    }
}

/// Compresses texts, a bounded number of long ones at a time. Long texts are compressed on threads of low priority.
///
/// No call waits for its turn. A long text for which no thread is free goes out uncompressed.
pub struct Compressor {
    permits: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl Compressor {
    /// Creates a compressor that compresses at most `permits` long texts at once.
    pub fn new(permits: usize, metrics: Arc<Metrics>) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits)), metrics }
    }

    /// Runs `work`, which compresses a text of `bytes` bytes. `None` if too many long texts are being
    /// compressed, or if the work fails.
    pub async fn compress<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let count = |what| self.metrics.compressions.at(what).inc();
        if bytes <= COMPRESS_OFF_WORKER_BYTES {
            return work().inspect(|_| count(Compression::Done));
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            count(Compression::Skipped);
            return None;
        };
        let work = low_priority::run(move || {
            // The permit is held until the work ends, even if the caller has left.
            let _permit = permit;
            work()
        });
        work.await.flatten().inspect(|_| count(Compression::Done))
    }
}

/// Returns the payload of `entry` in the form that `query` asks for. The second value is true if the answer
/// counts as derived, that is, made from an answer to another call.
pub(super) fn write_for(query: &Query, entry: &Entry) -> Result<(Payload, bool), DeriveError> {
    let (form, asked, made) = match (&entry.body, query) {
        (EntryBody::Account { result, value, asked, .. }, Query::Account(q)) => {
            (q.form, *asked, list::write_single(result, value, q.form))
        }
        (EntryBody::Accounts { context, values, asked }, Query::Accounts(q)) => {
            (q.form, *asked, list::write_list(context, values, q.form))
        }
        (EntryBody::Account { result, context, value, asked }, Query::Lamports(_)) => {
            let context = &result[context.0 as usize..context.1 as usize];
            let text = derive::lamports(context, value.text()).ok_or(DeriveError::Broken)?;
            return Ok((Payload::Result(text.into()), entry.meta.derived || asked.is_some()));
        }
        (EntryBody::Verbatim(payload), _) => {
            return match (payload, picked_by(query)) {
                (Payload::Result(TextParts::One(all)), Some(picked)) => {
                    let list = picked.of(all).ok_or(DeriveError::Broken)?;
                    Ok((Payload::Result(list.into()), true))
                }
                _ => Ok((payload.clone(), entry.meta.derived)),
            };
        }
        _ => return Err(DeriveError::Broken),
    };
    // An answer that was fetched for the caller's own form is not reported as derived.
    let fetched_for_it = form.slice.is_none() && asked == Some(form.encoding);
    match made {
        Ok((body, differs)) => {
            Ok((Payload::Result(body), entry.meta.derived || (differs && !fetched_for_it)))
        }
        Err(DeriveError::Base58TooLong) => Ok((base58_too_long(), !fetched_for_it)),
        Err(DeriveError::Broken) => Err(DeriveError::Broken),
    }
}

/// Returns the part of the stored list that `query` asks for. `None` for all of it, and if it asks for no list.
fn picked_by(query: &Query) -> Option<Picked> {
    match query {
        Query::Samples(q) if q.limit < ALL_SAMPLES => Some(Picked::First(q.limit.into())),
        Query::Page(q) if q.limit < q.longer_limit() => Some(Picked::First(q.limit)),
        Query::Plain(call) => {
            let (set, places) = call.of_address_set()?;
            (set != *call).then_some(Picked::At(places))
        }
        _ => None,
    }
}

/// Returns the error with which a node refuses long data in base58.
fn base58_too_long() -> Payload {
    let body = format!(r#"{{"code":{BASE58_TOO_LONG_CODE},"message":"{BASE58_TOO_LONG}"}}"#);
    Payload::Error { code: BASE58_TOO_LONG_CODE, body: Bytes::from(body) }
}

/// Returns the most memory, in bytes, that `entry` takes once it is written in the form that `query` asks for.
/// The stored text does not count.
pub(super) fn max_written_bytes(query: &Query, entry: &Entry) -> usize {
    match (&entry.body, query) {
        (EntryBody::Account { value, .. }, Query::Account(q)) => value.max_written_bytes(q.form),
        (EntryBody::Accounts { values, .. }, Query::Accounts(q)) => {
            values.iter().map(|value| value.max_written_bytes(q.form)).sum()
        }
        (EntryBody::Verbatim(payload), _) => payload.len(),
        _ => 0,
    }
}

/// Returns true if writing `entry` in the form that `query` asks for would block an async worker for too long.
pub(super) fn is_long_work(query: &Query, entry: &Entry) -> bool {
    !is_stored_form(query, entry) && entry.body.weight() > OFF_WORKER_BYTES
}

/// Returns true if `entry` is stored in the form that `query` asks for.
pub(super) fn is_stored_form(query: &Query, entry: &Entry) -> bool {
    match (&entry.body, query) {
        (EntryBody::Account { value, .. }, Query::Account(q)) => value.is_stored_in(q.form),
        (EntryBody::Accounts { values, .. }, Query::Accounts(q)) => {
            values.iter().all(|value| value.is_stored_in(q.form))
        }
        (EntryBody::Verbatim(_), _) => picked_by(query).is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
