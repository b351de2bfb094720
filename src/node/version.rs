//! The node versions whose answers may be carried: served at newer slots than they were fetched at.

/// The oldest node version in whose source every place that stores an account was checked (docs/following.md).
const OLDEST: NodeVersion = NodeVersion { major: 4, minor: 0 };
/// The newest node version in whose source every place that stores an account was checked (docs/following.md).
const NEWEST: NodeVersion = NodeVersion { major: 4, minor: 4 };
/// The only pre-release that was checked. It stands for no other version: the release may store accounts elsewhere.
const CHECKED_PRE_RELEASE: &str = "4.5.0-alpha.4";
/// The first version whose answers at finalized never hold data of a later slot than the slot in their context.
pub const EXACT_FINALIZED: NodeVersion = NodeVersion { major: 4, minor: 1 };

/// The version of a node, as `getVersion` and the context of an answer report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeVersion {
    major: u16,
    minor: u16,
}

impl NodeVersion {
    /// Parses a version such as `4.0.2`, if every place that stores an account was checked in its source. `None` for
    /// all other texts.
    pub fn parse_followed(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let mut number = || parts.next()?.parse().ok();
        let version = Self { major: number()?, minor: number()? };
        let patch = parts.next()?;
        let is_checked = if patch.contains('-') {
            text == CHECKED_PRE_RELEASE
        } else {
            (OLDEST..=NEWEST).contains(&version)
        };
        is_checked.then_some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_versions_are_followed() {
        for (text, is_followed) in [
            ("4.0.0", true),
            ("4.4.12", true),
            ("4.5.0-alpha.4", true),
            ("4.5.0-alpha.5", false),
            ("4.5.0", false),
            ("4.5.1", false),
            ("4.1.0-beta.1", false),
            ("4.6.0", false),
            ("3.9.9", false),
            ("5.0.0", false),
            ("40.1.0", false),
            ("4", false),
            ("4.0", false),
            ("", false),
            ("0.708.40000", false),
        ] {
            assert_eq!(NodeVersion::parse_followed(text).is_some(), is_followed, "{text}");
        }
    }

    #[test]
    fn minor_versions_are_compared_as_numbers() {
        let before = |text| NodeVersion::parse_followed(text).unwrap() < EXACT_FINALIZED;
        assert!(before("4.0.9") && !before("4.1.0") && !before("4.4.0"));
        assert!(NodeVersion { major: 4, minor: 10 } > EXACT_FINALIZED);
    }
}
