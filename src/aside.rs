//! Long work beside the calls: on a thread of its own that gives way to them.

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How much nicer than the calls: a tenth of a core where they want all of it, and all of what they leave.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// What `work` gives, done on a thread of its own that gives way to the calls; nothing if it panicked or no thread
/// could be had.
///
/// Not `spawn_blocking`: a thread of that pool goes on to other work, and one that has lowered its priority may not
/// raise it again (`setpriority(2)`).
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, outcome) = oneshot::channel();
    let runtime = Handle::current();
    let thread = begin("aside", move || {
        // What is begun there, tasks and clients, belongs to the same runtime.
        let _entered = runtime.enter();
        // Whoever asked may have gone.
        let _ = done.send(work());
    });
    match thread {
        Ok(()) => outcome.await.ok(),
        Err(error) => {
            tracing::error!(%error, "no thread for work beside the calls");
            None
        }
    }
}

/// Begins `work` on a thread of its own, of this name, that gives way to the calls; nobody waits for it.
///
/// # Errors
/// No thread could be had: `work` is not done.
pub(crate) fn begin(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(move || {
        give_way();
        work();
    })?;
    Ok(())
}

/// Lowers the priority of this thread for good.
pub fn give_way() {
    // Linux alone has a priority for each thread; without it the work goes on as quickly, and is only less polite.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_aside_and_gives_way() {
        let of_this = std::thread::current().id();
        assert_ne!(aside(|| std::thread::current().id()).await, Some(of_this));
        assert!(aside(|| Handle::try_current().is_ok()).await == Some(true), "tasks can be begun there");

        #[cfg(target_os = "linux")]
        {
            let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap_or(-99);
            let before = nice();
            assert_eq!(aside(nice).await, Some(NICE.max(before)));
            assert_eq!(nice(), before, "the caller keeps its own");
        }
    }

    #[tokio::test]
    async fn a_panic_aside_is_nothing_and_no_end() {
        assert_eq!(aside(|| -> u8 { panic!("as a test") }).await, None);
    }
}
