//! The configuration of `slotfront dev` and of tests, without files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use super::{Config, Plan, Upstream, defaults, load};

impl Config {
    /// Returns the defaults with these upstreams, and the key `dev` on a plan with very high limits. No key file is
    /// read, and no usage is written.
    ///
    /// # Panics
    /// Never: a test checks that the defaults are valid.
    pub fn dev(listen: SocketAddr, admin_listen: SocketAddr, upstreams: Vec<Upstream>) -> Self {
        // A configuration needs an upstream. This one is replaced below.
        let text = "[[upstream]]\nurl = \"http://upstream.invalid\"";
        let parsed = load::parse(text, &BTreeMap::new(), Path::new(""));
        let (mut config, _) = parsed.expect("the defaults are valid, as a test holds");
        let plan = Plan {
            rps: defaults::DEV_RPS,
            burst: defaults::DEV_RPS,
            daily_units: None,
            monthly_units: None,
            methods: None,
            commitments: None,
            max_batch: None,
            max_accounts: None,
            bypass_cache: true,
            monotonic: false,
        };
        config.plans.insert(defaults::DEV_KEY.to_owned(), plan);
        config.auth.dev_key = Some(defaults::DEV_KEY.to_owned());
        config.auth.keys_file = None;
        config.auth.usage_file = None;
        config.server.listen = listen;
        config.server.admin_listen = admin_listen;
        config.upstreams = upstreams;
        config
    }
}
