//! Long work on threads of lower priority, so that calls come first on each core.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The nice value of low-priority threads. They get about a tenth of the time of a busy core, and all of an idle core.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Runs `work` on a thread of its own with lower priority and returns its result. Returns `None` if `work`
/// panicked or the thread could not be started.
///
/// `spawn_blocking` is unsuitable: its threads are reused, and a thread that has lowered its priority may not
/// raise it again (`setpriority(2)`).
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    Worker::start().run(work).await
}

/// A thread of lower priority that does one work after the other. The allocator keeps memory for each thread that has used
/// much, so work of one kind should always have the same thread.
#[derive(Clone)]
pub(crate) struct Worker(Sender<Box<dyn FnOnce() + Send>>);

impl Worker {
    pub(crate) fn start() -> Self {
        let (sender, works) = channel::<Box<dyn FnOnce() + Send>>();
        // A panic ends only one work.
        let thread =
            spawn(move || works.into_iter().for_each(|work| drop(catch_unwind(AssertUnwindSafe(work)))));
        if let Err(error) = thread {
            tracing::error!(
                %error,
                "cannot start a background thread, so its work is not done; check the limits of threads and memory"
            );
        }
        Self(sender)
    }

    /// Runs `work`, also if the caller stops waiting, and returns its result. Returns `None` if `work` panicked or the thread
    /// could not be started.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, outcome) = oneshot::channel();
        let runtime = Handle::current();
        let work = move || {
            // Tasks and clients that `work` creates belong to the caller's runtime.
            let _entered = runtime.enter();
            // The send fails if the caller has stopped waiting, which does no harm.
            let _ = done.send(work());
        };
        self.0.send(Box::new(work)).ok()?;
        outcome.await.ok()
    }
}

/// Runs `work` on a thread of its own with lower priority, and does not wait for it.
///
/// # Errors
/// The thread could not be started, and `work` was not done.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("low-priority".to_owned());
    thread.spawn(move || {
        lower_priority();
        work();
    })?;
    Ok(())
}

pub fn lower_priority() {
    // Only Linux has a priority for each thread. Elsewhere the work competes with the calls.
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        let thread = Some(rustix::thread::gettid());
        // Root may have started slotfront at a lower one, and could raise it.
        if getpriority_process(thread).is_ok_and(|nice| nice < NICE) {
            let _ = setpriority_process(thread, NICE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_runs_at_lower_priority() {
        let of_this = std::thread::current().id();
        assert_ne!(run(|| std::thread::current().id()).await, Some(of_this));
        assert!(run(|| Handle::try_current().is_ok()).await == Some(true), "tasks can be spawned there");

        #[cfg(target_os = "linux")]
        {
            let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap_or(-99);
            let before = nice();
            assert_eq!(run(nice).await, Some(NICE.max(before)));
            assert_eq!(nice(), before, "the caller keeps its own");
        }
    }

    #[tokio::test]
    async fn panic_returns_nothing() {
        assert_eq!(run(|| -> u8 { panic!("as a test") }).await, None);
    }
}
