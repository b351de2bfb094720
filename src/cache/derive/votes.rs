//! One validator's vote account, taken from the stored list of all vote accounts. The call for one vote account
//! has the same parameters as the call for all, and `votePubkey` besides.

use bytes::Bytes;

use super::object::{JsonPart, ParseDepth};
use crate::methods::Pubkey;

/// The depth to which a list is parsed: `{"current":[{…}],"delinquent":[{…}]}`.
const OPEN: ParseDepth = {
    const LIST: ParseDepth = ParseDepth::Each(&ParseDepth::Members(&[]));
    ParseDepth::Members(&[("current", LIST), ("delinquent", LIST)])
};

/// Returns `result`, the list of all vote accounts, reduced to the vote account `vote_pubkey`. The members
/// `current` and `delinquent` may both be empty, as in a node's answer.
///
/// `None` if `result` is not in the format that nodes write. In that case a node is asked.
pub fn only(result: &Bytes, vote_pubkey: &Pubkey) -> Option<Bytes> {
    let vote_pubkey = format!("\"{vote_pubkey}\"");
    let mut lists = JsonPart::read(result, OPEN)?;
    // Unknown members of an account are kept. An unknown member beside the lists may concern all accounts.
    lists.as_object()?.only(&[&["current", "delinquent"]])?;
    for list in ["current", "delinquent"] {
        let list = lists.as_object()?.get(list)?.as_list()?;
        let mut found = Vec::new();
        for mut account in std::mem::take(list) {
            if account.as_object()?.get("votePubkey")?.as_text()? == vote_pubkey {
                found.push(account);
            }
        }
        *list = found;
    }
    Some(lists.write())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_one_account_and_keeps_the_rest() {
        let account = |key: &str| format!(r#"{{"activatedStake":1,"votePubkey":"{key}"}}"#);
        let (one, other) = (Pubkey([1; 32]), Pubkey([2; 32]));
        let (a, b) = (account(&one.to_string()), account(&other.to_string()));
        for (stored, asked, expected) in [
            (
                format!(r#"{{"current":[{a},{b}],"delinquent":[]}}"#),
                one,
                Some(format!(r#"{{"current":[{a}],"delinquent":[]}}"#)),
            ),
            (
                format!(r#"{{"delinquent":[{b}],"current":[{a}]}}"#),
                other,
                Some(format!(r#"{{"delinquent":[{b}],"current":[]}}"#)),
            ),
            (format!(r#"{{"current":[{a}]}}"#), one, None),
            (format!(r#"{{"current":[{a}],"delinquent":[],"totalStake":1}}"#), one, None),
            (r#"{"current":[{}],"delinquent":[]}"#.to_owned(), one, None),
            (r#"{"current":[null],"delinquent":[]}"#.to_owned(), one, None),
            (r#"{"current":null,"delinquent":[]}"#.to_owned(), one, None),
            ("null".to_owned(), one, None),
            ("<html>".to_owned(), one, None),
        ] {
            assert_eq!(only(&stored.clone().into(), &asked), expected.map(Bytes::from), "{stored}");
        }
    }
}
