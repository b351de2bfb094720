//! One HTTP response of the gateway.

use reqwest::header::HeaderMap;
use serde_json::Value;

/// An HTTP response, read to the end.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body as text.
    pub text: String,
    /// The header fields.
    pub headers: HeaderMap,
}

impl Reply {
    /// Reads a response to its end.
    pub(crate) async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().await.expect("a whole body") }
    }

    /// Returns the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {:?}", self.text))
    }

    /// Returns the result of a call that has one.
    #[track_caller]
    pub fn result(&self) -> Value {
        let json = self.json();
        json.get("result").unwrap_or_else(|| panic!("no result: {json}")).clone()
    }

    /// Returns the `value` of a result with a context.
    #[track_caller]
    pub fn value(&self) -> Value {
        self.result()["value"].clone()
    }

    /// Returns the slot in the context of a result.
    #[track_caller]
    pub fn slot(&self) -> u64 {
        let slot = self.result()["context"]["slot"].as_u64();
        slot.unwrap_or_else(|| panic!("no context: {}", self.text))
    }

    /// Returns the error object of a call that has one.
    #[track_caller]
    pub fn error(&self) -> Value {
        let json = self.json();
        json.get("error").unwrap_or_else(|| panic!("no error: {json}")).clone()
    }

    /// Returns the code of an error.
    #[track_caller]
    pub fn code(&self) -> i64 {
        self.error()["code"].as_i64().unwrap_or_else(|| panic!("no code: {}", self.text))
    }

    /// Returns a header field; nothing is empty text.
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("headers are text"))
    }

    /// Returns the part of `Cache-Status` that states the answer's source.
    #[track_caller]
    pub fn cache_status(&self) -> &str {
        self.header("cache-status").trim_start_matches("slotfront; ")
    }

    /// Returns true if the answer was held. It may be fresh, stale or derived.
    #[track_caller]
    pub fn is_hit(&self) -> bool {
        self.cache_status().starts_with("hit")
    }

    /// Returns true if the answer was made from a held one of another form.
    #[track_caller]
    pub fn is_derived(&self) -> bool {
        self.cache_status().ends_with("detail=derived")
    }
}
