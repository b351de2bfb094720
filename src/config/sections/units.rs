//! `[units]`: the prices of calls.

use std::ops::RangeInclusive;

use crate::config::bounds::SHARE;
use crate::config::reader::TableReader;
use crate::config::{Units, defaults};
use crate::methods::{Method, PassthroughMethod};

/// The bounds of a price, in units.
const COST: RangeInclusive<u64> = 0..=1_000_000;

/// Reads the section `[units]`.
pub(super) fn read(r: &TableReader<'_>) -> Units {
    let default = r.within("default", defaults::UNITS, COST);
    Units {
        by_method: Method::ALL.map(|method| {
            // `default` applies to methods without a default of their own.
            let own = defaults::units(method);
            r.within(method.as_str(), if own == defaults::UNITS { default } else { own }, COST)
        }),
        by_passthrough: passthrough_units(r, default),
        hit_factor: r.within("hit_factor", defaults::HIT_FACTOR, SHARE),
    }
}

fn passthrough_units(r: &TableReader<'_>, default: u64) -> [u64; PassthroughMethod::COUNT] {
    let mut prices = [default; PassthroughMethod::COUNT];
    for method in PassthroughMethod::all() {
        prices[method.index()] = r.within(method.as_str(), default, COST);
    }
    prices
}
