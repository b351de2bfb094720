//! The JSON Schema of the configuration file, for editors.

use serde_json::{Value, json};

use super::load;
use super::reader::Declared;

/// Returns the JSON Schema of a configuration file.
pub fn schema() -> Value {
    let mut schema = json!({ "$schema": "http://json-schema.org/draft-07/schema#", "title": "slotfront" });
    for declared in declared() {
        let node = node(&mut schema, &declared.path);
        let description = declared.description();
        *node = declared.schema;
        if !description.is_empty() {
            node["description"] = description.into();
        }
        if let Some(default) = declared.default {
            node["default"] = default;
        }
    }
    close(&mut schema);
    schema
}

/// Returns the declarations of all settings and tables.
pub(super) fn declared() -> Vec<Declared> {
    load::with_example_method().1.declared
}

/// Returns the place of the setting or table `path` in a schema.
fn node<'a>(mut schema: &'a mut Value, path: &str) -> &'a mut Value {
    for name in path.split('.') {
        schema = match name.strip_suffix("[0]") {
            Some(list) => {
                let list = &mut schema["properties"][list];
                list["type"] = "array".into();
                &mut list["items"]
            }
            None if [super::STANDARD_PLAN, super::EXAMPLE_METHOD].contains(&name) => {
                &mut schema["additionalProperties"]
            }
            None => &mut schema["properties"][name],
        };
    }
    schema
}

/// Makes every place with settings a table that has no others. A word beside a table is the other choice.
fn close(schema: &mut Value) {
    let Value::Object(rules) = schema else { return };
    rules.values_mut().for_each(close);
    let Some(properties) = rules.remove("properties") else { return };
    let others = rules.remove("additionalProperties").unwrap_or(Value::Bool(false));
    let table = json!({ "type": "object", "properties": properties, "additionalProperties": others });
    match (rules.remove("const"), table) {
        (Some(word), table) => _ = rules.insert("anyOf".to_owned(), json!([{ "const": word }, table])),
        (None, Value::Object(table)) => rules.extend(table),
        (None, _) => {}
    }
}
