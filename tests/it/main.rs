//! Tests of the whole gateway over real sockets, in front of a simulated Solana cluster. The tests move the
//! cluster's slots.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics with its line")]

/// Runs these tests of a file a second time, with gateways whose fast path is off. It is for tests that speak HTTP by hand,
/// because the fast path and hyper must not differ there.
macro_rules! again_by_hyper {
    ($($test:ident),* $(,)?) => {
        mod by_hyper {
            $(#[test]
            fn $test() {
                slotfront_testkit::by_hyper(super::$test);
            })*
        }
    };
}

mod admin;
mod attacks;
mod billing;
mod cache;
mod client_address;
mod client_libraries;
mod clusters;
mod contract;
mod dashboards;
mod derive;
mod epochs;
mod equal_questions;
mod fast_path;
mod faults;
mod files;
mod follow;
mod forwarded;
mod fuzz;
mod gateway;
mod heavy;
mod http;
mod http2;
mod judging;
mod last_answer;
mod malformed_answers;
mod methods;
mod min_context_slot;
mod monotonicity;
mod named_keys;
mod newer_nodes;
mod operator;
mod other_methods;
mod out_of_use;
mod pages;
mod patience;
mod pool;
mod probes;
mod promises;
mod rate;
mod reasons;
mod reload;
mod retention;
mod shares;
mod slow_reader;
mod stop;
mod subscribe;
mod tidy;
mod tip;
mod tls;
mod todays_nodes;
mod told;
mod traces;
mod transactions;
mod upstreams;
mod upstreams_api;
mod verify;
mod waits;
mod workspace;
