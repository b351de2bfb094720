//! An HTTP response of the gateway.

use reqwest::header::HeaderMap;
use serde_json::Value;

/// An HTTP response, read to the end.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub text: String,
    pub headers: HeaderMap,
}

impl Reply {
    pub(crate) async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().await.expect("a whole body") }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {:?}", self.text))
    }

    /// Returns the `result` of the answer. Panics if there is none.
    #[track_caller]
    pub fn result(&self) -> Value {
        let json = self.json();
        json.get("result").unwrap_or_else(|| panic!("no result: {json}")).clone()
    }

    /// Returns the `value` of a result that has a context.
    #[track_caller]
    pub fn value(&self) -> Value {
        self.result()["value"].clone()
    }

    /// Returns the context slot of the result. Panics if there is none.
    #[track_caller]
    pub fn slot(&self) -> u64 {
        let slot = self.result()["context"]["slot"].as_u64();
        slot.unwrap_or_else(|| panic!("no context: {}", self.text))
    }

    /// Returns the `error` object of the answer. Panics if there is none.
    #[track_caller]
    pub fn error(&self) -> Value {
        let json = self.json();
        json.get("error").unwrap_or_else(|| panic!("no error: {json}")).clone()
    }

    /// Returns the code of the answer's error. Panics if there is none.
    #[track_caller]
    pub fn code(&self) -> i64 {
        self.error()["code"].as_i64().unwrap_or_else(|| panic!("no code: {}", self.text))
    }

    /// Returns the value of a header field, or an empty string if the field is absent.
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("headers are text"))
    }

    /// Returns the header `Cache-Status` without `slotfront; `, for example `fwd=miss; stored`.
    #[track_caller]
    pub fn cache_status(&self) -> &str {
        self.header("cache-status").trim_start_matches("slotfront; ")
    }

    /// Returns true if the answer comes from the cache: fresh, carried, stale, or made from an entry in another form.
    #[track_caller]
    pub fn is_hit(&self) -> bool {
        self.cache_status().starts_with("hit")
    }

    /// Returns true if the answer was made from a cache entry in another form.
    #[track_caller]
    pub fn is_derived(&self) -> bool {
        self.cache_status().ends_with("detail=derived")
    }
}
