//! The pauses before refused messages that come again.
//!
//! Client libraries repeat a refused subscription at once and for ever. So its refusal costs them time, and neither the
//! connection nor the key's rate: the repeated message waits, longer each time, while the connection's other calls go on.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// The first pause, which doubles up to the longest one. A message that comes later than the longest one after its refusal
/// is a new one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The maximum number of refused messages that a connection remembers. If there are more, it forgets all, and each of them
/// then takes from the key's rate again.
const MAX_REFUSED: usize = 256;
/// The maximum number of bytes of the messages that wait for one connection, each with [`MESSAGE_BYTES`] more: some 150 of
/// usual length.
const MAX_WAITING: usize = 32 << 10;
/// The memory of a message that waits, without its text.
const MESSAGE_BYTES: usize = size_of::<(Instant, Bytes)>();

/// The refused messages of a connection, known by hashes of their calls, and those of them that wait.
#[derive(Debug, Default)]
pub(super) struct RefusalPauses {
    /// The last pause before each refused message, and its end.
    refused: HashMap<u64, (Duration, Instant)>,
    /// The messages, each with the time until which it waits.
    waiting: Vec<(Instant, Bytes)>,
    waiting_bytes: usize,
}

impl RefusalPauses {
    /// Lets the message with the hash `asked` wait if it was refused just now. Returns true if it waits. `None` if too many
    /// messages do.
    pub(super) fn wait(&mut self, asked: u64, message: &Bytes, now: Instant) -> Option<bool> {
        let Some((pause, end)) = self.refused.get_mut(&asked) else { return Some(false) };
        if now > *end + LONGEST_PAUSE {
            self.refused.remove(&asked);
            return Some(false);
        }
        *pause = (*pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        *end = now + *pause;
        self.waiting_bytes += message.len() + MESSAGE_BYTES;
        // Copied, because a message may be a slice of a longer buffer.
        self.waiting.push((*end, Bytes::copy_from_slice(message)));
        (self.waiting_bytes <= MAX_WAITING).then_some(true)
    }

    /// Records what became of the message with the hash `asked`.
    pub(super) fn note(&mut self, asked: u64, is_refused: bool, now: Instant) {
        if !is_refused {
            self.refused.remove(&asked);
            return;
        }
        let (_, end) = self.refused.entry(asked).or_insert((Duration::ZERO, now));
        *end = now.max(*end);
        if self.refused.len() > MAX_REFUSED {
            self.refused.clear();
        }
    }

    /// Removes the message that has waited for the longest time beyond its pause, and returns it.
    ///
    /// # Errors
    /// None is due. The error is the time at which the next one is, `None` if no message waits.
    pub(super) fn next(&mut self, now: Instant) -> Result<Bytes, Option<Instant>> {
        let next = (0..self.waiting.len()).min_by_key(|at| self.waiting[*at].0).ok_or(None)?;
        if self.waiting[next].0 > now {
            return Err(Some(self.waiting[next].0));
        }
        let (_, message) = self.waiting.remove(next);
        self.waiting_bytes -= message.len() + MESSAGE_BYTES;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: Bytes = Bytes::from_static(&[b'x'; 150]);

    /// Lets the message `asked` wait, and returns its pause in milliseconds.
    fn pause(pauses: &mut RefusalPauses, asked: u64, now: Instant) -> Option<u128> {
        assert!(pauses.wait(asked, &MESSAGE, now).is_some(), "too many wait");
        let end = pauses.waiting.pop().map(|(end, _)| end);
        pauses.waiting_bytes = 0;
        end.map(|end| (end - now).as_millis())
    }

    #[tokio::test]
    async fn pauses_grow_and_end_with_the_repetition() {
        let (mut pauses, mut now) = (RefusalPauses::default(), Instant::now());
        assert_eq!(pause(&mut pauses, 1, now), None);
        pauses.note(1, true, now);
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            assert_eq!(pause(&mut pauses, 1, now), Some(expected));
            now += Duration::from_millis(u64::try_from(expected).unwrap());
            pauses.note(1, true, now);
        }
        assert_eq!(pause(&mut pauses, 2, now), None, "another message");
        now += LONGEST_PAUSE + Duration::from_millis(1);
        assert_eq!(pause(&mut pauses, 1, now), None, "it comes late");
        pauses.note(1, true, now);
        assert_eq!(pause(&mut pauses, 1, now), Some(100));
        pauses.note(1, false, now);
        assert_eq!(pause(&mut pauses, 1, now), None, "it was accepted");
    }

    #[tokio::test]
    async fn what_waits_and_what_is_remembered_is_bounded() {
        let (mut pauses, now) = (RefusalPauses::default(), Instant::now());
        for asked in 0..100_000 {
            pauses.note(asked, true, now);
            assert!(pauses.refused.len() <= MAX_REFUSED);
        }
        pauses.note(7, true, now);
        let waits = (0..1_000).take_while(|_| pauses.wait(7, &MESSAGE, now).is_some()).count();
        assert!((100..200).contains(&waits), "{waits}");
        while pauses.next(now + LONGEST_PAUSE).is_ok() {}
        assert_eq!((pauses.next(now), pauses.waiting_bytes), (Err(None), 0));
    }

    #[tokio::test]
    async fn messages_come_when_they_are_due() {
        let (mut pauses, now) = (RefusalPauses::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        // The second message of each waits for 200 milliseconds.
        for (asked, text) in [(1, "a"), (1, "c"), (2, "b")] {
            pauses.note(asked, true, now);
            assert_eq!(pauses.wait(asked, &Bytes::from_static(text.as_bytes()), now), Some(true));
        }
        assert_eq!(pauses.next(at(99)), Err(Some(at(100))));
        assert_eq!([pauses.next(at(100)), pauses.next(at(100))].map(|next| next.unwrap()), ["a", "b"]);
        assert_eq!(pauses.next(at(199)), Err(Some(at(200))));
        assert_eq!(pauses.next(at(200)).unwrap(), "c");
    }
}
