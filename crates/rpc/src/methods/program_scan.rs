//! Which program's accounts a call or a subscription asks for, for plans that restrict them.

use serde_json::Value;

use super::{Method, Pubkey, Query, Subscription, SubscriptionMethod};

/// The accounts of a program that a call or a subscription asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramScan {
    /// The program.
    pub program: Pubkey,
    /// True if a filter leaves accounts out.
    pub is_filtered: bool,
}

impl ProgramScan {
    /// Returns what `query` asks for. `None` for another method.
    pub fn of_call(query: &Query) -> Option<Self> {
        let call = query.plain()?;
        match call.method {
            Method::GetProgramAccounts => Self::read(&call.params),
            Method::GetTokenAccountsByOwner | Method::GetTokenAccountsByDelegate => {
                let params: Value = serde_json::from_str(&call.params).ok()?;
                let program = Pubkey::parse(params.pointer("/1/programId")?.as_str()?).ok()?;
                Some(Self { program, is_filtered: true })
            }
            _ => None,
        }
    }

    /// Returns what `subscription` asks for. `None` for another kind, and for params that a node refuses.
    pub fn of_subscription(subscription: &Subscription) -> Option<Self> {
        let Subscription::Relayed { method: SubscriptionMethod::Program, params, .. } = subscription else {
            return None;
        };
        Self::read(params)
    }

    fn read(params: &str) -> Option<Self> {
        let params: Value = serde_json::from_str(params).ok()?;
        let program = Pubkey::parse(params.get(0)?.as_str()?).ok()?;
        let filters = params.pointer("/1/filters").and_then(Value::as_array);
        Some(Self { program, is_filtered: filters.into_iter().flatten().any(leaves_out) })
    }
}

/// Returns false for a comparison with no bytes, which every account passes.
fn leaves_out(filter: &Value) -> bool {
    match filter.pointer("/memcmp/bytes") {
        Some(Value::String(bytes)) => !bytes.is_empty(),
        Some(Value::Array(bytes)) => !bytes.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::jsonrpc::Params;
    use crate::methods::Profile;

    const PROGRAM: &str = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";

    #[test]
    fn calls_and_subscriptions_are_filtered_alike() {
        for (config, is_filtered) in [
            (json!(null), false),
            (json!({}), false),
            (json!({ "filters": null, "unknown": 1 }), false),
            (json!({ "filters": [] }), false),
            (json!({ "filters": [{ "memcmp": { "offset": 0, "bytes": "" } }] }), false),
            (json!({ "filters": [{ "memcmp": { "offset": 0, "bytes": "", "encoding": "base64" } }] }), false),
            (json!({ "filters": [{ "memcmp": { "offset": 0, "bytes": [] } }] }), false),
            (json!({ "filters": [{ "memcmp": { "offset": 0, "bytes": "3Mc6vR" } }] }), true),
            (json!({ "filters": [{ "dataSize": 165 }], "unknown": 1 }), true),
            (json!({ "filters": [{ "memcmp": { "offset": 0, "bytes": "" } }, { "dataSize": 165 }] }), true),
        ] {
            let params = Params::Array(json!([PROGRAM, config]).to_string().into());
            let query = Query::parse(Method::GetProgramAccounts, &params, Profile::Node).unwrap();
            let subscription = Subscription::parse(SubscriptionMethod::Program, &params).unwrap();
            let program = Pubkey::parse(PROGRAM).unwrap();
            let expected = Some(ProgramScan { program, is_filtered });
            assert_eq!(ProgramScan::of_call(&query), expected, "{config}");
            assert_eq!(ProgramScan::of_subscription(&subscription), expected, "{config}");
        }
        for method in [Method::GetTokenAccountsByOwner, Method::GetTokenAccountsByDelegate] {
            let of = |filter: Value| {
                let params = Params::Array(json!([PROGRAM, filter]).to_string().into());
                ProgramScan::of_call(&Query::parse(method, &params, Profile::Node).unwrap())
            };
            let program = Pubkey::parse(PROGRAM).unwrap();
            let expected = Some(ProgramScan { program, is_filtered: true });
            assert_eq!(of(json!({ "programId": PROGRAM })), expected, "an owner is a filter");
            assert_eq!(of(json!({ "mint": PROGRAM })), None);
        }
        assert_eq!(ProgramScan::of_call(&Query::ClusterNodes), None);
        assert_eq!(ProgramScan::of_subscription(&Subscription::Slot), None);
    }
}
