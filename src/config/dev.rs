//! The configuration of `slotfront dev` and of tests, without files.

use std::net::SocketAddr;
use std::time::Duration;

use super::reader::Section;
use super::{Config, ListedSettings, Plan, Upstream, load};
use crate::methods::{AnyMethod, ListedMethod};

/// The key of `slotfront dev`, and its plan.
pub const DEV_KEY: &str = "dev";
/// The rate and burst of the key `dev`. A load test on a laptop should measure the cache, not the limit.
const DEV_RPS: u32 = 100_000;
/// The WebSockets and subscriptions of the key `dev`, for the same reason.
const DEV_SUBSCRIPTIONS: usize = 1_000_000;

impl Config {
    /// Returns the defaults with these upstreams, and the key `dev` on a plan with very high limits. No key file is
    /// read, and no usage is written.
    ///
    /// # Panics
    /// Never: a test checks that the defaults are valid.
    pub fn dev(listen: SocketAddr, admin_listen: SocketAddr, upstreams: Vec<Upstream>) -> Self {
        let (mut config, _) = load::defaults();
        let mut plan = Plan {
            rps: DEV_RPS,
            burst: DEV_RPS,
            bypass_cache: true,
            methods: Some(AnyMethod::all().collect()),
            ..Plan::defaults()
        };
        (plan.connections, plan.subscriptions) = (DEV_SUBSCRIPTIONS, DEV_SUBSCRIPTIONS);
        config.plans.insert(DEV_KEY.to_owned(), plan);
        config.auth.dev_key = Some(DEV_KEY.to_owned());
        config.auth.keys_file = None;
        config.auth.usage_file = None;
        // No balancer watches.
        config.server.unready_before_stop = Duration::ZERO;
        config.server.listen = listen;
        config.server.admin_listen = admin_listen;
        config.upstreams = upstreams;
        config
    }

    /// Lists a method, without a check of its name: requestAirdrop, which simulated nodes have, is one that no file can
    /// list. The plan of the key `dev` allows it.
    pub fn list_method(&mut self, name: &str, settings: ListedSettings) {
        let Some(method) = ListedMethod::new(name, settings.group).map(AnyMethod::Listed) else { return };
        self.methods.insert(method, settings);
        let methods = self.plans.get_mut(DEV_KEY).and_then(|plan| plan.methods.as_mut());
        methods.unwrap_or(&mut Vec::new()).push(method);
    }
}
