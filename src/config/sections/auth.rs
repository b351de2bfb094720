//! `[auth]`: the authentication of callers.

use crate::config::reader::TableReader;
use crate::config::{Auth, defaults};

/// Reads the section `[auth]`.
pub(super) fn read(r: &TableReader<'_>) -> Auth {
    Auth {
        mode: r.get("mode", defaults::AUTH_MODE),
        keys_file: r.file_or_off("keys_file", defaults::KEYS_FILE),
        usage_file: r.file_or_off("usage_file", defaults::USAGE_FILE),
        failed_per_minute: r.within("failed_per_minute", defaults::FAILED_PER_MINUTE, 1..=1_000_000),
        open_plan: r.optional("open_plan"),
        admin_token: r.secret("admin_token"),
        dev_key: None,
    }
}
