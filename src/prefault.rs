//! Room for long bodies, written to before it is needed ("prefaulted").
//!
//! The system gives memory out page by page, when it is first written to, and that was a third of what a long answer
//! costs. So once a long body has come, a thread that gives way to the calls writes to room for the next ones. Nobody
//! waits for it: whoever finds none that fits takes fresh memory.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::aside;

/// Shorter bodies have no room made for them.
pub const LONG_BYTES: usize = 256 * 1024;
/// All the room that is kept ready, at most; for longer bodies none is.
pub const MOST_BYTES: usize = 16 << 20;
/// So many bodies at once find room, if they are short enough for that.
const READY: usize = 2;
/// Room is made for the longest of so many long bodies that came last.
const RECENT: usize = 16;
/// What is a multiple of this is asked for, so that bodies of about the same length find room.
const STEP: usize = 256 * 1024;
/// A body that fills less than this part of a room wastes it.
const LEAST_PART: usize = 4;
/// How far apart the places stand that are written to: no page of any system is smaller.
const PAGE: usize = 4096;
/// Where no long body has come for so long, the room is given back.
const IDLE: Duration = Duration::from_secs(10);

/// Room for long bodies.
#[derive(Debug)]
pub struct Prefault(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    idle: Duration,
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Vec<u8>>,
    /// Lengths of the long bodies that came last.
    recent: VecDeque<usize>,
    /// How many came.
    came: u64,
    /// Whether there is a thread that makes room.
    at_work: bool,
}

impl Default for Prefault {
    /// No room, until a long body has come.
    fn default() -> Self {
        Self::that_idles(IDLE)
    }
}

impl Prefault {
    fn that_idles(idle: Duration) -> Self {
        Self(Arc::new(Shared { idle, state: Mutex::default(), came: Condvar::new() }))
    }

    /// Empty room for `length` bytes at least, if there is some that they fill well.
    pub fn take(&self, length: usize) -> Option<Vec<u8>> {
        if length < LONG_BYTES {
            return None;
        }
        // Held for moments only; who meets another there takes fresh memory.
        let mut state = self.0.state.try_lock().ok()?;
        let fits = |room: &Vec<u8>| room.capacity() >= length && room.capacity() / LEAST_PART <= length;
        let at = state.ready.iter().position(fits)?;
        Some(state.ready.swap_remove(at))
    }

    /// A body of `length` bytes has come, and taken what it needed: if that was long, there is to be room for the next.
    pub fn came(&self, length: usize) {
        if !(LONG_BYTES..=MOST_BYTES).contains(&length) {
            return;
        }
        let mut state = self.0.lock();
        state.recent.truncate(RECENT - 1);
        state.recent.push_front(length);
        state.came += 1;
        if state.at_work {
            drop(state);
            self.0.came.notify_one();
            return;
        }
        let shared = Arc::clone(&self.0);
        match aside::begin("prefault", move || shared.make_room()) {
            Ok(()) => state.at_work = true,
            Err(error) => tracing::warn!(%error, "no thread to make room for long answers"),
        }
    }

    /// How many bytes of room are ready.
    #[cfg(test)]
    fn ready(&self) -> usize {
        self.0.lock().ready.iter().map(Vec::capacity).sum()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room as it is wanted, until no long body comes any more.
    fn make_room(&self) {
        let mut state = self.lock();
        loop {
            let size = state.size();
            // Unlocked while it is made.
            if let Some(misfit) = state.ready.iter().position(|room| room.capacity() != size) {
                let misfit = state.ready.swap_remove(misfit);
                drop(state);
                drop(misfit);
                state = self.lock();
            } else if state.ready.len() < READY.min(MOST_BYTES / size) {
                drop(state);
                let room = written(size);
                state = self.lock();
                state.ready.push(room);
            } else {
                let came = state.came;
                let idle = self.came.wait_timeout_while(state, self.idle, |state| state.came == came);
                let (woken, waited) = idle.unwrap_or_else(PoisonError::into_inner);
                state = woken;
                if waited.timed_out() {
                    let State { ready, recent, .. } = std::mem::take(&mut *state);
                    drop(state);
                    drop((ready, recent));
                    return;
                }
            }
        }
    }
}

impl State {
    /// How much room each long body is to find.
    fn size(&self) -> usize {
        self.recent.iter().copied().max().unwrap_or(LONG_BYTES).next_multiple_of(STEP)
    }
}

/// Empty room of `size` bytes, each page of which was written to.
fn written(size: usize) -> Vec<u8> {
    let mut room = vec![0; size];
    room.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    // Else the writing would be for nothing, and left out.
    let mut room = std::hint::black_box(room);
    room.clear();
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    /// Waits until so many bytes of room are ready.
    #[track_caller]
    fn becomes(prefault: &Prefault, bytes: usize) {
        for _ in 0..60_000 {
            if prefault.ready() == bytes {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} bytes are ready, not {bytes}", prefault.ready());
    }

    #[test]
    fn room_is_made_for_the_longest_of_late_and_is_bounded() {
        let prefault = Prefault::that_idles(Duration::from_hours(1));
        for (came, ready) in [
            (LONG_BYTES - 1, 0),
            (MOST_BYTES + 1, 0),
            (5 * MB, 10 * MB),
            (3 * MB, 10 * MB),
            (5 * MB + 1, 10 * MB + 2 * STEP),
            (8 * MB, 16 * MB),
            (8 * MB + 1, 8 * MB + STEP),
            (MOST_BYTES, MOST_BYTES),
        ] {
            prefault.came(came);
            becomes(&prefault, ready);
        }
        // Once longer ones are long ago, there is less.
        (0..RECENT).for_each(|_| prefault.came(MB));
        becomes(&prefault, 2 * MB);
    }

    #[test]
    fn whoever_finds_no_room_that_fits_takes_none() {
        let prefault = Prefault::that_idles(Duration::from_hours(1));
        assert_eq!(prefault.take(5 * MB), None, "no long body has come");
        prefault.came(5 * MB);
        becomes(&prefault, 10 * MB);
        for (length, fits) in [
            (0, false),
            (LONG_BYTES, false),
            (MB, false),
            (5 * MB + 1, false),
            (2 * MB, true),
            (5 * MB, true),
            (MB, false),
        ] {
            let room = prefault.take(length);
            assert_eq!(room.as_ref().map(Vec::len), fits.then_some(0), "{length}");
            assert!(room.is_none_or(|room| room.capacity() == 5 * MB));
        }
        assert_eq!(prefault.ready(), 0, "made again only when the next has come");
        prefault.came(4 * MB);
        becomes(&prefault, 10 * MB);
    }

    #[test]
    fn room_that_nobody_comes_for_is_given_back() {
        let prefault = Prefault::that_idles(Duration::from_millis(1));
        for _ in 0..3 {
            prefault.came(5 * MB);
            while prefault.0.lock().at_work {
                std::thread::yield_now();
            }
            assert_eq!((prefault.ready(), prefault.take(5 * MB)), (0, None));
        }
    }
}
