//! How settled a state must be to be answered from: processed, confirmed or finalized.

use std::borrow::Cow;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A position in the chain's time: a slot takes 200 to 400 ms on mainnet, and may hold no block.
pub type Slot = u64;

/// How settled the state is that a call reads. Ordered: processed < confirmed < finalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Commitment {
    /// The node's newest block, which the cluster may still drop.
    Processed,
    /// The newest block that a supermajority has voted on.
    Confirmed,
    /// The newest block that a supermajority holds at maximum lockout; a node's default.
    #[default]
    Finalized,
}

impl Commitment {
    /// Every commitment, weakest first; its position is [`Commitment::index`].
    pub const ALL: [Self; 3] = [Self::Processed, Self::Confirmed, Self::Finalized];

    /// The name on the wire, in metrics and in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Processed => "processed",
            Self::Confirmed => "confirmed",
            Self::Finalized => "finalized",
        }
    }

    /// Position in a table of three, weakest first.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Reads the exact wire name; anything else is `None` (a node ignores it, or refuses it, depending on the method).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == name)
    }
}

impl std::fmt::Display for Commitment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reads the `commitment` member of a flattened config. To a node whatever is there but unreadable is absent, and so
/// finalized: no error, unlike the config's other members.
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
                    // By way of a tree, in which the last of two equal names wins, at every depth.
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

/// One value for each commitment, as settings and frontiers have it.
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
    /// Creates the map that has `value` at every commitment.
    pub const fn uniform(value: T) -> Self {
        Self { processed: value, confirmed: value, finalized: value }
    }
}

impl<T> PerCommitment<T> {
    /// Returns the values that `value` gives for each commitment.
    pub fn from_fn(mut value: impl FnMut(Commitment) -> T) -> Self {
        Self {
            processed: value(Commitment::Processed),
            confirmed: value(Commitment::Confirmed),
            finalized: value(Commitment::Finalized),
        }
    }

    /// The value at `commitment`.
    pub const fn get(&self, commitment: Commitment) -> &T {
        match commitment {
            Commitment::Processed => &self.processed,
            Commitment::Confirmed => &self.confirmed,
            Commitment::Finalized => &self.finalized,
        }
    }
}
