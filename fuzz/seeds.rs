//! The seeds for fuzzing: the contract cases, recorded answers of nodes, and configurations.

use std::path::Path;

use serde_json::Value;

/// Returns every seed with the name of its target. `root` is the folder of the repository.
pub(crate) fn seeds(root: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let lines = |path: &str| -> Vec<Value> {
        read(path).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let mut seeds = Vec::new();
    let cases: Value = serde_json::from_str(&read("tests/fixtures/contract-cases.json")).expect("JSON");
    let mut bodies: Vec<String> = cases
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|case| Some(case["request"].as_str()?.to_owned()))
        .collect();
    bodies.extend(lines("tests/fixtures/param-errors.jsonl").iter().map(|line| line["request"].to_string()));
    for body in bodies {
        if let Ok(call) = serde_json::from_str::<Value>(&body)
            && let Some(method) = call["method"].as_str()
            && let Some(at) =
                slotfront::methods::Method::ALL.iter().position(|known| known.as_str() == method)
        {
            let head = [u8::try_from(at).expect("eight"), 0, 1];
            seeds.push(("params", [&head[..], call["params"].to_string().as_bytes()].concat()));
        }
        seeds.push(("envelope", body.into_bytes()));
    }
    for (i, line) in lines("tests/fixtures/node-answers.jsonl").iter().enumerate() {
        for field in ["response", "answer", "result"] {
            let mut answer = line[field].clone();
            if let Some(text) = answer.as_str() {
                answer = serde_json::from_str(text).unwrap_or(Value::Null);
            }
            if answer.is_null() {
                continue;
            }
            if field == "result" {
                answer = serde_json::json!({"jsonrpc": "2.0", "result": answer});
            }
            answer["id"] = 1.into();
            let shape = u8::try_from(i % 5).expect("below five");
            seeds.push(("answer", [&[shape][..], answer.to_string().as_bytes()].concat()));
        }
    }
    for (offset, length, bytes) in [(0, 0, 0), (1, 9, 5), (0, 128, 128), (0, 129, 129), (3, 200, 700)] {
        let account: Vec<u8> = (0..bytes).map(|i: u32| (i * 7).to_le_bytes()[0]).collect();
        seeds.push(("account", [&[offset, length, 0][..], &account].concat()));
    }
    seeds.push(("config", read("config/example.toml").into_bytes()));
    seeds.push(("config", b"[[upstream]]\nname = \"a\"\nurl = \"http://10.0.0.1:8899\"\n".to_vec()));
    seeds
}
