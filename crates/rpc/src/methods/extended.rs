//! Members of a config that slotfront does not know, such as a provider's `changedSinceSlot`. A node gets them as the caller
//! wrote them. Nobody here knows what they mean, so such a question equals only one of the same text. A member that is
//! `null` is as good as absent.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::description::Description;
use super::{Life, Method, PlainQuery, Query, ResultKind};
use crate::jsonrpc::Params;
use crate::jsonrpc::scan::Scan;

/// A call with members that slotfront does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendedQuery {
    /// What the call asks for without them: who may ask for it and who may answer it.
    pub known: Box<Query>,
    /// The call as a node gets it.
    pub call: PlainQuery,
}

/// Members that configs of nearly all methods have. Nodes pass over them in the others.
const COMMON: [&str; 2] = ["commitment", "minContextSlot"];

/// The members that the configs of each method may have, by [`Method::index`].
static KNOWN: LazyLock<[Vec<String>; Method::ALL.len()]> =
    LazyLock::new(|| Method::ALL.map(|method| members_of(&method.describe())));

/// Returns the members that the configs of a method may have, as it is described.
pub(super) fn members_of(described: &Description) -> Vec<String> {
    let mut names = Vec::new();
    described.params.iter().for_each(|param| add_members(&param.schema, &mut names));
    names
}

fn add_members(schema: &Value, names: &mut Vec<String>) {
    if let Some(members) = schema["properties"].as_object() {
        names.extend(members.keys().cloned());
    }
    let choices = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|word| schema[word].as_array());
    choices.flatten().for_each(|choice| add_members(choice, names));
}

/// The members of a config that its method does not know, as the caller wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnknownMembers(Map<String, Value>);

impl UnknownMembers {
    /// Returns the members of the configs in `params` that are not `known`. `None` if there are none.
    pub(super) fn of(known: &[impl AsRef<str>], params: &Params) -> Option<Self> {
        let params = with_unknown(known, params)?.into_iter();
        let mut members = Map::new();
        for config in
            params.filter_map(|param| if let Value::Object(config) = param { Some(config) } else { None })
        {
            members.extend(config.into_iter().filter(|(name, _)| !is_known(known, name.as_bytes())));
        }
        Some(Self(members))
    }

    /// Adds the members to the last of `params`, if it is a config.
    pub(super) fn add_to(&self, params: &mut Value) {
        let last = params.as_array_mut().and_then(|params| params.last_mut()?.as_object_mut());
        if let Some(config) = last {
            config.extend(self.0.clone());
        }
    }
}

/// Returns `query` with the members of `params` that its method does not know. A call without such members is returned as
/// it is.
pub(super) fn with_unknown_members(query: Query, params: &Params) -> Query {
    let method = query.method();
    let known = &KNOWN[method.index()];
    let Some(asked) = with_unknown(known, params) else { return query };
    // What is known is written as for every node. It says which state the answer is of.
    let Ok(mut params) = serde_json::from_str::<Vec<Value>>(&query.params_json()) else { return query };
    for (at, config) in asked.into_iter().enumerate() {
        let Value::Object(config) = config else { continue };
        let unknown = config.into_iter().filter(|(name, _)| !is_known(known, name.as_bytes()));
        let unknown: Map<_, _> = unknown.collect();
        // Where the caller has left out params, the config is further back.
        let is_config = |at: &usize| params.get(*at).is_some_and(Value::is_object);
        let place = Some(at).filter(is_config).or_else(|| params.len().checked_sub(1).filter(is_config));
        if unknown.is_empty() {
            continue;
        }
        let place = place.unwrap_or_else(|| {
            params.push(Value::Object(Map::new()));
            params.len() - 1
        });
        if let Value::Object(written) = &mut params[place] {
            written.extend(unknown);
        }
    }
    let commitment = query.commitment();
    match params.last_mut() {
        // These two are written anew for each node.
        Some(Value::Object(config)) => config.retain(|name, _| !COMMON.contains(&&**name)),
        _ if commitment.is_some() => params.push(Value::Object(Map::new())),
        _ => {}
    }
    let life = match query.plain().map(|call| call.life) {
        Some(life @ (Life::Scan | Life::Never)) => life,
        _ => Life::OneSlot,
    };
    let result = match &query {
        Query::Block(_) => ResultKind::ObjectOrNull,
        Query::Votes(_) => ResultKind::Object,
        Query::Samples(_) | Query::ClusterNodes => ResultKind::List,
        other => other.plain().map_or(ResultKind::Context, |call| call.result),
    };
    let call = PlainQuery {
        method,
        params: Value::Array(params).to_string().into(),
        commitment,
        min_context_slot: query.min_context_slot(),
        takes_min_slot: known.iter().any(|name| name == "minContextSlot"),
        result,
        life,
    };
    Query::Extended(ExtendedQuery { known: Box::new(query), call })
}

/// Returns the params, with all members of their configs that are not `null`, if a config has a member that is not `known`.
fn with_unknown(known: &[impl AsRef<str>], params: &Params) -> Option<Vec<Value>> {
    let Params::Array(text) = params else { return None };
    // Nearly all calls have none.
    if known.is_empty() || !text.contains(&b'{') || !scan(text, known).unwrap_or(true) {
        return None;
    }
    let mut params: Vec<Value> = serde_json::from_slice(text).ok()?;
    while params.last().is_some_and(Value::is_null) {
        params.pop();
    }
    let mut has_unknown = false;
    for config in params.iter_mut().filter_map(Value::as_object_mut) {
        config.retain(|name, value| is_known(known, name.as_bytes()) || !value.is_null());
        has_unknown |= !config.keys().all(|name| is_known(known, name.as_bytes()));
    }
    has_unknown.then_some(params)
}

fn is_known(known: &[impl AsRef<str>], name: &[u8]) -> bool {
    let mut all = COMMON.into_iter().chain(known.iter().map(AsRef::as_ref));
    all.any(|one| one.as_bytes() == name)
}

/// Returns true if an object in the list `text` has a member that is not `known`. `None` if only a full parser can tell.
fn scan(text: &[u8], known: &[impl AsRef<str>]) -> Option<bool> {
    let mut has_unknown = false;
    Scan::new(text).elements(|scan| {
        if scan.peek() != Some(b'{') {
            return scan.skip();
        }
        scan.members(|scan, name| {
            has_unknown |= scan.peek() != Some(b'n') && !is_known(known, name);
            scan.skip()
        })
    })?;
    Some(has_unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::Profile;

    fn parse(method: Method, params: &str) -> Query {
        Query::parse(method, &Params::Array(params.to_owned().into()), Profile::Node).unwrap()
    }

    const CLOCK: &str = "SysvarC1ock11111111111111111111111111111111";

    #[test]
    fn unknown_members_go_to_the_node_and_make_a_question_of_its_own() {
        for (method, config, expected) in [
            (
                Method::GetAccountInfo,
                r#"{"encoding":"base64","changedSinceSlot":7,"commitment":"confirmed","minContextSlot":5}"#,
                r#"{"changedSinceSlot":7,"encoding":"base64","commitment":"confirmed","minContextSlot":5}"#,
            ),
            (
                Method::GetProgramAccounts,
                r#"{"changedSinceSlot":7}"#,
                r#"{"changedSinceSlot":7,"encoding":"binary","filters":[],"sortResults":true,"withContext":false,"commitment":"finalized"}"#,
            ),
            (Method::GetBalance, r#"{"x\u0061":{}}"#, r#"{"xa":{},"commitment":"finalized"}"#),
        ] {
            let query = parse(method, &format!(r#"["{CLOCK}",{config}]"#));
            let Query::Extended(extended) = &query else { panic!("{query:?}") };
            let written: Value = serde_json::from_str(&query.params_json()).unwrap();
            let expected: Value = serde_json::from_str(&format!(r#"["{CLOCK}",{expected}]"#)).unwrap();
            assert_eq!((written, query.method()), (expected, method));
            assert_eq!(query.has_context(), extended.known.has_context());
            assert_ne!(query, *extended.known);
        }
        let (confirmed, slot) = (Some(crate::methods::Commitment::Confirmed), Some(9));
        let block = parse(Method::GetBlock, r#"[5,{"commitment":"confirmed","new":1}]"#);
        assert_eq!(
            (block.commitment(), block.plain().unwrap().result),
            (confirmed, ResultKind::ObjectOrNull)
        );
        // What the interface leaves out by default, a node gives by default.
        let spec = Params::Array(r#"[5,{"new":1}]"#.into());
        let spec = Query::parse(Method::GetBlock, &spec, Profile::Spec).unwrap();
        assert_eq!(spec, parse(Method::GetBlock, &spec.params_json()));
        let account = parse(Method::GetAccountInfo, &format!(r#"["{CLOCK}",{{"a":1}}]"#));
        assert_eq!(account.with_min_context_slot(slot).min_context_slot(), slot);
    }

    #[test]
    fn known_members_are_known() {
        for method in Method::ALL {
            let example = method.describe().example.to_string();
            assert!(!matches!(parse(method, &example), Query::Extended(_)), "{example}");
        }
        for config in [
            r#"{"encoding":"base64","dataSlice":{"offset":0,"length":4},"commitment":"processed","minContextSlot":1}"#,
            "null",
            "{}",
            r#"{"changedSinceSlot":null}"#,
            r#"{"changedSinceSlot":7,"changedSinceSlot":null}"#,
        ] {
            let query = parse(Method::GetMultipleAccounts, &format!(r#"[["{CLOCK}"],{config}]"#));
            assert!(matches!(query, Query::Accounts(_)), "{query:?}");
        }
        let block = r#"[5,{"encoding":"json","transactionDetails":"full","rewards":false,"maxSupportedTransactionVersion":0,"commitment":"finalized"}]"#;
        assert!(matches!(parse(Method::GetBlock, block), Query::Block(_)));
    }
}
