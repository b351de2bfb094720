//! The `OpenRPC` document of slotfront: the methods, with slotfront's title and its own errors.

use std::time::Duration;

use serde_json::Value;

use crate::error::Error;
use crate::methods::openrpc::{self, Service, ServiceError};

/// Returns the `OpenRPC` document of a gateway with the URL `server_url`, such as `https://host/v3/${apiKey}`. The
/// URL must not contain a real key.
pub(crate) fn document(server_url: &str) -> Value {
    let service = Service {
        title: "slotfront",
        version: env!("CARGO_PKG_VERSION"),
        description: env!("CARGO_PKG_DESCRIPTION"),
        licence: env!("CARGO_PKG_LICENSE"),
        errors: errors(),
    };
    openrpc::document(&service, server_url)
}

/// Returns slotfront's own errors, which any method may return.
fn errors() -> Vec<ServiceError> {
    let limited =
        Error::Limited { limit: "{limit}".into(), reason: "rate", retry_after: Duration::from_secs(1) };
    let errors = [
        ("Unauthorized", Error::Unauthorized),
        ("Forbidden", Error::Forbidden("{what}".into())),
        ("TooManyRequests", limited),
        ("Overloaded", Error::Overloaded),
        ("NoUpstream", Error::NoUpstream(Vec::new())),
        ("TimedOut", Error::TimedOut(Duration::from_secs(30))),
    ];
    let describe = |(name, error): (_, Error)| {
        let wire = error.to_reply();
        ServiceError { name, code: wire.code, message: wire.message }
    };
    errors.map(describe).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_errors_of_the_gateway() {
        let document = document("/v3/key");
        assert_eq!(document["info"]["title"], "slotfront");
        let errors = &document["components"]["errors"];
        assert_eq!(errors["Unauthorized"]["code"], -32090);
        assert_eq!(errors["TooManyRequests"]["message"], "Too many requests: {limit}");
        assert_eq!(errors["InvalidParams"]["code"], -32602);
        let of_a_method = document["methods"][0]["errors"].as_array().unwrap();
        assert!(of_a_method.iter().any(|error| error["$ref"] == "#/components/errors/TimedOut"));
    }
}
