//! Support for slotfront's tests, benches and measurements: a simulated cluster, a gateway in front of it,
//! and a client.
//!
//! A test starts a [`TestGateway`], sends calls, and checks each [`Reply`]:
//!
//! ```
//! use slotfront_testkit::TestGateway;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let gateway = TestGateway::builder().nodes(2).config(|config| config.pool.retries = 0).start().await;
//! let wallet = gateway.cluster.examples().wallets[0];
//!
//! let first = gateway.get_account(wallet).confirmed().base64().send().await;
//! assert_eq!(first.cache_status(), "fwd=miss; stored");
//! let again = gateway.get_account(wallet).confirmed().base64().send().await;
//! assert!(again.is_hit());
//! assert_eq!(again.slot(), first.slot());
//! assert_eq!(gateway.upstream_calls(), 1);
//! # }
//! ```
//!
//! Tests wait for an event, such as a new slot or the value of a counter, and never for a fixed time.
//! `docs/testing.md` has more.

#![expect(clippy::missing_panics_doc, reason = "a helper that cannot go on panics, and its test fails")]
#![expect(
    clippy::needless_pass_by_value,
    reason = "helpers take addresses of any kind by value, so that calls are short"
)]

mod call;
mod certificate;
mod cluster;
mod gateway;
mod loopback_tap;
pub mod redis_server;
mod reply;
mod request;
mod scene;
mod socket;
pub mod wire;

use std::time::Duration;

pub use call::{FORWARDED, TestCall, forwarded_params};
pub use certificate::TestCertificate;
pub use cluster::{TestCluster, node_answer};
pub use gateway::{TestGateway, TestGatewayBuilder, upstream_request};
pub use loopback_tap::{LoopbackTap, TappedRequest};
pub use reply::Reply;
pub use request::TestRequest;
pub use scene::CacheScene;
pub use socket::{RefusedHandshake, TestSocket};

/// The longest time for which a test waits for one event. It is longer than any event takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Compiles the examples of docs/testing.md as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing.md")]
struct TestingPage;
