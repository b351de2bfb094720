//! The answers that differ between the documented interface and nodes. Under [`Profile::Spec`] a missing account or block
//! is `null`.
//!
//! The default of `rewards` in getBlock also differs. [`Query::parse`] applies it.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Method, Profile, Query};

/// Returns the result in the form of `profile`. Under [`Profile::Spec`] a missing account is `null` without a context.
pub fn shape_result(profile: Profile, query: &Query, result: Bytes) -> Bytes {
    /// A result with a `context` and a `value`, read only in order to see if `value` is null.
    #[derive(Deserialize)]
    struct Contextual {
        /// The value, or `None` for null. `deserialize_with` makes a missing member an error. By default, serde reads a
        /// missing member as null.
        #[serde(deserialize_with = "Option::deserialize")]
        value: Option<IgnoredAny>,
    }

    let may_differ = profile == Profile::Spec && matches!(query, Query::Account(_));
    if may_differ && serde_json::from_slice(&result).is_ok_and(|Contextual { value }| value.is_none()) {
        return Bytes::from_static(b"null");
    }
    result
}

/// Returns true if `code`, from a node's error for getBlock, means that there is no block. The slot was skipped, or its
/// block is not there yet or was removed.
///
/// Under [`Profile::Spec`] the answer is then `null`.
pub fn absent_block(code: i32) -> bool {
    Method::GetBlock.rules().absences.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::Params;

    #[test]
    fn missing_account_is_null_in_the_spec_profile() {
        let missing = r#"{"context":{"apiVersion":"4.0.0","slot":1},"value":null}"#;
        let there = r#"{"context":{"apiVersion":"4.0.0","slot":1},"value":{"lamports":1}}"#;
        let clock = r#"["SysvarC1ock11111111111111111111111111111111"]"#;
        for (profile, method, result, expected) in [
            (Profile::Spec, Method::GetAccountInfo, missing, "null"),
            (Profile::Spec, Method::GetAccountInfo, there, there),
            (Profile::Spec, Method::GetAccountInfo, "{}", "{}"),
            (Profile::Spec, Method::GetAccountInfo, "no json", "no json"),
            (Profile::Spec, Method::GetTokenAccountBalance, missing, missing),
            (Profile::Node, Method::GetAccountInfo, missing, missing),
        ] {
            let query =
                Query::parse(method, &Params::Array(Bytes::from_static(clock.as_bytes())), profile).unwrap();
            let result = Bytes::from_static(result.as_bytes());
            assert_eq!(shape_result(profile, &query, result), expected, "{profile:?} {method:?}");
        }
    }

    #[test]
    fn spec_profile_leaves_rewards_out_by_default() {
        for (profile, rewards) in [(Profile::Node, true), (Profile::Spec, false)] {
            let query = Query::parse(Method::GetBlock, &Params::Array(Bytes::from_static(b"[5]")), profile);
            let Ok(Query::Block(block)) = query else { panic!("a block") };
            assert_eq!(block.rewards, rewards);
        }
    }
}
