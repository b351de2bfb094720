//! The `stackHeight` that nodes write beside the instructions of a transaction itself, which differs by version. A block in
//! base64 does not hold it.

use std::sync::Arc;

use memchr::memmem;
use serde::{Serialize, Serializer};

/// The member `stackHeight` of an instruction that no other has called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnHeight {
    /// Nodes before 1.14.6 have no such member.
    Missing,
    /// Nodes before 2.3 write `null`.
    Null,
    /// Later nodes write 1, the depth of calls at which such an instruction runs.
    One,
}

impl OwnHeight {
    /// Returns what nodes of all `versions` write. `None` if they differ, or if a version is unknown.
    pub fn of_versions(mut versions: impl Iterator<Item = Option<Arc<String>>>) -> Option<Self> {
        let first = Self::of_version(&versions.next()??)?;
        versions.all(|other| other.and_then(|other| Self::of_version(&other)) == Some(first)).then_some(first)
    }

    /// Returns what a node of this version writes. `None` for a version that Agave does not have, and for 1.14, within
    /// which it has changed.
    fn of_version(version: &str) -> Option<Self> {
        let mut parts = version.split('.');
        let mut number = || parts.next()?.parse::<u16>().ok();
        match (number()?, number()?) {
            (1, ..=13) => Some(Self::Missing),
            (0, _) | (1, 14) => None,
            (1, _) | (2, ..=2) => Some(Self::Null),
            _ => Some(Self::One),
        }
    }

    /// Returns what the node has written from which `block` is, a full block in base64. Where the block does not tell, it is
    /// what all nodes write that may have sent it, `of_nodes`.
    pub(super) fn of_block(block: &[u8], of_nodes: Option<Self>) -> Option<Self> {
        // A quote within a text would have a backslash before it.
        let has = |text: &str| memmem::find(block, text.as_bytes()).is_some();
        if has(r#""costUnits":"#) {
            // 2.3 is the first version that writes this member, too.
            Some(Self::One)
        } else if has(r#""stackHeight":"#) {
            of_nodes.filter(|height| *height != Self::Missing)
        } else if has(r#""instructions":[{"#) {
            Some(Self::Missing)
        } else {
            of_nodes
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_missing(&self) -> bool {
        *self == Self::Missing
    }
}

impl Serialize for OwnHeight {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Some(1).filter(|_| *self == Self::One).serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::OwnHeight::{Missing, Null, One};
    use super::*;

    #[test]
    fn versions_that_differ_or_are_unknown_decide_nothing() {
        for (versions, expected) in [
            (&["4.0.0"][..], Some(One)),
            (&["4.5.0-alpha.4", "2.3.0", "10.0.1"], Some(One)),
            (&["2.2.20", "1.18.26", "1.15.0"], Some(Null)),
            (&["1.13.6", "1.9.0"], Some(Missing)),
            (&["1.14.5"], None),
            (&["2.2.20", "2.3.0"], None),
            (&["4.0.0", "?"], None),
            (&["?", "4.0.0"], None),
            (&["0.708.40000"], None),
            (&["4"], None),
            (&["four.0"], None),
            (&[], None),
        ] {
            let version = |version: &&str| (*version != "?").then(|| Arc::new((*version).to_owned()));
            assert_eq!(OwnHeight::of_versions(versions.iter().map(version)), expected, "{versions:?}");
        }
    }

    #[test]
    fn a_block_tells_more_than_the_versions() {
        let all = [None, Some(Missing), Some(Null), Some(One)];
        let inner = |height| {
            format!(r#"{{"innerInstructions":[{{"index":0,"instructions":[{{"data":"1"{height}}}]}}]}}"#)
        };
        for (block, expected) in [
            (r#"{"costUnits":5,"innerInstructions":[]}"#.to_owned(), [Some(One); 4]),
            (inner(""), [Some(Missing); 4]),
            (inner(r#","stackHeight":2"#), [None, None, Some(Null), Some(One)]),
            (inner(r#","stackHeight":null"#), [None, None, Some(Null), Some(One)]),
            (r#"{"innerInstructions":[]}"#.to_owned(), all),
            (r#"{"innerInstructions":[{"index":0,"instructions":[]}]}"#.to_owned(), all),
            (r#"{"meta":null}"#.to_owned(), all),
            (r#"{"logMessages":["\"costUnits\":5","\"stackHeight\":2"]}"#.to_owned(), all),
        ] {
            assert_eq!(
                all.map(|of_nodes| OwnHeight::of_block(block.as_bytes(), of_nodes)),
                expected,
                "{block}"
            );
        }
    }

    #[test]
    fn each_is_written_as_nodes_write_it() {
        for (height, text) in [(Null, "null"), (One, "1")] {
            assert_eq!(serde_json::to_string(&height).unwrap(), text);
        }
    }
}
