//! Properties of parsing: calls with the same meaning give the same query, and no input makes the parser panic.

use bytes::Bytes;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

fn parse(method: Method, params: &str) -> Result<Query, ParamError> {
    Query::parse(method, &Params::Array(Bytes::copy_from_slice(params.as_bytes())), Profile::Node)
}

fn methods() -> impl Strategy<Value = Method> {
    prop::sample::select(&Method::ALL[..])
}

fn pubkeys() -> impl Strategy<Value = Pubkey> {
    any::<[u8; 32]>().prop_map(Pubkey)
}

fn commitments() -> impl Strategy<Value = Commitment> {
    prop::sample::select(&Commitment::ALL[..])
}

fn forms() -> impl Strategy<Value = AccountForm> {
    let slice = any::<(u64, u64)>().prop_map(|(offset, length)| DataSlice { offset, length });
    (prop::sample::select(&AccountEncoding::ALL[..]), prop::option::of(slice))
        .prop_map(|(encoding, slice)| AccountForm { encoding, slice })
}

/// Generates canonical queries, as `parse` returns them.
fn queries() -> impl Strategy<Value = Query> {
    use BlockDetails::{Accounts, Full, None, Signatures};
    use BlockEncoding::Json;

    let block = (
        any::<u64>(),
        prop_oneof![
            (Just(Full), prop::sample::select(&BlockEncoding::ALL[..]), any::<Option<u8>>()),
            (Just(Accounts), Just(Json), any::<Option<u8>>()),
            (prop::sample::select(vec![Signatures, None]), Just(Json), Just(Option::None)),
        ],
        any::<bool>(),
        prop::sample::select(vec![Commitment::Confirmed, Commitment::Finalized]),
    );
    let accounts = (prop::collection::vec(pubkeys(), 0..=100), forms(), commitments(), any::<Option<u64>>());
    let account = (pubkeys(), forms(), commitments(), any::<Option<u64>>());
    let votes = (commitments(), prop::option::of(pubkeys()), any::<bool>(), any::<u64>());
    // A legacy message without keys and instructions, followed by bytes.
    let fee = (prop::collection::vec(any::<u8>(), 0..100), commitments(), any::<Option<u64>>());
    prop_oneof![
        block.prop_map(|(slot, (details, encoding, max_version), rewards, commitment)| {
            Query::Block(BlockQuery { slot, details, encoding, rewards, max_version, commitment })
        }),
        accounts.prop_map(|(pubkeys, form, commitment, min_context_slot)| {
            Query::Accounts(AccountsQuery { pubkeys: pubkeys.into(), form, commitment, min_context_slot })
        }),
        account.prop_map(|(pubkey, form, commitment, min_context_slot)| {
            Query::Account(AccountQuery { pubkey, form, commitment, min_context_slot })
        }),
        votes.prop_map(|(commitment, vote_pubkey, keep_unstaked_delinquents, delinquent_slot_distance)| {
            Query::Votes(VotesQuery {
                commitment,
                vote_pubkey,
                keep_unstaked_delinquents,
                delinquent_slot_distance,
            })
        }),
        (pubkeys(), commitments())
            .prop_map(|(pubkey, commitment)| Query::Balance(BalanceQuery { pubkey, commitment })),
        fee.prop_map(|(after, commitment, min_context_slot)| {
            let message = [&[1, 0, 0, 0][..], &[7; 32], &[0], &after].concat().into();
            Query::Fee(FeeQuery { message, commitment, min_context_slot })
        }),
        (0..=720_u16).prop_map(|limit| Query::Samples(SamplesQuery { limit })),
        Just(Query::ClusterNodes),
    ]
}

/// The form in which a caller writes default values.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Defaults {
    Written,
    Null,
    LeftOut,
}

/// Returns the params of `query` as a caller may write them, with additional whitespace. `noise` adds an unknown
/// member. `order` determines the order of members.
fn written(query: &Query, defaults: Defaults, noise: bool, order: &[u8]) -> String {
    let Value::Array(mut params) = serde_json::from_str(&query.params_json()).unwrap() else {
        panic!("params are an array")
    };
    let encoding = match query {
        Query::Accounts(_) => "base64",
        Query::Account(_) => "binary",
        _ => "json",
    };
    let is_default = |name: &str, value: &Value| match name {
        "encoding" => value == encoding,
        "commitment" => value == "finalized",
        "transactionDetails" => value == "full",
        "rewards" => value == true,
        "keepUnstakedDelinquents" => value == false,
        "delinquentSlotDistance" => value == 128,
        _ => false,
    };
    // The second param *is* the commitment, so it cannot be left out.
    let defaults = if matches!(query, Query::Balance(_)) { Defaults::Written } else { defaults };
    let config = params.pop_if(|last| last.is_object()).map(|config| {
        let mut members: Vec<_> = config.as_object().unwrap().clone().into_iter().collect();
        if defaults == Defaults::LeftOut {
            members.retain(|(name, value)| !is_default(name, value));
        }
        if noise {
            members.push(("foo".into(), json!([{ "commitment": "processed" }])));
        }
        let mut members: Vec<_> = members.into_iter().zip(order.iter().cycle()).collect();
        members.sort_by_key(|(_, place)| **place);
        let members = members.into_iter().map(|((name, value), _)| {
            let null = defaults == Defaults::Null && is_default(&name, &value);
            format!("\t\"{name}\" : {}", if null { Value::Null } else { value })
        });
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    });
    let params: Vec<_> = params.iter().map(Value::to_string).chain(config).collect();
    format!(" [ {} ] ", params.join(" , "))
}

/// Generates params from valid and invalid members. A member may occur twice.
fn odd_params() -> impl Strategy<Value = String> {
    let first = prop::sample::select(vec![
        r#""SysvarC1ock11111111111111111111111111111111""#,
        r#"["SysvarC1ock11111111111111111111111111111111"]"#,
        "5",
        "null",
        r#""bogus""#,
        "{}",
    ]);
    let value = prop::sample::select(vec![
        "null",
        r#""confirmed""#,
        r#""max""#,
        r#"{"confirmed":null}"#,
        r#"{"confirmed":null,"confirmed":null}"#,
        r#"["confirmed"]"#,
        r#""base64""#,
        r#"{"base64":null}"#,
        r#"{"base64":null,"base64":null}"#,
        r#""none""#,
        "true",
        "0",
        "256",
        "-1",
        "1.5",
        r#"{"offset":1,"length":2}"#,
        r#"{"offset":1,"length":2,"offset":3}"#,
        "[1,2]",
    ]);
    let name = prop::sample::select(vec![
        "commitment",
        "encoding",
        "dataSlice",
        "minContextSlot",
        "rewards",
        "transactionDetails",
        "maxSupportedTransactionVersion",
        "votePubkey",
        "keepUnstakedDelinquents",
        "delinquentSlotDistance",
        "foo",
    ]);
    let member = (name, value.clone()).prop_map(|(name, value)| format!("\"{name}\":{value}"));
    let config = prop::collection::vec(member, 0..4).prop_map(|members| format!("{{{}}}", members.join(",")));
    let params = prop_oneof![
        4 => (first.clone(), config.clone()).prop_map(|(first, config)| vec![first.to_owned(), config]),
        2 => config.prop_map(|config| vec![config]),
        1 => prop::collection::vec(prop_oneof![first, value].prop_map(str::to_owned), 0..4),
    ];
    params.prop_map(|params| format!("[{}]", params.join(",")))
}

#[test]
fn last_of_two_equal_names_wins() {
    for params in [
        r#"[5,{"base64":null,"base64":null}]"#,
        r#"[5,{"commitment":"max","commitment":{"confirmed":null,"confirmed":null}}]"#,
        r#"[5,{"encoding":5,"encoding":"json"}]"#,
    ] {
        let tree: Value = serde_json::from_str(params).unwrap();
        let query = parse(Method::GetBlock, params);
        assert!(query.is_ok(), "{params}");
        assert_eq!(query, parse(Method::GetBlock, &tree.to_string()), "{params}");
    }
}

proptest! {
    #[test]
    fn canonical_params_parse_to_the_same_query(query in queries()) {
        prop_assert_eq!(parse(query.method(), &query.params_json()), Ok(query));
    }

    #[test]
    fn one_meaning_is_one_query(
        query in queries(),
        defaults in prop::sample::select(vec![Defaults::Written, Defaults::Null, Defaults::LeftOut]),
        noise: bool,
        order: [u8; 7],
    ) {
        let parsed = parse(query.method(), &written(&query, defaults, noise, &order));
        // What nobody here knows makes a question of its own, and leaves what is known of it as it is.
        let known = parsed.map(|parsed| match parsed {
            Query::Extended(extended) if noise => *extended.known,
            query => query,
        });
        prop_assert_eq!(known, Ok(query));
    }

    #[test]
    fn text_means_what_its_tree_means(method in methods(), params in odd_params()) {
        let tree: Value = serde_json::from_str(&params).unwrap();
        prop_assert_eq!(parse(method, &params), parse(method, &tree.to_string()), "{}", params);
    }

    #[test]
    fn commitment_is_read_like_the_nodes_types(params in odd_params()) {
        #[derive(Deserialize)]
        struct CommitmentConfig {
            commitment: Commitment,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct RpcContextConfig {
            #[serde(flatten)]
            commitment: Option<CommitmentConfig>,
            #[serde(rename = "minContextSlot")]
            _min_context_slot: Option<u64>,
        }
        let tree: Vec<Value> = serde_json::from_str(&params).unwrap();
        for config in tree {
            let message = "AQABAisrKysrKysrKysrKysrKysrKysrKysrKysrKysrKysrAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwA=";
            let ours = parse(Method::GetFeeForMessage, &json!([message, config]).to_string());
            let model: Result<Option<RpcContextConfig>, _> = serde_json::from_value(config);
            match (ours, model) {
                (Ok(query), Ok(model)) => {
                    let model = model.and_then(|m| m.commitment).map(|c| c.commitment).unwrap_or_default();
                    prop_assert_eq!(query.commitment(), Some(model), "{}", params);
                }
                (Err(ours), Err(model)) => {
                    prop_assert_eq!(ours.message, format!("Invalid params: {model}."), "{}", params);
                }
                (ours, model) => prop_assert!(false, "{ours:?}, but {:?}", model.map(|_| params)),
            }
        }
    }

    #[test]
    fn parse_never_panics(method in methods(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = Bytes::from(bytes);
        for params in [Params::Array(text.clone()), Params::Object(text), Params::None] {
            let _ = Query::parse(method, &params, Profile::Spec);
            for method in TipMethod::ALL {
                let _ = TipQuery::parse(method, &params);
            }
            let _ = SendQuery::parse(&params);
        }
    }

    #[test]
    fn transactions_never_panic(signatures in 0_u8..4, bytes in prop::collection::vec(any::<u8>(), 0..1300)) {
        let wire = [&[signatures], &bytes[..]].concat();
        let params = json!([bs58::encode(wire).into_string()]).to_string();
        let _ = SendQuery::parse(&Params::Array(params.into()));
    }

    #[test]
    fn fee_messages_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..1300)) {
        if let Ok(message) = message::Message::decode(&bytes) {
            let _ = message.sanitize();
        }
    }
}
