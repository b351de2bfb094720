//! Checks that simulated nodes answer the calls in `contract-cases.json` as an Agave 4.0.0 node did. Errors must
//! be equal. A result may differ, because it depends on the chain.

use serde_json::Value;

use super::cluster;

/// Checks that `answer` is the expected error.
#[track_caller]
fn check_error(name: &str, expected: &Value, answer: &Value) {
    let error = &answer["error"];
    assert_eq!(error["code"], expected["code"], "{name}: {answer}");
    if let Some(prefix) = expected["message_prefix"].as_str() {
        assert!(error["message"].as_str().is_some_and(|words| words.starts_with(prefix)), "{name}: {answer}");
    } else {
        assert_eq!(error["message"], expected["message"], "{name}");
    }
    match &expected["data"] {
        Value::Object(shape) => {
            assert!(shape.keys().all(|key| error["data"][key].is_u64()), "{name}: {answer}");
        }
        data => assert_eq!(error["data"], *data, "{name}"),
    }
}

#[test]
fn bodies_are_answered_as_a_node_answers_them() {
    let cluster = cluster();
    let cases = include_str!("../../../../tests/fixtures/contract-cases.json");
    let cases: Vec<Value> = serde_json::from_str(cases).unwrap();
    let mut checked = 0;
    for case in &cases {
        let http_only = ["headers", "http_method", "pad_to", "path", "request_base64"];
        let expected = &case["expect"];
        if http_only.iter().any(|member| case.get(member).is_some()) || expected["http"] != 200 {
            continue;
        }
        let name = case["name"].as_str().unwrap();
        let bytes = cluster.node(0).answer(case["request"].as_str().unwrap().as_bytes());
        checked += 1;
        if expected["body_empty"] == true {
            assert!(bytes.is_empty(), "{name}");
            continue;
        }
        assert!(bytes.ends_with(b"\n"), "{name}");
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        let (expected, answers) = match (expected["batch"].as_array(), answer) {
            (Some(batch), Value::Array(answers)) => (batch.clone(), answers),
            (None, answer) => (vec![expected.clone()], vec![answer]),
            (Some(_), answer) => panic!("{name}: {answer}"),
        };
        assert_eq!(expected.len(), answers.len(), "{name}");
        for (expected, answer) in expected.iter().zip(&answers) {
            assert_eq!(answer["id"], expected["id"], "{name}");
            assert_eq!(answer.get("jsonrpc").is_none(), expected["jsonrpc_absent"] == true, "{name}");
            if expected["error"].is_object() {
                check_error(name, &expected["error"], answer);
            } else {
                assert!(answer.get("result").is_some(), "{name}: {answer}");
            }
        }
    }
    assert!(checked > 140, "{checked} cases");
}
