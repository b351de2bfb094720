//! A request or response body that arrives in chunks, buffered up to a limit. A single chunk, the usual case,
//! is not copied.

use bytes::Bytes;

/// The maximum number of bytes that are reserved for a body before its bytes arrive.
const MAX_RESERVED_BYTES: usize = 16 << 20;

/// The error that a body is longer than the buffer's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverLimit;

/// The chunks of a body that have arrived so far.
#[derive(Debug)]
pub struct BodyBuffer {
    limit: usize,
    first: Bytes,
    rest: Vec<u8>,
}

impl BodyBuffer {
    /// Creates an empty buffer for at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, first: Bytes::new(), rest: Vec::new() }
    }

    /// Creates an empty buffer for at most `limit` bytes, and reserves memory for `announced` bytes. At most
    /// 16 MiB are reserved, because the sender may announce more than it sends.
    pub fn with_expected_length(announced: usize, limit: usize) -> Self {
        let rest = Vec::with_capacity(announced.min(limit).min(MAX_RESERVED_BYTES));
        Self { limit, first: Bytes::new(), rest }
    }

    /// Adds the next chunk of the body.
    ///
    /// # Errors
    /// [`OverLimit`] if the body would be longer than the limit.
    pub fn push(&mut self, chunk: Bytes) -> Result<(), OverLimit> {
        if self.first.len() + self.rest.len() + chunk.len() > self.limit {
            return Err(OverLimit);
        }
        if self.first.is_empty() && self.rest.capacity() == 0 {
            self.first = chunk;
            return Ok(());
        }
        if !self.first.is_empty() {
            self.rest.reserve(self.first.len() + chunk.len());
            self.rest.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.rest.extend_from_slice(&chunk);
        Ok(())
    }

    /// Returns the whole body. A single chunk is not copied. It keeps in memory the whole buffer into which it
    /// was read.
    pub fn finish(self) -> Bytes {
        if self.rest.is_empty() { self.first } else { self.rest.into() }
    }

    /// Returns the whole body in memory of exactly its length. A cached body then uses no more memory than
    /// the cache counts for it.
    pub fn finish_compact(mut self) -> Bytes {
        if self.rest.is_empty() {
            return Bytes::copy_from_slice(&self.first);
        }
        self.rest.shrink_to_fit();
        self.rest.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_chunks_in_order_up_to_the_limit() {
        let mut buffer = BodyBuffer::new(5);
        for chunk in ["", "ab", "", "cd", "e"] {
            assert_eq!(buffer.push(Bytes::from(chunk)), Ok(()));
        }
        assert_eq!(buffer.push(Bytes::from_static(b"f")), Err(OverLimit));
        assert_eq!(buffer.finish(), "abcde");
    }

    #[test]
    fn single_chunk_is_not_copied() {
        let chunk = Bytes::from(vec![7; 9]);
        let mut buffer = BodyBuffer::new(9);
        assert_eq!(buffer.push(chunk.clone()), Ok(()));
        assert_eq!(buffer.finish().as_ptr(), chunk.as_ptr());
    }

    #[test]
    fn kept_bytes_hold_no_read_buffer() {
        let read_buffer = Bytes::from(vec![7; 8192]);
        let mut buffer = BodyBuffer::new(99);
        assert_eq!(buffer.push(read_buffer.slice(..9)), Ok(()));
        let kept = buffer.finish_compact();
        drop(read_buffer);
        assert_eq!(kept.try_into_mut().map(|kept| kept.capacity()), Ok(9));
    }

    #[test]
    fn announced_length_only_sizes_the_buffer() {
        for announced in [0, 1, 5, 99, 4096, usize::MAX] {
            let mut buffer = BodyBuffer::with_expected_length(announced, 99);
            for chunk in ["ab", "", "cd", "e"] {
                assert_eq!(buffer.push(Bytes::from(chunk)), Ok(()));
            }
            let kept = buffer.finish_compact();
            assert_eq!(kept, "abcde");
            assert_eq!(kept.try_into_mut().map(|kept| kept.capacity()), Ok(5), "{announced}");
        }
        assert_eq!(BodyBuffer::with_expected_length(9, 9).finish_compact(), "");
        assert_eq!(BodyBuffer::with_expected_length(9, 9).push(Bytes::from(vec![0; 10])), Err(OverLimit));
        assert!(
            BodyBuffer::with_expected_length(usize::MAX, usize::MAX).rest.capacity()
                <= 2 * MAX_RESERVED_BYTES
        );
    }
}
