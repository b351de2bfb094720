//! Encodes a batch of spans in JSON, as an `ExportTraceServiceRequest`.
//!
//! OTLP writes trace and span ids in hex. The standard JSON encoding of protobuf would write them in base64.

use std::sync::LazyLock;

use serde_json::{Value as Json, json};

use super::{AttributeValue, Span, SpanKind};

/// The attribute `service.instance.id`, random for each process.
static INSTANCE: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}", getrandom::u64().unwrap_or_else(|_| std::process::id().into())));

/// Returns the request body that exports `spans`.
pub(super) fn request(spans: &[Span]) -> String {
    let resource = [
        text("service.name", "slotfront"),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", &INSTANCE),
    ];
    let spans: Vec<Json> = spans.iter().map(span).collect();
    let scope = json!({ "name": "slotfront", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] })
    .to_string()
}

fn span(span: &Span) -> Json {
    let mut json = json!({
        "traceId": span.context.trace.to_string(),
        "spanId": span.context.span.to_string(),
        "flags": u32::from(span.context.is_sampled()),
        "name": span.name,
        // SPAN_KIND_SERVER and SPAN_KIND_CLIENT.
        "kind": match span.kind { SpanKind::Server => 2, SpanKind::Client => 3 },
        "startTimeUnixNano": span.start_ns.to_string(),
        "endTimeUnixNano": span.end_ns.to_string(),
        "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        json["parentSpanId"] = parent.to_string().into();
    }
    if let Some(state) = &span.state {
        json["traceState"] = Json::from(&**state);
    }
    if span.failed {
        // STATUS_CODE_ERROR.
        json["status"] = json!({ "code": 2 });
    }
    json
}

fn attribute((key, value): &(&'static str, AttributeValue)) -> Json {
    match value {
        AttributeValue::Text(value) => text(key, value),
        AttributeValue::Number(value) => json!({ "key": key, "value": { "intValue": value.to_string() } }),
    }
}

fn text(key: &str, value: &str) -> Json {
    json!({ "key": key, "value": { "stringValue": value } })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::super::super::trace::TraceContext;
    use super::*;

    #[test]
    fn spans_are_encoded_as_otlp_json() {
        let context = |text: &str| TraceContext::parse(text.as_bytes()).unwrap();
        let parent = context("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let done = Span {
            context: context("00-4bf92f3577b34da6a3ce929d0e0e4736-000000000000000a-01"),
            parent: Some(parent.span),
            state: Some("a=1".into()),
            kind: SpanKind::Client,
            name: "getBlock",
            start_ns: 1_544_712_660_000_000_000,
            end_ns: 1_544_712_661_000_000_000,
            attributes: vec![
                ("upstream.name", AttributeValue::Text(Cow::Borrowed("a"))),
                ("rpc.calls", AttributeValue::Number(3)),
            ],
            failed: true,
        };
        let body: Json = serde_json::from_str(&request(&[done])).unwrap();
        let scope = &body["resourceSpans"][0]["scopeSpans"][0];
        assert_eq!(scope["scope"]["name"], "slotfront");
        let expected = json!({
            "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
            "spanId": "000000000000000a",
            "parentSpanId": "00f067aa0ba902b7",
            "traceState": "a=1",
            "flags": 1,
            "name": "getBlock",
            "kind": 3,
            "startTimeUnixNano": "1544712660000000000",
            "endTimeUnixNano": "1544712661000000000",
            "attributes": [
                { "key": "upstream.name", "value": { "stringValue": "a" } },
                { "key": "rpc.calls", "value": { "intValue": "3" } },
            ],
            "status": { "code": 2 },
        });
        assert_eq!(scope["spans"][0], expected);
        let resource = &body["resourceSpans"][0]["resource"]["attributes"];
        assert_eq!(resource[0], json!({ "key": "service.name", "value": { "stringValue": "slotfront" } }));
    }
}
