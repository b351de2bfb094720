//! Performance samples: the answer to a smaller limit is the beginning of the whole list, because nodes list
//! the newest sample first.

use bytes::{Bytes, BytesMut};

use crate::node::answer::elements;

/// Returns the first `limit` elements of a JSON array. `None` if `all` is not an array.
pub fn head(all: &Bytes, limit: u16) -> Option<Bytes> {
    let elements = elements(all)?;
    let mut head = BytesMut::from(&b"["[..]);
    for (i, element) in elements.iter().take(usize::from(limit)).enumerate() {
        if i > 0 {
            head.extend_from_slice(b",");
        }
        head.extend_from_slice(element);
    }
    head.extend_from_slice(b"]");
    Some(head.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_limit_is_a_prefix() {
        let all = Bytes::from_static(br#"[{"slot":3},{"slot":2},{"slot":1}]"#);
        for (limit, expected) in [
            (0, "[]"),
            (1, r#"[{"slot":3}]"#),
            (2, r#"[{"slot":3},{"slot":2}]"#),
            (9, r#"[{"slot":3},{"slot":2},{"slot":1}]"#),
        ] {
            assert_eq!(head(&all, limit).as_deref(), Some(expected.as_bytes()));
        }
        assert_eq!(head(&Bytes::from_static(b"{}"), 1), None);
    }
}
