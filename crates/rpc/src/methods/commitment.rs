//! The commitment levels of a call: processed, confirmed and finalized.

use std::borrow::Cow;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A slot number. A slot takes 200 to 400 ms on mainnet, and may have no block.
pub type Slot = u64;

named! {
    /// The commitment of the state that a call reads. The order is processed < confirmed < finalized. Depending on the
    /// method, a node ignores or refuses any other name.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Commitment {
        /// The node's newest block, which the cluster may still drop.
        Processed = "processed",
        /// The newest block that a supermajority has voted on.
        Confirmed = "confirmed",
        /// The newest block at maximum lockout of a supermajority. Nodes use this commitment for a call without one.
        #[default]
        Finalized = "finalized",
    }
}

impl std::fmt::Display for Commitment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reads the `commitment` member of a flattened config. As on a node, an invalid value is no error and means finalized.
pub(super) fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Commitment, D::Error> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Commitment;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a config")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Commitment, A::Error> {
            let mut commitment = Commitment::default();
            while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                if name == "commitment" {
                    // A JSON tree keeps the last of several members of the same name, at every depth, as on a node.
                    commitment = Commitment::deserialize(map.next_value::<Value>()?).unwrap_or_default();
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(commitment)
        }
    }

    deserializer.deserialize_map(Members)
}

/// A value for each commitment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PerCommitment<T> {
    /// The value at processed.
    pub processed: T,
    /// The value at confirmed.
    pub confirmed: T,
    /// The value at finalized.
    pub finalized: T,
}

impl<T: Copy> PerCommitment<T> {
    /// Creates a map with `value` at every commitment.
    pub const fn uniform(value: T) -> Self {
        Self { processed: value, confirmed: value, finalized: value }
    }
}

impl<T> PerCommitment<T> {
    /// Creates a map with the results of `value` for each commitment.
    pub fn from_fn(mut value: impl FnMut(Commitment) -> T) -> Self {
        Self {
            processed: value(Commitment::Processed),
            confirmed: value(Commitment::Confirmed),
            finalized: value(Commitment::Finalized),
        }
    }

    /// Returns the value at `commitment`.
    pub const fn get(&self, commitment: Commitment) -> &T {
        match commitment {
            Commitment::Processed => &self.processed,
            Commitment::Confirmed => &self.confirmed,
            Commitment::Finalized => &self.finalized,
        }
    }
}
