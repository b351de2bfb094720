//! The sections of the configuration, one module each: their settings, bounds and defaults.

mod auth;
mod cache;
mod follow;
mod plans;
mod pool;
mod server;
mod shared;
mod telemetry;
mod units;
mod upstreams;

use super::bounds::SHARE;
use super::reader::TableReader;
use super::{Config, Verify, defaults, removed};

/// Reads every section. The result is valid only if no problem was recorded.
pub(super) fn read(root: &TableReader<'_>) -> Config {
    let compat = root.table("compat");
    Config {
        profile: compat.get("profile", defaults::PROFILE),
        server: server::read(&root.table("server")),
        auth: auth::read(&root.table("auth")),
        plans: plans::read(&root.table("plans")),
        units: units::read(&root.table("units")),
        upstreams: upstreams::read(root),
        pool: pool::read(&root.table("pool")),
        cache: cache::read(&root.table("cache")),
        follow: follow::read(&root.table("follow")),
        passthrough: root.table("passthrough").list("methods").unwrap_or_default(),
        shared: shared::read(&root.table("shared")),
        verify: Verify { sample: root.table("verify").optional_within("sample", SHARE) },
        telemetry: telemetry::read(&root.table("telemetry")),
        warnings: removed::read(root),
    }
}
