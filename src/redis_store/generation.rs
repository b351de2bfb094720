//! The generation of a cluster's answers in the store, which every purge raises.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreGeneration {
    /// It only rises, and starts at the time of the store's clock in microseconds.
    pub number: u64,
    /// The newest purges, the latest first.
    pub purges: Vec<ListedPurge>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPurge {
    pub began: u64,
    pub ended: u64,
    /// The text that the purging gateway gave.
    pub text: String,
}

impl StoreGeneration {
    /// Parses the answer of the script. `None` if the number is not one. Lines that are not purges are left out.
    pub(super) fn read(number: &str, purges: &str) -> Option<Self> {
        let purge = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let (began, ended) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(ListedPurge { began, ended, text: words.next()?.to_owned() })
        };
        Some(Self { number: number.parse().ok()?, purges: purges.lines().filter_map(purge).collect() })
    }

    /// Returns the texts of the purges that led from the generation `from` to this one, the latest first. `None` if
    /// the store does not list all of them.
    pub fn purges_since(&self, from: u64) -> Option<Vec<&str>> {
        let (mut at, mut texts) = (self.number, Vec::new());
        for purge in &self.purges {
            if at == from {
                break;
            }
            if purge.began != at {
                return None;
            }
            texts.push(&*purge.text);
            at = purge.ended;
        }
        (at == from).then_some(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purges_are_known_only_without_a_gap() {
        let listed = StoreGeneration::read("9", "9 7 c d\n7 4 b\nnonsense\n4 3 a").unwrap();
        for (from, expected) in [
            (9, Some(vec![])),
            (7, Some(vec!["c d"])),
            (4, Some(vec!["c d", "b"])),
            (3, Some(vec!["c d", "b", "a"])),
            (2, None),
            (5, None),
            (10, None),
        ] {
            assert_eq!(listed.purges_since(from), expected, "{from}");
        }
        let lost = StoreGeneration::read("9", "").unwrap();
        assert_eq!((lost.purges_since(9), lost.purges_since(8)), (Some(vec![]), None));
        assert_eq!(StoreGeneration::read("", ""), None);
    }
}
